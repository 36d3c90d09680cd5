"""Costs are measured by a real engine of a class that the run admits, signed, and read by a coordinator."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from echo2.coordinator.accounts.cost_tables import CostTables
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.calibration import cost_times
from echo2.coordinator.calibration.calibrate import LOCK
from echo2.coordinator.calibration.cost_fit import DENOMINATOR, Factors, GroupShape, shapes
from echo2.coordinator.calibration.cost_times import calibrate_costs, shape_times
from echo2.coordinator.database.database import Database
from echo2.coordinator.run.setup import Run
from echo2.coordinator.verification.open_classes import ledger_keys
from echo2.engines.engine import EngineRows, Job
from echo2.engines.process.process import EngineProcess
from echo2.runtime.child import ChildDied
from echo2.runtime.errors import LocalFault
from echo2.runtime.lock import lock_file
from tests.support import tiny_model
from tests.support.run_folders import NOW, make_run, write_model

CLASS = "transformers/float32/cpu"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", write_model(tmp_path / "model"), engines=("transformers/float32",))


@pytest.mark.parametrize(
    ("engine_class", "says"),
    [
        ("transformers/float32", "name engine/dtype/device"),
        ("transformers/int3/cpu", "name engine/dtype/device"),
        ("transformers/bfloat16/cpu", "the run does not admit transformers/bfloat16/cpu"),
        ("abacus/float32/cpu", "engine abacus is not in this build"),
        ("", "name engine/dtype/device"),
    ],
)
def test_another_class_is_refused_with_the_reason(engine_class: str, says: str, run: Run) -> None:
    with pytest.raises(LocalFault, match=says):
        calibrate_costs(run, engine_class, NOW)


def measure(run: Run) -> Factors:
    """Measure, let the ledger take what was measured, and return it."""
    path, factors = calibrate_costs(run, CLASS, NOW)
    assert path.parent == run.folder.calibrations
    assert {one.name for one in path.parent.iterdir()} == {path.name, LOCK}
    with Database.open(run.folder.database) as database:
        tables = CostTables(Ledger(database))
        (costs,) = tables.read(run.folder.calibrations, run.id, ledger_keys(run.chain), NOW)
        assert tables.now == (1, costs)
    assert (costs.attention, costs.decode, costs.at) == (factors.attention, factors.decode, NOW)
    assert any(one.startswith("torch") for one in costs.builds)
    assert "a sampled token costs" in factors.sentence()
    return factors


@pytest.mark.slow
def test_a_real_engine_is_measured_and_the_ledger_takes_its_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tiny_model.make(tmp_path / "model")
    made.model.save_pretrained(made.folder)
    monkeypatch.setattr(cost_times, "WARM_GROUPS", 4)
    measure(make_run(tmp_path / "run", made.folder, engines=("transformers/float32",)))


def test_an_engine_in_simulated_time_is_measured_and_the_ledger_takes_its_costs(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _Engine()

    async def weights(*_: object) -> None:
        return None

    @asynccontextmanager
    async def started(*_: object) -> AsyncIterator[_Engine]:
        yield engine

    monkeypatch.setattr(cost_times, "newest_weights", weights)
    monkeypatch.setattr(cost_times, "engine_process", started)
    monkeypatch.setattr(cost_times, "clock_of", lambda *_: engine.clock)
    factors = measure(run)
    assert (factors.attention, factors.decode) == (32, DENOMINATOR), "least attention; a sampled token as a given one"
    assert factors.spread < 1.05


def test_an_engine_that_dies_leaves_no_file_and_a_reason(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def weights(*_: object) -> None:
        return None

    @asynccontextmanager
    async def dying(*_: object) -> AsyncIterator[None]:
        raise ChildDied("engine", -9, "")
        yield

    monkeypatch.setattr(cost_times, "newest_weights", weights)
    monkeypatch.setattr(cost_times, "engine_process", dying)
    with pytest.raises(LocalFault, match="cannot measure costs by transformers/float32/cpu here: engine ended with -9"):
        calibrate_costs(run, CLASS, NOW)
    assert not list(run.folder.calibrations.glob("*.costs"))


def test_one_measurement_of_a_run_at_a_time(run: Run) -> None:
    run.folder.calibrations.mkdir(exist_ok=True)
    with lock_file(run.folder.calibrations / LOCK, name_holder=True), pytest.raises(LocalFault, match="wait for its"):
        calibrate_costs(run, CLASS, NOW)


def test_the_groups_of_a_shape_have_its_lengths_and_no_two_are_alike() -> None:
    shape = shapes(64, 8)[-1]
    one, other = (cost_times.group_of_shape(shape, number, vocabulary=64) for number in (1, 2))
    assert GroupShape(len(one.prompt), one.limit) == shape
    assert max(one.prompt) < 64
    assert one.prompt != other.prompt
    assert not set(one.seeds) & set(other.seeds)


class _Engine:
    """An engine in simulated time: a token costs a millisecond, and the memory of a longer prompt than any before two
    seconds more. `clock` counts in steps of 10 ms, as the system does."""

    rows = EngineRows(running=0, waiting=0, limit=16, parked=0)
    probed = SimpleNamespace(builds=["torch 2"])

    def __init__(self) -> None:
        self.seconds, self.longest = 0.0, 0
        self.shapes = list[GroupShape]()

    async def generate_all(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.shapes.append(GroupShape(len(job.prompt), job.limit))
            self.seconds += (len(job.prompt) + len(job.seeds) * job.limit) / 1000
            self.seconds += 2.0 if len(job.prompt) > self.longest else 0.0
            self.longest = max(self.longest, len(job.prompt))

    def clock(self) -> float:
        return int(100 * self.seconds) / 100


async def test_the_memory_that_a_first_long_prompt_takes_is_no_cost_of_its_shape() -> None:
    engine, wanted = _Engine(), [GroupShape(16, 4), GroupShape(1024, 4), GroupShape(1024, 96)]
    times = await shape_times(cast(EngineProcess, engine), wanted, engine.clock, 1000)
    assert [round(one.seconds, 2) for one in times] == [0.05, 1.06, 1.79]
    assert engine.shapes[cost_times.WARM_GROUPS] == GroupShape(1024, 4), "the longest prompt, before any is measured"


async def test_a_short_shape_is_repeated_until_the_clock_can_tell() -> None:
    engine = _Engine()
    (one,) = await shape_times(cast(EngineProcess, engine), [GroupShape(1, 1)], engine.clock, 1000)
    assert one.seconds == pytest.approx(0.009, abs=0.0003)
    assert engine.shapes.count(GroupShape(1, 1)) > 2 * cost_times.ROUND_SECONDS / 0.009
