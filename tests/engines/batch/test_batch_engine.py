"""An engine over a model that is a table: steps, failures in mid-step, refused jobs."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from echo2.engines.batch.batch_engine import BatchEngine
from echo2.engines.batch.job_rollouts import JobRollouts
from echo2.engines.batch.stepped_weights import SteppedWeights
from echo2.engines.engine import EngineError, EngineRows, Finished, Job, Loaded
from echo2.tasks.tokenizer import char_tokenizer
from echo2.weights.codec.frames import Bits
from echo2.weights.diff import Change, encode
from echo2.weights.errors import BadSnapshot, UnfitSnapshot, WrongBase
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot
from tests.support.bad_jobs import BAD_JOBS
from tests.support.bigram import nudged, random_table, write_table
from tests.support.tiny_model import job


class Echo:
    """A batch whose groups end with no samples in the next step."""

    def __init__(self) -> None:
        self._tickets: list[int] = []

    @property
    def rows(self) -> EngineRows:
        return EngineRows(running=len(self._tickets), limit=8)

    def begin(self, ticket: int, job: Job) -> None:
        self._tickets.append(ticket)

    def cancel(self, ticket: int) -> None:
        if ticket in self._tickets:
            self._tickets.remove(ticket)

    def step(self) -> list[Finished]:
        ended, self._tickets = self._tickets, []
        return [Finished(ticket, []) for ticket in ended]


class Table(NamedTuple):
    """A table in memory, as `LiveModel`."""

    bits: Bits
    weights: SteppedWeights
    rollouts: JobRollouts
    batch: Echo
    log: list[str]

    def describe_loaded(self) -> Loaded:
        return self.weights.describe_loaded(self.bits.size, self.bits.nbytes)

    def apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self.bits[change.index] = change.bits
            if "break" in self.log:
                raise RuntimeError("the device went away")

    def close(self) -> None:
        self.log.append("close")


class TableEngine(BatchEngine[Table]):
    """`log`: what happened to its models; with "break" in it, the next step fails half-way; with "unfit", no
    weights fit."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    @property
    def bits(self) -> Bits:
        return self._live_model().bits

    def build(self, model: Path, weights: SteppedWeights) -> Table:
        self.log.append("build")
        if "unfit" in self.log:
            raise BadSnapshot("the weights are of another model")
        bits = weights.snapshot.bits("table").copy()
        return Table(bits, weights, JobRollouts(model, 64), Echo(), self.log)


class World(NamedTuple):
    """A model folder, two versions as files, the payload between them, and a folder at the first version."""

    model: Path
    old: Snapshot
    new: Snapshot
    payload: Path
    folder: Path


@pytest.fixture
def world(tmp_path: Path) -> World:
    char_tokenizer().save(str(tmp_path / "tokenizer.json"))
    table = random_table(1)
    old = write_table(tmp_path / "old.snapshot", table)
    new = write_table(tmp_path / "new.snapshot", nudged(table, 2))
    encode(old, new, tmp_path / "payload")
    Rolling.create(tmp_path / "rolling", old)
    return World(tmp_path, old, new, tmp_path / "payload", tmp_path / "rolling")


@pytest.fixture
def engine(world: World) -> TableEngine:
    engine = TableEngine()
    engine.load(world.model, world.folder)
    return engine


def test_steps_change_the_live_model_and_the_folder_alike(engine: TableEngine, world: World) -> None:
    live = engine.bits
    assert engine.step_by(world.payload, world.new.root, 1).root == world.new.root
    assert np.array_equal(live, world.new.bits("table"))
    assert Rolling(world.folder).root == world.new.root
    undone = engine.step_to(world.old.root)
    assert (undone.root, undone.ahead) == (world.old.root, [world.new.root])
    assert np.array_equal(live, world.old.bits("table"))
    assert engine.bits is live
    with pytest.raises(WrongBase):
        engine.step_to(bytes(32))
    assert engine.step_to(world.new.root).behind == [world.old.root]
    assert engine.log == ["build"]


def test_a_model_that_was_left_half_changed_is_dropped_and_the_folder_loads_anew(
    engine: TableEngine, world: World
) -> None:
    engine.log.append("break")
    with pytest.raises(RuntimeError, match="went away"):
        engine.step_by(world.payload, world.new.root, 0)
    assert engine.log == ["build", "break", "close"]
    with pytest.raises(EngineError, match="no weights are loaded: call load first"):
        engine.begin(1, job())
    assert engine.load(world.model, world.folder).root == world.new.root
    assert np.array_equal(engine.bits, world.new.bits("table"))


def test_the_old_model_is_freed_before_the_next_one_is_built(engine: TableEngine, world: World) -> None:
    engine.load(world.model, world.new.path)
    assert engine.log == ["build", "close", "build"]
    with pytest.raises(EngineError, match="cannot be stepped"):
        engine.step_by(world.payload, world.new.root, 0)


def test_a_load_that_fails_leaves_nothing_loaded(engine: TableEngine, world: World) -> None:
    world.new.path.write_bytes(b"no snapshot")
    with pytest.raises(BadSnapshot):
        engine.load(world.model, world.new.path)
    with pytest.raises(EngineError, match="call load first"):
        engine.step()


def test_whole_weights_that_do_not_fit_are_told_from_damaged_ones(engine: TableEngine, world: World) -> None:
    """A node fetches damaged weights again; those of another model would not fit the next time either."""
    engine.log.append("unfit")
    with pytest.raises(UnfitSnapshot, match="of another model"):
        engine.load(world.model, world.new.path)
    world.new.path.write_bytes(b"no snapshot")
    with pytest.raises(BadSnapshot) as damaged:
        engine.load(world.model, world.new.path)
    assert type(damaged.value) is BadSnapshot


def test_groups_pass_to_the_batch_of_the_loaded_model(engine: TableEngine) -> None:
    engine.begin(1, job())
    engine.begin(2, job())
    engine.cancel(1)
    assert engine.rows == EngineRows(running=1, limit=8)
    assert engine.step() == [Finished(2, [])]


@pytest.mark.parametrize(("changes", "sentence"), BAD_JOBS.values(), ids=BAD_JOBS.keys())
def test_a_job_that_cannot_be_generated_is_not_queued(
    changes: dict[str, object], sentence: str, engine: TableEngine
) -> None:
    with pytest.raises(EngineError, match=sentence):
        engine.begin(1, msgspec.structs.replace(job(), **changes))
    assert engine.step() == []


def test_before_a_load_there_is_nothing_to_cancel_and_no_row() -> None:
    engine = TableEngine()
    engine.cancel(1)
    assert engine.rows == EngineRows()
    with pytest.raises(EngineError, match="no weights"):
        engine.begin(1, job())
