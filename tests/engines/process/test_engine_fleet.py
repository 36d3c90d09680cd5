"""Several engines over one folder of weights: who moves it, who follows, and who falls out."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from echo2.engines.engine import EngineUnusable, Job
from echo2.engines.process.engine_fleet import EngineFleet, FolderStep
from echo2.engines.process.versioned import LoadedVersion, VersionedEngine
from echo2.runtime.child import ChildDied, ChildError
from echo2.weights.diff import encode
from echo2.weights.journaled import Rolling
from echo2.weights.logged_weights import begin_log, log_of, open_weights, present_file
from echo2.weights.snapshot import Snapshot
from tests.support.bigram import nudged, random_table, read_table, write_table
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import InProcessEngine, until

JOB = Job(
    prompt=[2, 3], seeds=[bytes(16)], limit=4, eos=1, task="reverse", task_version=1, split="train", index=0
)  # fmt: skip


class Versions:
    """Versions of a bigram table, with the payloads between them, and one folder of the first."""

    def __init__(self, folder: Path, count: int) -> None:
        self.snapshots = [write_table(folder / "0.safetensors", random_table(1))]
        self.payloads: list[Path] = []
        for number in range(1, count):
            new = write_table(folder / f"{number}.safetensors", nudged(read_table(self.snapshots[-1]), number))
            self.payloads.append(folder / f"{number}.payload")
            encode(self.snapshots[-1], new, self.payloads[-1])
            self.snapshots.append(new)
        self.folder = folder / "held"
        Rolling.create(self.folder, self.snapshots[0])
        begin_log(self.folder)

    def __getitem__(self, number: int) -> LoadedVersion:
        return LoadedVersion(era=1, version=number, root=self.snapshots[number].root, weights=self.folder)

    @property
    def on_disk(self) -> bytes:
        """Content root of the folder."""
        return log_of(self.folder).root


class Machine:
    """A fleet of engines in this process. `processes`: the last one of each engine."""

    def __init__(self, versions: Versions, count: int, model: Path) -> None:
        self.processes: list[InProcessEngine] = [InProcessEngine() for _ in range(count)]
        self.fleet = EngineFleet([VersionedEngine(self._maker(number), seed=number) for number in range(count)])
        self.fleet.prepare(model, None)
        self.fleet.current = versions[0]
        self.versions = versions

    def _maker(self, number: int) -> Callable[[], InProcessEngine]:
        return lambda: self.processes[number]

    async def move(self, number: int) -> None:
        """Bring the folder to a version, as the follower does."""
        async with self.fleet.exclusive():
            current = self.fleet.current
            assert current is not None
            for step in range(current.version, number):
                await self.fleet.advance(self.versions.payloads[step], self.versions[step + 1])
            await self.fleet.hold(self.versions[number])

    def at(self) -> list[int | None]:
        """Return the version of each engine."""
        return [one.current.version if one.current is not None else None for one in self.fleet.engines]


def of(folder: Path, count: int = 2, versions: int = 4) -> Machine:
    folder.mkdir(parents=True, exist_ok=True)
    return Machine(Versions(folder, versions), count, folder)


@on_fake_clock
async def test_the_free_engine_moves_the_folder_and_the_busy_one_follows_when_its_groups_have_ended(
    tmp_path: Path,
) -> None:
    machine = of(tmp_path)
    busy, free = machine.fleet.engines
    async with anyio.create_task_group() as tasks:
        for engine in machine.fleet.engines:
            tasks.start_soon(machine.fleet.keep_up, engine)
        async with busy.shared():
            before = await busy.generate(JOB)
            await machine.move(2)
            assert machine.at() == [0, 2]
            assert machine.versions.on_disk == machine.versions[2].root
            await machine.move(3)
            assert await busy.generate(JOB) == before, "its version changed under its groups"
        await until(lambda: machine.at() == [3, 3])
        assert machine.processes[0].log.count("load") == 1, "it followed without loading anew"
        async with busy.shared(), free.shared():
            assert await busy.generate(JOB) == await free.generate(JOB)
        tasks.cancel_scope.cancel()


@on_fake_clock
async def test_an_engine_that_dies_while_the_folder_moves_on_loads_the_version_that_is_there(tmp_path: Path) -> None:
    machine = of(tmp_path)
    busy = machine.fleet.engines[0]
    async with busy.shared():
        await machine.move(1)
        machine.processes[0].crashes = 1
        with pytest.raises(ChildDied):
            await busy.generate(JOB)
        await busy.recover()
        assert machine.at() == [1, 1]


def steps(versions: Versions, *numbers: int) -> list[FolderStep]:
    return [FolderStep(versions.payloads[number - 1], versions[number]) for number in numbers]


@on_fake_clock
async def test_the_folder_moves_ahead_while_groups_are_finished_and_the_engine_follows(tmp_path: Path) -> None:
    machine = of(tmp_path / "node", count=1)
    (engine,), fleet, versions = machine.fleet.engines, machine.fleet, machine.versions

    async def move() -> None:
        async with fleet.exclusive(steps(versions, 1, 2)):
            assert fleet.current == versions[2]
            await fleet.hold(versions[2])

    async with anyio.create_task_group() as tasks, engine.shared():
        tasks.start_soon(move)
        await until(lambda: versions.on_disk == versions[2].root)
        assert (machine.at(), fleet.current) == ([0], versions[2])
        assert len(await engine.generate(JOB)) == 1
    assert machine.at() == [2]
    assert [call for call in machine.processes[0].log if "step" in call] == ["step_to"]


@on_fake_clock
async def test_a_step_that_cannot_be_made_ahead_leaves_the_folder_before_it(tmp_path: Path) -> None:
    machine = of(tmp_path / "node", count=1)
    fleet, versions = machine.fleet, machine.versions
    versions.payloads[1].write_bytes(b"damaged")
    async with fleet.exclusive(steps(versions, 1, 2)):
        assert fleet.current == versions[1]
    assert (machine.at(), versions.on_disk) == ([1], versions[1].root)


@on_fake_clock
async def test_an_engine_that_dies_while_the_folder_is_ahead_loads_the_version_that_is_there(tmp_path: Path) -> None:
    machine = of(tmp_path / "node", count=1)
    (engine,), fleet, versions = machine.fleet.engines, machine.fleet, machine.versions

    async def move() -> None:
        async with fleet.exclusive(steps(versions, 1)):
            await fleet.hold(versions[1])

    async with anyio.create_task_group() as tasks, engine.shared():
        tasks.start_soon(move)
        await until(lambda: fleet.current == versions[1])
        machine.processes[0].crashes = 1
        with pytest.raises(ChildDied):
            await engine.generate(JOB)
        await engine.recover()
        assert engine.current == versions[1], "its groups of version 0 are given back"
    assert machine.at() == [1]


@on_fake_clock
async def test_an_engine_that_falls_out_keeps_no_other_from_moving_and_comes_back(tmp_path: Path) -> None:
    machine = of(tmp_path)
    sick, well = machine.fleet.engines
    start = machine.processes[0].start

    async def refuse() -> None:
        raise OSError(19, "the GPU is gone")

    machine.processes[0].start = refuse  # type: ignore[method-assign]
    await machine.fleet.start()
    assert machine.fleet.first is well
    assert "the GPU is gone" in machine.fleet.out[sick]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(machine.fleet.keep_up, sick)
        await machine.move(2)
        await anyio.sleep(1)
        assert machine.at() == [0, 2]
        machine.processes[0].start = start  # type: ignore[method-assign]
        await until(lambda: machine.at() == [2, 2])
        tasks.cancel_scope.cancel()
    assert not machine.fleet.out


@on_fake_clock
async def test_an_engine_that_is_behind_goes_to_the_version_of_the_folder_before_it_leads(tmp_path: Path) -> None:
    machine = of(tmp_path)
    first, second = machine.fleet.engines
    async with first.shared():
        await machine.move(1)
    async with second.shared():
        assert machine.at() == [0, 1]
        await machine.move(2)
    assert machine.at() == [2, 1]
    assert machine.versions.on_disk == machine.versions[2].root
    assert machine.processes[0].log.count("load") == 1


@on_fake_clock
async def test_the_leader_that_falls_out_in_a_step_leaves_it_to_another(tmp_path: Path) -> None:
    machine = of(tmp_path)
    with pytest.raises(ChildError, match="no memory"):
        async with machine.fleet.exclusive():
            raise EngineUnusable("no memory")
    (sick,) = machine.fleet.out
    await machine.move(1)
    assert machine.at()[1 - machine.fleet.engines.index(sick)] == 1


@on_fake_clock
async def test_when_all_are_out_the_reason_ends_the_node(tmp_path: Path) -> None:
    machine = of(tmp_path)
    for process in machine.processes:
        process.start = _refused  # type: ignore[method-assign]
    with pytest.raises(EngineUnusable, match="the GPU is gone"):
        await machine.fleet.start()


@on_fake_clock
async def test_a_program_that_this_user_may_not_run_is_not_told_as_a_file_that_cannot_be_written(
    tmp_path: Path,
) -> None:
    machine = of(tmp_path)
    for process in machine.processes:
        process.start = _forbidden  # type: ignore[method-assign]
    with pytest.raises(EngineUnusable, match=r"cannot start the engine's process \(Permission denied\): check the"):
        await machine.fleet.start()


async def _refused() -> None:
    raise OSError(19, "the GPU is gone")


async def _forbidden() -> None:
    raise PermissionError(13, "Permission denied", "/opt/engine/python3")


@on_fake_clock
async def test_damaged_weights_are_told_once_and_none_are_current_until_there_are_new_ones(tmp_path: Path) -> None:
    machine, told = of(tmp_path), list[LoadedVersion]()
    machine.fleet.on_corrupt = told.append
    file = machine.versions.folder / "snapshot.safetensors"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    async with machine.fleet.engines[1].shared():
        assert machine.at() == [0, None]
    assert told == [machine.versions[0]]
    assert machine.fleet.current is None
    file.write_bytes(good)
    async with machine.fleet.exclusive():
        await machine.fleet.hold(machine.versions[0])
    assert machine.fleet.current == machine.versions[0]


@on_fake_clock
async def test_the_devices_are_named_together(tmp_path: Path) -> None:
    machine = of(tmp_path, count=3)
    assert machine.fleet.hardware == ""
    await machine.fleet.start()
    assert machine.fleet.hardware == "3 x a table"
    assert machine.fleet.deaths == 0


@on_fake_clock
async def test_one_engine_alone_keeps_no_steps(tmp_path: Path) -> None:
    machine = of(tmp_path, count=1)
    for number in (1, 2, 3):
        await machine.move(number)
    assert len(open_weights(machine.versions.folder).behind()) == 1
    assert Snapshot(present_file(machine.versions.folder)).root == machine.versions[3].root
