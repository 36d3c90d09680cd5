"""Choose the prompt of the next lease: returned positions are leased again before new ones.

Rules
1. A position is a place in the run's sequence of prompts (coordinator/prompts/prompts.py). If its lease expires or its
   group is refused, the position is *returned*. It is leased again with new seeds, under the version of the requesting
   node.
2. For `ELSEWHERE_MS` a returned position goes only to a reliable node: one with another key and another connection than
   its earlier leases, whose own last `RELIABILITY_LEASES` leases were not returned. While known keys make requests, the
   node must also be known. A superseded lease was not returned by its node (superseded_leases.py, rule 6). After
   `ELSEWHERE_MS` the position goes to any node.
   So nodes cannot bias training by dropping prompts, even as the majority: no prompt is passed from one to the next.
3. A position that was returned n times pauses for (n - 1) `RETURN_PAUSE_MS` first, and new positions are leased
   meanwhile. Without the pause, nodes that return prompts at once could all have had the position within a second.
   After the pause they have returned other positions too, and are not reliable by rule 2.
4. A position is leased again at most `MOST_ATTEMPTS` times, or `MOST_OURS` times where the end was the operator's
   fault. Then it is skipped, and counted by the reasons of its ends (`skipped`).
5. A new position for which the task gives no prompt, or one too long for the model, is left out, logged, and counted as
   skipped for `NO_PROMPT_CODE` once a later one is leased. After more than `MOST_LEFT_OUT` in a row no
   lease is given for `NO_PROMPT`, and no task code runs. Then the positions after them are tried. A prompt that an
   environment has yet to pose (`PromptPending`) leaves everything as it is: the request is refused for a moment.
6. Where prompts are chosen by their last groups, new positions come from a window (prompt_window.py). A position keeps
   its prompt, however often it is leased.
7. The table `again` contains exactly the returned positions. A request reads the `LOOKED_AT` lowest positions whose
   pause has passed.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import structlog

from echo2.coordinator.database.database import Database
from echo2.coordinator.prompts.prompt_window import PromptWindow
from echo2.coordinator.prompts.prompts import Prompt, PromptPending, PromptSource
from echo2.p2p.limits.origin import Origin
from echo2.protocol.refusals import REASONS
from echo2.tasks.task import TaskFault

ELSEWHERE_MS: Final = 60_000
"""Milliseconds after the pause of rule 3."""
RETURN_PAUSE_MS: Final = 60_000
"""Milliseconds."""
MOST_ATTEMPTS: Final = 3
MOST_OURS: Final = 1
LOOKED_AT: Final = 16
RELIABILITY_LEASES: Final = 32
"""The number of a node's last leases by which it is reliable or not (rule 2)."""
MOST_LEFT_OUT: Final = 15
NO_PROMPT_CODE: Final = "no-prompt"
NO_PROMPT: Final = 60_000
"""Milliseconds."""

log = structlog.get_logger("coordinator")


class PromptPosition(NamedTuple):
    """A position to lease, with its prompt. `attempt`: 0 the first time. `reasons`: codes of the earlier ends, in
    order, joined by commas."""

    position: int
    attempt: int
    reasons: str
    prompt: Prompt


