"""A run on a folder as the hub names its files: what is trained on and what is held out have no problem in common."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from echo2.p2p.envelope import decode_unverified
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease
from echo2.tasks.math.math_task import FileProblems, MathTask
from echo2.tasks.task import Score, Split, Transcript
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.group_world import TEXT
from tests.support.hosted_task import HostedTask
from tests.support.swarm import finished, make_swarm, whole, working

TRAIN = [f"{number}+{number}=" for number in range(100, 130)]
TEST = [f"{number}+{number}=" for number in range(120, 150)]
"""Ten problems are in both files."""


class Watched(HostedTask):
    """A host that notes the problems of the answers that it scores, by their split."""

    def __init__(self, task: MathTask, problems: FileProblems) -> None:
        super().__init__(TEXT, task)
        self._problems = problems
        self.scored_problems: dict[Split, set[str]] = {"train": set(), "heldout": set()}

    async def score(self, split: Split, index: int, transcript: Transcript, limit: int) -> Score:
        self.scored_problems[split].add(str(self._problems.pose(split, index).messages[0]["content"]).strip())
        return await super().score(split, index, transcript, limit)


def write(folder: Path, name: str, problems: Sequence[str]) -> None:
    rows = [{"problem": problem, "answer": str(2 * int(problem[:3]))} for problem in problems]
    (folder / name).write_text("\n".join(map(json.dumps, rows)))


@on_fake_clock
@pytest.mark.slow
async def test_a_run_on_hub_named_files_never_trains_on_its_test(tmp_path: Path) -> None:
    """Before, 19 of 20 problems of such a test became training prompts, in silence."""
    pytest.importorskip("math_verify", reason="needs the extra math")
    data = tmp_path / "data"
    data.mkdir()
    write(data, "train-00000-of-00001.jsonl", TRAIN)
    write(data, "test-00000-of-00001.jsonl", TEST)
    problems = FileProblems(f"{data}?ask=none")
    host = Watched(MathTask("riddle", problems.version, problems), problems)
    swarm = make_swarm(tmp_path, host=host, task="riddle", steps=20, heldout=30)
    async with swarm.coordinating() as coordinator:
        async with working(*[swarm.node(name) for name in ("alice", "bob")]):
            await until(lambda: finished(coordinator), 600)
            whole(swarm)
        documents = coordinator.group_service.database.all("SELECT sealed FROM leases")
        leases = [decode(decode_unverified(sealed).payload, Lease) for (sealed,) in documents]
    leased = {TEXT.decode(lease.prompt).strip() for lease in leases}
    assert leased == host.scored_problems["train"] == set(TRAIN) - set(TEST)
    assert host.scored_problems["heldout"] == set(TEST)
    assert not leased & set(TEST)
    assert problems.remarks[-1] == "10 problems are in both splits, and not trained on"
