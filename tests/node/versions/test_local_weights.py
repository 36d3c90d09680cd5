"""The local weights: stepped in place, interrupted by a kill at every write, replaced as a whole."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from echo2.node.versions import follower as follower_module
from echo2.node.versions import local_weights
from echo2.node.versions.local_weights import InvalidChain, LocalWeights
from echo2.p2p.envelope import Verified, document_hash, verify_named
from echo2.p2p.identity import generate_key
from echo2.runtime import memory_folder
from echo2.weights import logged_weights
from echo2.weights.diff import Payload, encode
from echo2.weights.documents import Edge
from echo2.weights.errors import Stopped
from echo2.weights.journaled import Rolling
from echo2.weights.logged_weights import open_weights
from echo2.weights.snapshot import Snapshot
from tests.support.bigram import nudged, random_table, write_table
from tests.support.clock import on_fake_clock
from tests.support.cuts import cuts
from tests.support.fake_coordinator import InProcessEngine, until
from tests.support.full_disk import no_room_below
from tests.support.nfs_disk import nfs_disk, only_linux
from tests.support.quick_disk import quick_folder
from tests.support.small_run import SmallRun
from tests.support.swarm import accepted, working


class Dying(InProcessEngine):
    """An engine whose process dies in its next step, before or after its memory has changed."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when

    async def call(self, method, body, type_, *, timeout=None, withdraw=False):  # type: ignore[no-untyped-def]
        when = ""
        if method == "step_to":
            when, self.when = self.when, ""
        if when == "before":
            self.engine = None
        answer = await super().call(method, body, type_, timeout=timeout)
        if when == "behind":
            self.engine = None
            self._running()
        return answer


@pytest.mark.parametrize("when", ["before", "behind"])
@on_fake_clock
async def test_an_engine_that_dies_within_a_step_is_followed_by_one_that_goes_on(
    small_run: SmallRun, when: str
) -> None:
    coordinator = small_run.coordinator
    engine = Dying(when)
    async with small_run.working(engine=engine) as node:
        await until(lambda: node.daemon.engine.current)
        await coordinator.publish(1)
        await until(lambda: node.holds(1))
        await until(lambda: node.daemon.engine.deaths == 1)
        assert engine.log.count("step_to") <= 1, "the process after it loads the version that the folder has"
        assert node.daemon.follower.refused == []
        before = accepted(node)
        await until(lambda: accepted(node) >= before + 2)
        assert "refused" not in node.daemon.outbox.counts()