class PromptPositions:
    """The positions of a run: returned ones, and the next new one. Call `take` and `ended` in a transaction."""

    def __init__(self, database: Database, prompts: PromptSource, *, by_variance: bool = False) -> None:
        """`by_variance`: choose prompts by how much the rewards of their last groups varied."""
        self._database = database
        self.prompts = prompts
        self.window = PromptWindow(database, prompts, by_variance=by_variance)
        self._without_prompt = (0, 0)
        """The first position that may have a prompt, and when it is tried (rule 5)."""

    def wait(self, now: int) -> int:
        """Return the milliseconds for which no prompt is tried (rule 5); 0: one may be taken."""
        left = self._without_prompt[1] - now
        return left if 0 < left <= NO_PROMPT else 0

    def prepare(self) -> None:
        """Choose the prompts of the next positions, if they are chosen. Call before `take`, in no transaction that may
        fail: a choice stays."""
        if self.window.applied:
            self.window.fill(self._next(), self._without_prompt[0])

    def take(self, node: bytes, origin: Origin, now: int, *, relied_on: bool = True) -> PromptPosition:
        """Return the position of the next lease. `relied_on`: the node's key is known, or no known key makes requests.
        Raises `TaskFault`, `PromptPending`."""
        while (returned := self._next_returned(node, origin, now, relied_on)) is not None:
            position, attempt, reasons = returned
            try:
                prompt = self.prompts.at(position, self.window.index(position))
            except PromptPending:
                break
            except TaskFault:
                self._database.do("DELETE FROM again WHERE position = ?", (position,))
                self._skip(f"{reasons},{NO_PROMPT_CODE}")
                self.window.left_out(position)
            else:
                self._database.do("DELETE FROM again WHERE position = ?", (position,))
                return PromptPosition(position, attempt, reasons, prompt)
        position, prompt = self._new(now)
        return PromptPosition(position, 0, "", prompt)

    def on_lease_end(self, position: int, attempt: int, reasons: str, code: str, now: int) -> None:
        """Mark a position as returned, or skip it: its lease ended by `code` without an accepted group (rules 1 and 4).
        `reasons`: codes of the earlier ends."""
        reasons = f"{reasons},{code}" if reasons else code
        ours = code in REASONS and REASONS[code].fault == "operator"
        if attempt >= (MOST_OURS if ours else MOST_ATTEMPTS):
            self._skip(reasons)
            return
        query = "INSERT OR REPLACE INTO again VALUES (?, ?, ?, ?)"
        self._database.do(query, (position, attempt + 1, reasons, now))

    def _skip(self, reasons: str, count: int = 1) -> None:
        query = "INSERT INTO skipped VALUES (?, ?) ON CONFLICT DO UPDATE SET positions = positions + excluded.positions"
        self._database.do(query, (",".join(sorted(set(reasons.split(",")))), count))

    def _next_returned(self, node: bytes, origin: Origin, now: int, relied_on: bool) -> tuple[int, int, str] | None:
        if self._database.value("SELECT 1 FROM again LIMIT 1") is None:
            return None
        return self._database.one(
            "SELECT a.position, a.attempt, a.reasons FROM (SELECT *, at + (attempt - 1) * ? AS due FROM again"
            " WHERE ? NOT BETWEEN at AND due - 1 ORDER BY position LIMIT ?) a"
            " WHERE ? NOT BETWEEN a.at AND a.due + ? OR (? AND NOT EXISTS (SELECT 1 FROM leases l"
            " WHERE l.position = a.position AND (l.node = ? OR l.connection = nullif(?, '')))) LIMIT 1",
            (
                RETURN_PAUSE_MS,
                now,
                LOOKED_AT,
                now,
                ELSEWHERE_MS - 1,
                relied_on and self._brings(node),
                node,
                origin.connection,
            ),
        )

    def _brings(self, node: bytes) -> bool:
        """Tell whether none of a node's last `RELIABILITY_LEASES` leases was returned."""
        return not self._database.value(
            "SELECT EXISTS (SELECT 1 FROM (SELECT id, state FROM leases WHERE node = ? ORDER BY sent DESC LIMIT ?) l"
            " LEFT JOIN verdicts v ON v.lease = l.id"
            " WHERE (l.state IN ('expired', 'returned') OR v.verdict = 'refused')"
            " AND NOT EXISTS (SELECT 1 FROM superseded WHERE lease = l.id))",
            (node, RELIABILITY_LEASES),
        )

    def _new(self, now: int) -> tuple[int, Prompt]:
        tried_again, new = self._without_prompt[0], self._next()
        waiting = self.window.waiting()
        left_out = {one.position for one in waiting if one.position < tried_again}
        upcoming: list[tuple[int, int | None]] = [
            (one.position, one.prompt) for one in waiting if one.position >= tried_again
        ]
        if not upcoming:
            first = max(tried_again, new)
            left_out |= set(range(new, first))
            upcoming = [(position, None) for position in range(first, first + MOST_LEFT_OUT + 1)]
        fault: TaskFault | None = None
        for tried, (position, index) in enumerate(upcoming):
            try:
                prompt = self.prompts.at(position, index)
            except PromptPending:
                raise
            except TaskFault as error:
                fault = error
                continue
            if fault is not None:
                log.error("prompts left out", first=upcoming[0][0], count=tried, reason=str(fault))
            self._leave_out([*left_out, *(one for one, _ in upcoming[:tried])])
            self.window.on_first_lease(position)
            self._database.set_fact("next_position", max(new, position + 1))
            return position, prompt
        assert fault is not None
        last = max(position for position, _ in upcoming)
        self._without_prompt = (last + 1, now + NO_PROMPT)
        log.error("no lease: the task gives no prompt", first=upcoming[0][0], count=len(upcoming), reason=str(fault))
        raise fault

    def _leave_out(self, positions: Sequence[int]) -> None:
        if positions:
            self._skip(NO_PROMPT_CODE, len(positions))
        for position in positions:
            self.window.left_out(position)

    def _next(self) -> int:
        """Return the first position that was never leased."""
        given = int(self._database.value("SELECT coalesce(max(position) + 1, 0) FROM leases"))
        # Leases without a submission are forgotten after a while, even the newest.
        return max(given, self._database.fact("next_position") or 0)
