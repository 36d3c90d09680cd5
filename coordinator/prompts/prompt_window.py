"""The next positions with their prompts, chosen ahead of their leases by what is known of the prompts.

Rules
1. The prompts of the next `POSITIONS_AHEAD` positions are chosen ahead, by variance (prompt_choice.py) or as the task's
   order has them, and wait in the table `chosen_prompts`. So an environment poses them in time, and a slow process
   changes no choice.
2. The summary from which a position's prompt was chosen is stored with it, until the content of its last lease is
   deleted (token_storage.py). A position that is leased again has its prompt chosen again, from that summary: it is the
   same one. A change of the settings changes no position that was chosen.
3. A task of more than `MOST_PROMPTS` prompts keeps its order, and nothing is recorded of them: they would not come
   again. The rows say so by a summary without candidates.
4. Positions are leased in order, to any node: who is here decides which node gets a prompt, never which prompts are
   learned from.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from echo2.coordinator.database.database import Database
from echo2.coordinator.prompts.prompt_choice import ChoiceSummary, candidates, choose_prompt
from echo2.coordinator.prompts.prompt_records import PromptRecords, figures_of
from echo2.coordinator.prompts.prompts import PromptSource
from echo2.coordinator.settings.training_config import MOST_PROMPTS
from echo2.protocol.leases import Lease

POSITIONS_AHEAD: Final = 16
_EMPTY: Final = ChoiceSummary(0, [])


class WaitingPrompt(NamedTuple):
    """A position that waits for its lease. `prompt`: index in the task's train split."""

    position: int
    prompt: int


class PromptWindow:
    """The positions whose prompts are chosen. Call the methods that write in a transaction."""

    def __init__(self, database: Database, prompts: PromptSource, *, by_variance: bool) -> None:
        """`by_variance`: choose prompts by variance; else those that were chosen before are leased, and no more."""
        self._database, self._prompts = database, prompts
        self._records = PromptRecords(database)
        self.applied = by_variance
        self._known: dict[int, int] = {}
        """The prompts of the positions that wait, by their index."""

    def fill(self, first: int, least: int = 0) -> None:
        """Choose the prompts of the next positions (rule 1). `first`: the first position after all that were leased.
        `least`: the first one that is still leased."""
        waiting = [one for one in self.waiting() if one.position >= least]
        if len(waiting) >= POSITIONS_AHEAD:
            return
        last = self._database.value("SELECT max(position) FROM chosen_prompts")
        position = max(first, least, 0 if last is None else last + 1)
        with self._database.transaction():
            for number in range(position, position + POSITIONS_AHEAD - len(waiting)):
                query = "INSERT INTO chosen_prompts VALUES (?, ?, 1)"
                self._database.do(query, (number, msgspec.msgpack.encode(self._summary(number))))
        self.waiting()

    def waiting(self) -> list[WaitingPrompt]:
        """Return the positions that wait, in the order in which they are leased."""
        query = "SELECT position FROM chosen_prompts WHERE waiting = 1 ORDER BY position"
        positions = [row[0] for row in self._database.all(query)]
        known = self._known
        self._known = {one: known[one] if one in known else self._expected_prompt(one) for one in positions}
        return [WaitingPrompt(position, prompt) for position, prompt in self._known.items()]

    def on_first_lease(self, position: int) -> None:
        """Note that a position got its first lease."""
        self._database.do("UPDATE chosen_prompts SET waiting = 0 WHERE position = ?", (position,))

    def left_out(self, position: int) -> None:
        """Forget a position that will never be leased again."""
        query = "DELETE FROM chosen_prompts WHERE position = ?"
        self._database.do(f"{query} AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.position = ?)", (position, position))

    def index(self, position: int) -> int | None:
        """Return the index of a position's prompt, chosen again (rule 2); None: it was not chosen."""
        summary = self._database.value("SELECT summary FROM chosen_prompts WHERE position = ?", (position,))
        if summary is None:
            return None
        place = self._prompts.place(position)
        return choose_prompt(place.order, place.position, _decode_summary(summary))

    def on_good_group(self, lease: Lease, party: str, summary: bytes | None, rewards: Sequence[float]) -> None:
        """Add a group to the last groups of its prompt, in the transaction of its verdict, if that prompt was chosen by
        its record (rule 3). `summary`: stored summary of its position; None: there is none."""
        if summary is not None and _decode_summary(summary).candidates:
            figures = figures_of(party, lease.node, rewards)
            self._records.add(lease.task, lease.task_version, lease.index, figures)

    def _summary(self, position: int) -> ChoiceSummary:
        place = self._prompts.place(position)
        if place.order.size > MOST_PROMPTS:
            return _EMPTY
        indices = candidates(place.order, place.position)
        return self._records.summary(place.task, place.task_version, indices)

    def _expected_prompt(self, position: int) -> int:
        index = self.index(position)
        assert index is not None
        self._prompts.expect(position, index)
        return index


def _decode_summary(summary: bytes) -> ChoiceSummary:
    return msgspec.msgpack.decode(summary, type=ChoiceSummary)
