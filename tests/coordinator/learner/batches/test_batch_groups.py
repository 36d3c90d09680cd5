"""The learner reads the tokens of a batch from run.sqlite, beside the process that writes it."""

import random
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.batches.batch_groups import MissingTokens, TrainBatch, batch_metrics, cut_answers, read
from tests.support.group_world import ALICE, World
from tests.support.group_world import group as submission
from tests.support.tiny_learner import group, store


def test_groups_are_read_as_they_were_stored_in_the_requested_order(tmp_path: Path) -> None:
    chance = random.Random(3)
    stored = [group(chance, "one", 4, turns=(3, 2, 1)), group(chance, "two", 5)]
    path = store(tmp_path / "run.sqlite", stored)
    groups = read(path, [one.id for one in reversed(stored)])
    for one, other in zip(reversed(stored), groups, strict=True):
        assert (one.id, one.version, one.prompt.tolist()) == (other.id, other.version, other.prompt.tolist())
        for sample, again in zip(one.samples, other.samples, strict=True):
            assert (again.tokens.dtype, again.behaviour.dtype) == (np.int32, np.float32)
            assert again.tokens.tolist() == sample.tokens.tolist()
            assert again.behaviour.tobytes() == sample.behaviour.tobytes()
            assert (again.turns, again.reward) == (sample.turns, sample.reward)
    metrics = batch_metrics(TrainBatch(step=7, groups=groups))
    assert metrics["reward"] == pytest.approx(np.mean([s.reward for one in stored for s in one.samples]))
    assert (metrics["success"], metrics["groups"], metrics["tokens"]) == (0.0, 2.0, 4 * 4 + 4 * 5)


def test_answers_that_the_limit_cut_are_counted_by_their_last_token() -> None:
    one = group(random.Random(3), "one", 4)
    tokens = [[5, 6, 1], [5, 6, 7], [1, 5, 40], [5, 5, 5]]
    samples = [
        msgspec.structs.replace(sample, tokens=np.array(row, np.int32))
        for sample, row in zip(one.samples, tokens, strict=True)
    ]
    batch = TrainBatch(step=7, groups=[msgspec.structs.replace(one, samples=samples)])
    assert cut_answers(batch, (1,)) == 0.75
    assert cut_answers(batch, (1, 40)) == 0.5
    assert cut_answers(TrainBatch(step=7, groups=[]), (1,)) == 0.0


LOST = {
    "a payload that was dropped": ("UPDATE submissions SET payload = NULL", "were dropped"),
    "log-probabilities that were dropped": ("UPDATE buffer SET behaviour = NULL", "were dropped"),
    "a group that is not in the buffer": ("DELETE FROM buffer", "is not in the buffer"),
    "a payload that is none": ("UPDATE submissions SET payload = x'ff'", "cannot be read"),
    "a score too few": ("UPDATE submissions SET scores = x'90'", "cannot be read"),
}


@pytest.mark.parametrize("what", LOST)
def test_a_group_with_missing_data_is_an_error_of_its_batch(what: str, tmp_path: Path) -> None:
    statement, sentence = LOST[what]
    one, other = (group(random.Random(3), name) for name in ("one", "two"))
    path = store(tmp_path / "run.sqlite", [one, other])
    with Database.open(path) as database:
        key = "id" if " leases " in statement else "lease"
        database.do(f"{statement} WHERE {key} = ?", (one.id,))
    with pytest.raises(MissingTokens, match=f"{one.id.hex()}.*{sentence}"):
        read(path, [other.id, one.id])
    assert [group.id for group in read(path, [other.id])] == [other.id]


READER = """
import sys
from pathlib import Path
from echo2.coordinator.learner.batches.batch_groups import read
for line in sys.stdin:
    print(*(group.id.hex() for group in read(Path(sys.argv[1]), [bytes.fromhex(line.strip())])), flush=True)
assert not {"torch", "transformers"} & sys.modules.keys()
"""


@pytest.mark.slow
def test_another_process_reads_a_group_just_committed_and_blocks_no_writer(tmp_path: Path, repository: Path) -> None:
    """Draw and read groups at once, repeatedly, while this process keeps writing."""
    world = World(tmp_path)
    command = [sys.executable, "-c", READER, str(world.path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=repository) as reader:
        assert reader.stdin
        assert reader.stdout
        for _ in range(20):
            lease = world.lease(ALICE)
            world.submit(submission(lease))
            world.decide_all()
            print(lease.id.hex(), file=reader.stdin, flush=True)
            world.group_service.tick(world.now)
            assert reader.stdout.readline().split() == [lease.id.hex()]
            world.group_service.draw(world.now)
        reader.stdin.close()
        assert reader.wait(timeout=30) == 0
    # Nothing is left that keeps the log from being taken into the file.
    assert world.group_service.database.one("PRAGMA wal_checkpoint(TRUNCATE)")[0] == 0


def test_a_read_only_connection_cannot_write(tmp_path: Path) -> None:
    path = store(tmp_path / "run.sqlite", [group(random.Random(3), "one")])
    with Database.read(path) as database, database.reading(), pytest.raises(Exception, match="readonly"):
        database.do("DELETE FROM buffer")
