"""Held-out groups that nodes generate, so that a version is evaluated.

Rules
1. A version's plan is written in the transaction that publishes it: the same prompts with the same seeds for each
   version (coordinator/training/evaluation.py, rule 1).
2. A group goes to nodes that say they take it, that have that version loaded, and whose keys are known: never to new
   keys. At most every `PART`th lease of a version is a held-out one, as long as there is room for training.
3. A group is leased at most `MOST_LEASES` times, each time to another node. A lease that ends without an accepted group
   returns it; so does a group in quarantine, or one whose environment failed.
4. The operator's scorer generates the rest: groups that were leased so often, those that no node has taken by the time
   `NEWER` newer versions are published, and all that are open when the run is finished.
5. The result stands once each group is answered. A group that the scorer cannot generate, as its version is gone, is
   lost: its plan is closed without a result.
6. A held-out lease has a position below 0, the group's id with its sign changed. It counts neither in the room for
   training nor among the recalled leases, and a trigger keeps its group out of the buffer
   (coordinator/database/schema.py).
7. A closed plan keeps its result alone. The newest `KEPT` and the best one are kept.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from echo2.coordinator.database.database import Database
from echo2.coordinator.prompts.pass_rates import PassRate, PromptAnswers, pass_rate
from echo2.coordinator.prompts.prompts import Prompt

PART: Final = 4
MOST_LEASES: Final = 2
NEWER: Final = 2
KEPT: Final = 100
_NEXT: Final = "next_heldout_group"
_OUT: Final = "('waiting', 'leased', 'scorer')"
"""The states of groups without a result."""


class PromptKey(NamedTuple):
    """A held-out prompt: its task, and its number in that task's split."""

    task: str
    number: int


class HeldoutPrompt(NamedTuple):
    """A held-out prompt with the seeds of its group."""

    prompt: Prompt
    seeds: list[bytes]


class HeldoutGroup(NamedTuple):
    """A planned group. `leases`: those it has had."""

    id: int
    era: int
    version: int
    root: bytes
    key: PromptKey
    leases: int


class AnsweredGroup(NamedTuple):
    """A group with its result. `by_operator`: the scorer generated it."""

    key: PromptKey
    answers: PromptAnswers
    by_operator: bool


class ClosedPlan(NamedTuple):
    """A plan whose groups are all in. `rate`: over all of them; None: groups were lost. `at`: when it was written,
    milliseconds."""

    era: int
    version: int
    at: int
    groups: list[AnsweredGroup]
    rate: PassRate | None


class HeldoutShare:
    """The count by which held-out leases stay within their part (rule 2); in memory alone. `credit`: a lease of
    training adds 1, a held-out one takes `PART` - 1."""

    def __init__(self) -> None:
        self.credit = 0

    def may(self) -> bool:
        """Tell whether the next lease may be a held-out one although there is room for training."""
        return self.credit >= 0

    def note(self, *, heldout: bool, planned: int) -> None:
        """Note a lease. `planned`: groups of a plan."""
        cost = PART - 1
        self.credit = self.credit - cost if heldout else min(self.credit + 1, cost * max(0, planned - 1))