@on_fake_clock
async def test_a_node_killed_while_its_folder_is_ahead_starts_at_the_version_of_the_folder(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    key, engine = generate_key(), InProcessEngine(seconds=30.0)
    async with small_run.serving():
        node = small_run.node(key=key, engine=engine)
        async with working(node):
            await until(lambda: coordinator.leases)
            await coordinator.publish(1)
            await until(lambda: node.daemon.follower._weights.root() == coordinator.snapshots[1].root)
    (own,) = node.daemon.fleet.engines
    assert own.current is not None
    assert own.current.version == 0
    again = small_run.node(key=key)
    await again.daemon.follower.resume()
    assert again.daemon.engine.current.version == 1
    again.daemon.close()


@on_fake_clock
async def test_a_node_that_missed_more_than_the_edges_span_fetches_full_weights(
    small_run: SmallRun, tmp_path: Path
) -> None:
    coordinator = small_run.coordinator
    key = generate_key()
    async with small_run.serving():
        node = small_run.node(key=key)
        async with working(node):
            await until(lambda: node.daemon.engine.current)
        coordinator.snapshots.clear()
        coordinator.edges.clear()
        await coordinator.publish(5, 3)
        for version in (6, 7):
            await coordinator.publish(version)
        again = small_run.node(key=key)
        async with working(again):
            await until(lambda: again.holds(7))
            assert not {"step_by", "step_to"} & set(again.engine.log)
            before = accepted(again)
            await until(lambda: accepted(again) >= before + 2)
        folders = sorted(path.name for path in (tmp_path / "node").rglob("weights/*"))
        assert folders == ["held"]


def chain_of(folder: Path, count: int, size: int = 16) -> tuple[list[tuple[Verified[Edge], Path]], list[Snapshot]]:
    """Return a full edge and `count` diffs after it, and the snapshots that they produce."""
    table, snapshots, chain = random_table(0, size), list[Snapshot](), list[tuple[Verified[Edge], Path]]()
    for version in range(count + 1):
        snapshot = write_table(folder / f"{version}.safetensors", table)
        payload = encode(snapshots[-1] if snapshots else None, snapshot, folder / f"{version}.edge")
        chain.append((_edge(payload, version), payload.path))
        snapshots.append(snapshot)
        table = nudged(table, version)
    return chain, snapshots


def _edge(payload: Payload, version: int) -> Verified[Edge]:
    edge = Edge(
        era=1, base=version - 1 if payload.base_root else None, base_root=payload.base_root, version=version,
        root=payload.root, codec=payload.codec, payload_hash=payload.hash, length=payload.length, chunk_size=1 << 14,
        chunk_root=bytes(32),
    )  # fmt: skip
    return verify_named(edge.to_bytes(), document_hash(edge.to_bytes()), Edge.from_bytes)


def test_new_weights_replace_the_old_ones_only_by_swap_in(tmp_path: Path) -> None:
    chain, snapshots = chain_of(tmp_path, 2)
    weights = LocalWeights(tmp_path / "weights", quota=1 << 20)
    assert weights.root() is None
    weights.make(chain[:1])
    weights.swap_in()
    assert weights.root() == snapshots[0].root
    weights.make(chain)
    assert Rolling(weights.path).root == snapshots[0].root
    weights.swap_in()
    assert weights.root() == snapshots[2].root
    assert Snapshot(weights.path / "snapshot.safetensors").root == snapshots[2].root
    assert weights.room() <= (1 << 20) - snapshots[2].nbytes


@pytest.mark.slow
def test_a_replacement_or_a_drop_that_is_cut_anywhere_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    chain, snapshots = chain_of(tmp_path, 3)
    with quick_folder() as folder:
        weights = LocalWeights(folder / "weights", quota=1 << 20)

        def life() -> Iterator[set[bytes | None]]:
            yield {weights.root()}
            for steps in (chain[:2], chain[:1], chain):
                weights.make(steps)
                weights.swap_in()
                yield {weights.root()}
            weights.drop()
            yield {None, snapshots[3].root}

        for cut in cuts(life(), folder):
            reopened = LocalWeights(folder / "weights", quota=1 << 20)
            assert reopened.root() in cut.before | cut.after, cut.where
            if (root := reopened.root()) is not None:
                assert Snapshot(open_weights(reopened.path).path).root == root, cut.where
            assert {path.name for path in (folder / "weights").iterdir()} <= {"held"}, cut.where
            reopened.make(chain)
            reopened.swap_in()
            assert reopened.root() == snapshots[3].root, cut.where


def test_an_invalid_chain_leaves_the_weights_unchanged(tmp_path: Path) -> None:
    chain, snapshots = chain_of(tmp_path, 2)
    weights = LocalWeights(tmp_path / "weights", quota=1 << 20)
    weights.make(chain[:1])
    weights.swap_in()
    lies = {
        "too large": (chain, 100),
        "a link missing": ([chain[0], chain[2]], 1 << 20),
        "another payload": ([chain[0], (chain[1][0], chain[2][1])], 1 << 20),
    }
    for steps, quota in lies.values():
        with pytest.raises(InvalidChain, match="signed edge"):
            LocalWeights(tmp_path / "weights", quota=quota).make(steps)
        assert LocalWeights(tmp_path / "weights", quota=1 << 20).root() == snapshots[0].root


@pytest.fixture(params=["a disk of this machine", pytest.param("NFS", marks=only_linux)])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a disk of each kind."""
    with nfs_disk(tmp_path) if request.param == "NFS" else contextlib.nullcontext():
        yield tmp_path


def test_a_damaged_folder_of_weights_is_removed(disk: Path) -> None:
    chain, _ = chain_of(disk, 1)
    weights = LocalWeights(disk / "weights", quota=1 << 20)
    weights.make(chain)
    weights.swap_in()
    (journal,) = (weights.path / "undo").iterdir()
    journal.write_bytes(journal.read_bytes()[:-1])
    assert weights.root() is None
    assert not weights.path.exists()


def test_weights_that_a_reader_has_open_are_replaced_again_and_again(disk: Path) -> None:
    chain, snapshots = chain_of(disk, 2)
    weights, readers = LocalWeights(disk / "weights", quota=1 << 20), list[Snapshot]()
    for count in (1, 2, 3, 1):
        weights.make(chain[:count])
        weights.swap_in()
        assert weights.root() == snapshots[count - 1].root
        readers.append(Snapshot(weights.path / "snapshot.safetensors"))
    readers.clear()
    assert weights.root() == snapshots[0].root
    assert [path.name for path in (disk / "weights").iterdir()] == ["held"]


def logged(folder: Path, steps: int, quota: int = 1 << 20) -> tuple[LocalWeights, list[Snapshot]]:
    """Make weights, and bring so many diffs to them."""
    chain, snapshots = chain_of(folder, steps, 128)
    weights = LocalWeights(folder / "weights", quota=quota)
    weights.make(chain[:1])
    weights.swap_in()
    assert weights.root() == snapshots[0].root
    for (_, payload), snapshot in zip(chain[1:], snapshots[1:], strict=True):
        open_weights(weights.path).apply(payload, snapshot.root)
    return weights, snapshots


def test_a_log_beyond_two_thirds_of_the_weights_is_folded(tmp_path: Path) -> None:
    weights, snapshots = logged(tmp_path, 4)
    log = weights.path / "log"
    assert len(list(log.iterdir())) == 4
    weights.fold()
    assert len(list(log.iterdir())) == 4, "the diffs are small"
    spare = sum(path.stat().st_size for path in log.iterdir()) - 1
    weights.quota = (weights.path / "snapshot.safetensors").stat().st_size + spare * 3 // 2
    assert weights.is_fold_due()
    weights.fold()
    assert list(log.iterdir()) == []
    assert (weights.path / "snapshot.safetensors").read_bytes() == snapshots[4].path.read_bytes()
    assert weights.root() == snapshots[4].root


def test_a_start_folds_many_diffs_and_leaves_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, snapshots = logged(tmp_path, 4)
    weights.free_memory()
    assert weights.root() == snapshots[4].root
    assert len(list((weights.path / "log").iterdir())) == 4
    monkeypatch.setattr(local_weights, "START_STEPS", 4)
    assert weights.root() == snapshots[4].root
    assert list((weights.path / "log").iterdir()) == []


def test_a_log_of_very_many_small_diffs_is_folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, _ = logged(tmp_path, 4)
    assert not weights.is_fold_due()
    monkeypatch.setattr(local_weights, "MOST_STEPS", 4)
    assert weights.is_fold_due()


def test_a_node_that_ends_leaves_the_making_of_its_version_to_the_next_start(tmp_path: Path) -> None:
    weights, snapshots = logged(tmp_path, 4)
    weights.free_memory()
    weights.ends.set()
    with pytest.raises(Stopped):
        weights.root()
    weights.ends.clear()
    assert weights.root() == snapshots[4].root


def test_where_memory_lacks_weights_are_stepped_on_disk_and_go_on_from_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, snapshots = logged(tmp_path, 2)
    weights.free_memory()
    monkeypatch.setattr(memory_folder, "available_memory", lambda: 0)
    assert weights.root() == snapshots[2].root
    assert not (weights.path / "log").exists()
    assert (weights.path / "snapshot.safetensors").read_bytes() == snapshots[2].path.read_bytes()
    monkeypatch.undo()
    assert weights.root() == snapshots[2].root
    assert (weights.path / "log").is_dir()


def test_a_start_whose_memory_another_process_has_steps_on_disk_and_says_so(tmp_path: Path) -> None:
    """Of two containers that share /dev/shm and have their homes at one path, each found the other's weights."""
    weights, snapshots = logged(tmp_path, 2)
    weights.free_memory()
    other = memory_folder.claim_memory(weights.path)
    assert other is not None
    theirs = memory_folder.memory_folder(weights.path) / "weights"
    theirs.mkdir()
    (theirs / "origin").write_text("00" * 32)
    with capture_logs() as logs:
        assert weights.root() == snapshots[2].root
    assert [one["reason"] for one in logs if one["event"] == "weights are stepped on disk"] == [
        "another process has their folder in /dev/shm, perhaps in a container"
    ]
    assert (weights.path / "snapshot.safetensors").read_bytes() == snapshots[2].path.read_bytes()
    weights.free_memory()
    assert (theirs / "origin").exists(), "what another process has stays"
    other.release()
    assert weights.root() == snapshots[2].root
    assert (weights.path / "log").is_dir()


def test_a_start_that_finds_memory_full_after_all_steps_on_disk(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, snapshots = logged(disk, 2)
    weights.free_memory()
    monkeypatch.setattr("echo2.weights.snapshot.writing", no_room_below(memory_folder.MEMORY_ROOT))
    with capture_logs() as logs:
        assert weights.root() == snapshots[2].root
    (reason,) = [one["reason"] for one in logs if one["event"] == "weights are stepped on disk"]
    assert reason.startswith("no room to write /dev/shm/")
    assert (weights.path / "snapshot.safetensors").read_bytes() == snapshots[2].path.read_bytes()


@on_fake_clock
async def test_a_node_whose_memory_another_user_fills_steps_on_disk_and_works_on(
    small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = small_run.coordinator
    async with small_run.working() as node:
        await coordinator.publish(1)
        await until(lambda: node.holds(1))
        weights = node.daemon.follower._weights
        assert logged_weights.is_in_memory(weights.path)
        monkeypatch.setattr("echo2.weights.journaled.writing", no_room_below(memory_folder.MEMORY_ROOT))
        with capture_logs() as logs:
            for version in (2, 3):
                await coordinator.publish(version)
                await until(lambda version=version: node.holds(version))  # type: ignore[misc]
        assert [one["event"] for one in logs].count("weights are stepped on disk") == 1
        assert not logged_weights.is_in_memory(weights.path)
        assert Snapshot(weights.path / "snapshot.safetensors").root == coordinator.snapshots[3].root
        before = accepted(node)
        await until(lambda: accepted(node) >= before + 1)


def test_a_damaged_log_costs_one_sentence_and_its_end(tmp_path: Path) -> None:
    weights, snapshots = logged(tmp_path, 3)
    weights.free_memory()
    diff = sorted((weights.path / "log").iterdir())[1]
    data = diff.read_bytes()
    diff.unlink()
    diff.write_bytes(data[:-1])
    with capture_logs() as logs:
        assert weights.root() == snapshots[1].root
        assert weights.root() == snapshots[1].root
    (entry,) = [one for one in logs if one["log_level"] == "warning"]
    assert entry["event"] == "log of diffs cut"
    assert entry["reason"] == f"{diff} is damaged or cut short: it and what follows are fetched again, 1 diffs stay"


@on_fake_clock
async def test_a_node_with_a_damaged_log_fetches_what_it_lost_and_works_on(small_run: SmallRun) -> None:
    coordinator, key = small_run.coordinator, generate_key()
    async with small_run.serving():
        node = small_run.node(key=key)
        async with working(node):
            await until(lambda: node.holds(0))
            for version in (1, 2):
                await coordinator.publish(version)
                await until(lambda version=version: node.holds(version))  # type: ignore[misc]
            log = node.daemon.follower._weights.path / "log"
            files = sorted(log.iterdir())
            assert len(files) == 2
        assert not logged_weights.is_in_memory(log.parent), "the end frees the memory"
        data = files[1].read_bytes()
        files[1].unlink()
        files[1].write_bytes(data[:-1])
        again = small_run.node(key=key)
        async with working(again):
            await until(lambda: again.holds(2))
            assert len(list(log.iterdir())) == 2
            before = accepted(again)
            await until(lambda: accepted(again) >= before + 1)


@on_fake_clock
async def test_a_node_frees_the_memory_that_a_killed_one_took_for_another_run(small_run: SmallRun) -> None:
    async with small_run.serving():
        node = small_run.node()
        other = node.daemon.context.folder.with_name("other") / "weights" / "held"
        other.mkdir(parents=True)
        left = memory_folder.make_memory_folder(other)
        async with working(node):
            await until(lambda: node.holds(0))
            assert not left.exists()
            assert logged_weights.is_in_memory(node.daemon.follower._weights.path)


@on_fake_clock
async def test_a_pause_frees_the_memory_and_its_end_takes_it_again(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.working() as node:
        await coordinator.publish(1)
        await until(lambda: node.holds(1))
        folder = node.daemon.follower._weights.path
        assert logged_weights.is_in_memory(folder)
        node.daemon.run_state.pause(None)
        await until(lambda: not logged_weights.is_in_memory(folder))
        await coordinator.publish(2)
        await anyio.sleep(20)
        assert not logged_weights.is_in_memory(folder), "a version that comes meanwhile takes none"
        node.daemon.run_state.resume()
        await until(lambda: node.holds(2))
        assert logged_weights.is_in_memory(folder)
        before = accepted(node)
        await until(lambda: accepted(node) >= before + 1)


async def test_a_pause_takes_no_memory_from_a_start_that_makes_its_version_there(
    small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "FREE_SECONDS", 0.2)
    async with small_run.working() as node:
        await until(lambda: node.holds(0))
        follower, weights = node.daemon.follower, node.daemon.follower._weights
        begun, go, root = threading.Event(), threading.Event(), weights.root

        def slow() -> bytes | None:
            begun.set()
            assert go.wait(30)
            return root()

        weights.root = slow  # type: ignore[method-assign]
        starting = asyncio.create_task(follower.resume())
        await until(begun.is_set)
        node.daemon.run_state.pause(None)
        await until(lambda: node.daemon.fleet.rests)
        await anyio.sleep(1.0)
        assert logged_weights.is_in_memory(weights.path)
        go.set()
        await starting
        assert not logged_weights.is_in_memory(weights.path), "it is freed once it is made"
        node.daemon.run_state.resume()
        before = accepted(node)
        await until(lambda: accepted(node) >= before + 1)
        assert node.holds(0)


@on_fake_clock
async def test_memory_that_rotted_is_found_by_the_fold_and_the_weights_are_fetched_again(small_run: SmallRun) -> None:
    coordinator = small_run.coordinator
    async with small_run.working() as node:
        await until(lambda: node.holds(0))
        await coordinator.publish(1)
        await until(lambda: node.holds(1))
        follower = node.daemon.follower
        present = logged_weights.present_file(follower._weights.path)
        data = bytearray(present.read_bytes())
        data[-3] ^= 1
        present.write_bytes(data)
        with capture_logs() as logs:
            await follower._fold(1)
        assert [one["event"] for one in logs if one["log_level"] == "warning"] == ["weights are fetched again"]
        assert node.daemon.fleet.current is None
        await until(lambda: node.daemon.fleet.current is not None)
        assert node.holds(1)
        assert Snapshot(logged_weights.present_file(follower._weights.path)).root == coordinator.snapshots[1].root
        before = accepted(node)
        await until(lambda: accepted(node) >= before + 1)


@on_fake_clock
async def test_a_node_that_ends_in_a_pause_takes_no_memory_again(small_run: SmallRun) -> None:
    async with small_run.serving():
        node = small_run.node()
        async with working(node):
            await until(lambda: node.holds(0))
            folder = node.daemon.follower._weights.path
            node.daemon.run_state.pause(None)
            await until(lambda: not logged_weights.is_in_memory(folder))
            with capture_logs() as logs:
                node.daemon.run_state.finish("the test")
                await anyio.sleep(5)
            assert not logged_weights.is_in_memory(folder)
            assert not [one for one in logs if one["event"].startswith("weights are")]
