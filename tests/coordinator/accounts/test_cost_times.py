"""Costs are measured by a real engine of a class that the run admits, signed, and read by a coordinator."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.accounts import cost_times
from coordinator.accounts.cost_fit import GroupShape, shapes
from coordinator.accounts.cost_tables import CostTables
from coordinator.accounts.cost_times import calibrate_costs
from coordinator.accounts.ledger import Ledger
from coordinator.database import Database
from coordinator.run.calibrate import LOCK
from coordinator.run.setup import Run
from coordinator.verification.open_classes import ledger_keys
from runtime.child import ChildDied
from runtime.errors import LocalFault
from runtime.lock import lock_file
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
        ("abacus/float32/cpu", "the run does not admit abacus/float32/cpu"),
        ("", "name engine/dtype/device"),
    ],
)
def test_another_class_is_refused_with_the_reason(engine_class: str, says: str, run: Run) -> None:
    with pytest.raises(LocalFault, match=says):
        calibrate_costs(run, engine_class, NOW)


def test_a_real_engine_is_measured_and_the_ledger_takes_its_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tiny_model.make(tmp_path / "model")
    made.model.save_pretrained(made.folder)
    run = make_run(tmp_path / "run", made.folder, engines=("transformers/float32",))
    monkeypatch.setattr(cost_times, "WARM_GROUPS", 4)
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