class HeldoutPlans:
    """The tables of held-out groups. `prompts`: those of each plan, once they are posed; without them no group is
    leased. Call what writes in a transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.prompts: Mapping[PromptKey, HeldoutPrompt] = {}
        self.share = HeldoutShare()

    def plan(self, era: int, version: int, root: bytes, now: int) -> None:
        """Write the plan of a version, unless it has one (rule 1)."""
        query = "INSERT OR IGNORE INTO heldout_plans VALUES (?, ?, ?, ?, NULL, NULL)"
        if not self.prompts or not self._database.do(query, (era, version, root, now)):
            return
        first = self._database.fact(_NEXT) or 1
        query = "INSERT INTO heldout_groups (id, era, version, task, prompt, state) VALUES (?, ?, ?, ?, ?, 'waiting')"
        for number, key in enumerate(self.prompts):
            self._database.do(query, (first + number, era, version, *key))
        self._database.set_fact(_NEXT, first + len(self.prompts))

    def last(self) -> tuple[int, int] | None:
        """Return (era, version) of the newest plan."""
        return self._database.one("SELECT era, version FROM heldout_plans ORDER BY era DESC, version DESC LIMIT 1")

    def next_group(self, era: int, version: int, node: bytes) -> HeldoutGroup | None:
        """Return the group of a version that a node may have next (rules 2 and 3)."""
        row = self._database.one(
            "SELECT g.id, g.era, g.version, p.root, g.task, g.prompt, g.leases FROM heldout_groups g"
            " JOIN heldout_plans p ON p.era = g.era AND p.version = g.version WHERE g.era = ? AND g.version = ?"
            " AND g.state = 'waiting' AND (g.node IS NULL OR g.node != ?) ORDER BY g.id LIMIT 1",
            (era, version, node),
        )
        group = None if row is None else _group(row)
        return group if group is not None and group.key in self.prompts else None

    def note_lease(self, *, heldout: bool) -> None:
        """Note any lease that was given (rule 2)."""
        self.share.note(heldout=heldout, planned=len(self.prompts))

    def leased(self, group: int, node: bytes) -> None:
        """Note that a group was leased."""
        query = "UPDATE heldout_groups SET state = 'leased', leases = leases + 1, node = ? WHERE id = ?"
        self._database.do(query, (node, group))

    def returned(self, group: int) -> None:
        """Note that a group's lease ended without a result (rule 3)."""
        query = (
            "UPDATE heldout_groups SET state = iif(leases < ?, 'waiting', 'scorer') WHERE id = ? AND state = 'leased'"
        )
        self._database.do(query, (MOST_LEASES, group))

    def answered(self, group: int, answers: PromptAnswers, *, by_operator: bool = False) -> None:
        """Note a group's result. It is ignored where the group is given to another by now."""
        self._database.do(
            "UPDATE heldout_groups SET state = 'answered', answers = ?, solved = ?, by_operator = ?"
            " WHERE id = ? AND state = ?",
            (*answers, by_operator, group, "scorer" if by_operator else "leased"),
        )

    def verdict(self, lease: bytes, answers: PromptAnswers | None) -> None:
        """Note the result of a held-out lease whose group is accepted; None: it has none (rule 3)."""
        group = -int(self._database.value("SELECT position FROM leases WHERE id = ?", (lease,)))
        if answers is None:
            self.returned(group)
        else:
            self.answered(group, answers)

    def lose(self, era: int, version: int) -> None:
        """Note that the scorer cannot generate the groups that were left to it (rule 5)."""
        query = "UPDATE heldout_groups SET state = 'lost' WHERE era = ? AND version = ? AND state = 'scorer'"
        self._database.do(query, (era, version))

    def leave_to_scorer(self, era: int, *, finished: bool) -> None:
        """Leave groups that no node will take to the scorer (rule 4). `era`: the learner's."""
        for one, version in self._open():
            query = f"SELECT 1 FROM versions WHERE era = ? AND version > ? LIMIT 1 OFFSET {NEWER - 1}"
            old = finished or one != era or self._database.value(query, (one, version)) is not None
            if old:
                self._leave(one, version, "state = 'waiting'")
            if finished:
                received = "SELECT 1 FROM leases l WHERE l.position = -heldout_groups.id AND l.state = 'received'"
                self._leave(one, version, f"state = 'leased' AND NOT EXISTS ({received})")

    def _leave(self, era: int, version: int, where: str) -> None:
        query = f"UPDATE heldout_groups SET state = 'scorer' WHERE era = ? AND version = ? AND {where}"
        self._database.do(query, (era, version))

    def left_to_scorer(self, most: int) -> list[HeldoutGroup]:
        """Return at most `most` groups that the scorer is to generate, all of one version: the oldest."""
        for era, version in self._open():
            rows = self._database.all(
                "SELECT g.id, g.era, g.version, p.root, g.task, g.prompt, g.leases FROM heldout_groups g"
                " JOIN heldout_plans p ON p.era = g.era AND p.version = g.version"
                " WHERE g.era = ? AND g.version = ? AND g.state = 'scorer' ORDER BY g.id LIMIT ?",
                (era, version, most),
            )
            if rows:
                return [_group(row) for row in rows]
        return []

    def oldest_open(self) -> tuple[int, int] | None:
        """Return (era, version) of the oldest plan that is open: its version is still needed."""
        return next(iter(self._open()), None)

    def open_plans(self) -> list[tuple[int, int]]:
        """Return (era, version) of the plans that are open, oldest first."""
        return self._open()

    def close(self, now: int) -> list[ClosedPlan]:
        """Close the plans whose groups are all in (rules 5 and 7), and return them."""
        closed = []
        for era, version in self._open():
            query = f"SELECT 1 FROM heldout_groups WHERE era = ? AND version = ? AND state IN {_OUT} LIMIT 1"
            if self._database.value(query, (era, version)) is not None:
                continue
            query = "SELECT task, prompt, answers, solved, by_operator, state FROM heldout_groups"
            rows = self._database.all(f"{query} WHERE era = ? AND version = ? ORDER BY id", (era, version))
            groups = [
                AnsweredGroup(PromptKey(task, index), PromptAnswers(answers, solved), bool(by_operator))
                for task, index, answers, solved, by_operator, state in rows
                if state == "answered"
            ]
            whole = len(groups) == len(rows) > 0
            rate = pass_rate([one.answers for one in groups]) if whole else None
            at = self._database.value("SELECT at FROM heldout_plans WHERE era = ? AND version = ?", (era, version))
            query = "UPDATE heldout_plans SET closed = ?, pass_1 = ? WHERE era = ? AND version = ?"
            self._database.do(query, (now, None if rate is None else rate.pass_1, era, version))
            self._database.do("DELETE FROM heldout_groups WHERE era = ? AND version = ?", (era, version))
            closed.append(ClosedPlan(era, version, at, groups, rate))
        if closed:
            self._forget()
        return closed

    def best(self) -> tuple[int, int] | None:
        """Return (era, version) of the best result that stands; the earliest among equals."""
        return self._database.one(
            "SELECT era, version FROM heldout_plans WHERE pass_1 IS NOT NULL ORDER BY pass_1 DESC, era, version LIMIT 1"
        )

    def _forget(self) -> None:
        best = self.best() or (0, 0)
        self._database.do(
            "DELETE FROM heldout_plans WHERE closed IS NOT NULL AND NOT (era = ? AND version = ?)"
            " AND (era, version) < (SELECT era, version FROM heldout_plans ORDER BY era DESC, version DESC"
            " LIMIT 1 OFFSET ?)",
            (*best, KEPT - 1),
        )

    def _open(self) -> list[tuple[int, int]]:
        query = "SELECT era, version FROM heldout_plans WHERE closed IS NULL ORDER BY era, version"
        return self._database.all(query)


def _group(row: tuple[int, int, int, bytes, str, int, int]) -> HeldoutGroup:
    group, era, version, root, task, index, leases = row
    return HeldoutGroup(group, era, version, root, PromptKey(task, index), leases)
