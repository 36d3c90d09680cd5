"""Which prompt a lease takes: positions that came back go out again before new ones.

Rules
1. A position is a prompt of one pass over the task (coordinator/rollouts/prompts.py). When its lease expires, or its
   group is refused, it goes out again, with a new lease and new seeds, under the version that the next asking node
   names.
2. It goes to another key and another connection than any before, none of whose own last leases came back, if one asks
   within `ELSEWHERE`, and else to any. Where known keys ask it is one of them: a key that was never used before has no
   leases that came back. So nodes that drop prompts which they do not like take nothing out of what is learned, also
   where they are most: a prompt is not handed from one of them to the next. A position that came back n times waits
   (n - 1) `PAUSE` first, and new ones go out meanwhile: nodes that give prompts back at once have shown that by others
   when it goes out, where all of them could have had it within a second.
3. A position goes out again at most `MOST` times, `MOST_OURS` times where the end was the operator's fault. Then it is
   skipped, and counted by the reasons of its ends (`skipped`).
4. A new position for which the task gives no prompt is left out, and said in the log. After `MOST_LEFT_OUT` in a row
   there is no lease for `NO_PROMPT`, and no task code runs for any ask; then the positions after them are tried.
5. The table `again` holds the positions that wait to go out again, no others; a look reads the `LOOKED_AT` lowest of
   those whose pause is over, and passes over the others: what came back within the last minutes.
"""

from typing import Final, NamedTuple

import structlog

from coordinator.database import Database
from coordinator.rollouts.prompts import Prompt, PromptSource
from p2p.limits.origin import Origin
from protocol.refusals import REASONS
from tasks.task import TaskFault

ELSEWHERE: Final = 60_000
"""Milliseconds."""
PAUSE: Final = 60_000
"""Milliseconds."""
MOST: Final = 3
MOST_OURS: Final = 1
LOOKED_AT: Final = 16
LATELY: Final = 32
"""Leases."""
MOST_LEFT_OUT: Final = 15
NO_PROMPT: Final = 60_000
"""Milliseconds."""

log = structlog.get_logger("coordinator")


class PromptPosition(NamedTuple):
    """`attempt`: 0 the first time. `reasons`: codes of the ends before, in order, joined by commas."""

    position: int
    attempt: int
    reasons: str
    prompt: Prompt


class PromptPositions:
    """Use inside the caller's transaction."""

    def __init__(self, database: Database, prompts: PromptSource) -> None:
        self._database = database
        self.prompts = prompts
        self._without_prompt = (0, 0)
        """The first position that may have a prompt, and when it is tried (rule 4)."""

    def wait(self, now: int) -> int:
        """Milliseconds for which the task gives no prompt; 0: it may."""
        left = self._without_prompt[1] - now
        return left if 0 < left <= NO_PROMPT else 0

    def take(self, node: bytes, origin: Origin, now: int, *, relied_on: bool = True) -> PromptPosition:
        """Return what the next lease is for. `relied_on`: it is known, or no known key asks. Raises `TaskFault`."""
        while (returned := self._returned(node, origin, now, relied_on)) is not None:
            position, attempt, reasons = returned
            self._database.do("DELETE FROM again WHERE position = ?", (position,))
            try:
                return PromptPosition(position, attempt, reasons, self.prompts.at(position))
            except TaskFault:
                self._skip(f"{reasons},no-prompt")
        position, prompt = self._new(now)
        return PromptPosition(position, 0, "", prompt)

    def ended(self, position: int, attempt: int, reasons: str, code: str, now: int) -> None:
        """A lease for this position earned nothing (rules 1 and 3). `reasons`: of the ends before this one, `code`."""
        reasons = f"{reasons},{code}" if reasons else code
        ours = code in REASONS and REASONS[code].fault == "operator"
        if attempt >= (MOST_OURS if ours else MOST):
            self._skip(reasons)
            return
        query = "INSERT OR REPLACE INTO again VALUES (?, ?, ?, ?)"
        self._database.do(query, (position, attempt + 1, reasons, now))

    def _skip(self, reasons: str) -> None:
        query = "INSERT INTO skipped VALUES (?, 1) ON CONFLICT DO UPDATE SET positions = positions + 1"
        self._database.do(query, (",".join(sorted(set(reasons.split(",")))),))

    def _returned(self, node: bytes, origin: Origin, now: int, relied_on: bool) -> tuple[int, int, str] | None:
        if self._database.value("SELECT 1 FROM again LIMIT 1") is None:
            return None
        return self._database.one(
            "SELECT a.position, a.attempt, a.reasons FROM (SELECT *, at + (attempt - 1) * ? AS due FROM again"
            " WHERE ? NOT BETWEEN at AND due - 1 ORDER BY position LIMIT ?) a"
            " WHERE ? NOT BETWEEN a.at AND a.due + ? OR (? AND NOT EXISTS (SELECT 1 FROM leases l"
            " WHERE l.position = a.position AND (l.node = ? OR l.connection = nullif(?, '')))) LIMIT 1",
            (PAUSE, now, LOOKED_AT, now, ELSEWHERE - 1, relied_on and self._brings(node), node, origin.connection),
        )

    def _brings(self, node: bytes) -> bool:
        """Return whether none of a node's last `LATELY` leases came back."""
        return not self._database.value(
            "SELECT EXISTS (SELECT 1 FROM (SELECT id, state FROM leases WHERE node = ? ORDER BY sent DESC LIMIT ?) l"
            " LEFT JOIN verdicts v ON v.lease = l.id WHERE l.state = 'expired' OR v.verdict = 'refused')",
            (node, LATELY),
        )

    def _new(self, now: int) -> tuple[int, Prompt]:
        first = max(self._without_prompt[0], self._next())
        fault: TaskFault | None = None
        for position in range(first, first + MOST_LEFT_OUT + 1):
            try:
                prompt = self.prompts.at(position)
            except TaskFault as error:
                fault = error
                continue
            if fault is not None:
                log.error("prompts left out", first=first, count=position - first, reason=str(fault))
            self._database.set_fact("next_position", position + 1)
            return position, prompt
        assert fault is not None
        self._without_prompt = (first + MOST_LEFT_OUT + 1, now + NO_PROMPT)
        log.error("no lease: the task gives no prompt", first=first, count=MOST_LEFT_OUT + 1, reason=str(fault))
        raise fault

    def _next(self) -> int:
        """The first position that never went out."""
        given = int(self._database.value("SELECT coalesce(max(position) + 1, 0) FROM leases"))
        # Leases that nobody answered are forgotten after a while, also where no newer one was given since.
        return max(given, self._database.fact("next_position") or 0)
