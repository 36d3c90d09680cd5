"""The turns of served episodes, as they were sampled and answered: the table `steps`.

Rules
1. A turn is written before the environment sees it, and its answer before it leaves. Neither is changed afterwards.
2. A turn has a row while its lease is open: the rows are deleted in the transaction in which the lease ends or its
   group is received, whose submission then has the same tokens.
3. The submission of a group is compared with its rows (`compare`). The rewards are those that the environment gave at
   the end of each episode.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from echo2.coordinator.database.database import Database
from echo2.coordinator.environments.task_host import TurnAnswer
from echo2.coordinator.verification.submitted_group import SubmittedGroup
from echo2.coordinator.verification.verification import GroupFault
from echo2.protocol.refusals import sentence
from echo2.tasks.task import Score
from echo2.tasks.turn_ends import token_list

StepState = Literal["asked", "given", "over", "failed"]
"""asked: without an answer yet. given: the environment gave tokens. over: it ended the episode, with a score. failed:
the episode has ended without a score."""

_TOKENS: Final = msgspec.msgpack.Decoder(list[int])
"""A turn reads all turns before it: an array for each would cost ten times as much as the short lists do."""


class Step(NamedTuple):
    """A sampled turn of an episode and its answer. `turn_number`: given turns counted. `given`: of the state `given`.
    `score`: score of the state `over`."""

    turn_number: int
    sampled: list[int]
    state: StepState
    given: list[int] | None = None
    score: Score | None = None

    @property
    def ended(self) -> bool:
        """Whether the episode ends with this turn."""
        return self.state in ("over", "failed")


class StepTable:
    """The table, for the transactions of its callers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, lease: bytes, sample: int) -> list[Step]:
        """Return the steps of an episode, in order."""
        rows = self._database.all(
            "SELECT turn_number, sampled, state, given, reward, success FROM steps WHERE lease = ? AND sample = ?"
            " ORDER BY turn_number",
            (lease, sample),
        )
        return [_step(*row) for row in rows]

    def ask(self, lease: bytes, sample: int, turn_number: int, sampled: Sequence[int]) -> None:
        """Write a turn that has no answer yet."""
        row = (lease, sample, turn_number, _pack_tokens(sampled))
        self._database.do(
            "INSERT INTO steps (lease, sample, turn_number, sampled, state) VALUES (?, ?, ?, ?, 'asked')", row
        )

    def answer(self, lease: bytes, sample: int, turn_number: int, answer: TurnAnswer | None) -> None:
        """Write the answer to a turn; None: the episode has failed. Nothing happens once the lease has ended."""
        state, given, score = "failed", None, None
        if answer is not None:
            state, score = ("given", None) if answer.given is not None else ("over", answer.score)
            given = None if answer.given is None else _pack_tokens(answer.given)
        values = (state, given, score and score.reward, score and int(score.success), lease, sample, turn_number)
        self._database.do(
            "UPDATE steps SET state = ?, given = ?, reward = ?, success = ?"
            " WHERE lease = ? AND sample = ? AND turn_number = ? AND state = 'asked'",
            values,
        )

    def open_episodes(self, node: bytes) -> set[tuple[bytes, int]]:
        """Return (lease, sample) of the episodes of a node that have begun and not ended."""
        rows = self._database.all(
            "SELECT s.lease, s.sample FROM leases l JOIN steps s ON s.lease = l.id"
            " WHERE l.state = 'open' AND l.node = ? GROUP BY s.lease, s.sample"
            " HAVING sum(s.state IN ('over', 'failed')) = 0",
            (node,),
        )
        return {(lease, sample) for lease, sample in rows}

    def compare(self, lease: bytes, submission: SubmittedGroup) -> list[Score | None] | GroupFault:
        """Compare a group with its steps (rule 3); return a score per episode, None of one that failed."""
        scores = list[Score | None]()
        for number, rollout in enumerate(submission.rollouts):
            steps = self.of(lease, number)
            parts = [part for step in steps for part in (step.sampled, step.given) if part is not None]
            if not steps or not steps[-1].ended:
                detail = "the environment has not ended the episode"
                return GroupFault("transcript", sentence("transcript", sample=number, detail=detail))
            tokens = [token for part in parts for token in part]
            if list(rollout.turns) != list(map(len, parts)) or token_list(rollout.tokens) != tokens:
                detail = "these are not the turns that the environment saw and answered"
                return GroupFault("transcript", sentence("transcript", sample=number, detail=detail))
            scores.append(steps[-1].score)
        return scores


def _pack_tokens(tokens: Sequence[int]) -> bytes:
    return msgspec.msgpack.encode(list(tokens))


def _step(
    turn_number: int, sampled: bytes, state: StepState, given: bytes | None, reward: float | None, success: int | None
) -> Step:
    score = None if reward is None else Score(reward, bool(success))
    return Step(turn_number, _TOKENS.decode(sampled), state, None if given is None else _TOKENS.decode(given), score)
