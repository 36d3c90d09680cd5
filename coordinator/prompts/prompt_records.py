"""The last groups of each prompt, from which prompts are chosen (prompt_choice.py).

Rules
1. An accepted group of a training prompt is added in the transaction of its verdict, once. A group in quarantine,
   one without finite rewards, a twin of one that was learned from and a refused one never are.
2. A prompt keeps its last `PLACES` groups. A group takes the place of the one of its party or of its key, if there is
   one, else of the oldest. So no owner has two places of a prompt, however many groups it brings.
3. The means over a task's prompts are sums that each added group moves on. So a choice reads as much of run.sqlite
   after a million groups as after ten: the rows of its candidates, and one of the task.
4. Only groups of positions that were chosen are added (prompt_window.py). So the table has at most as many rows as the
   task has prompts, `MOST_PROMPTS`.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from echo2.coordinator.database.database import Database, marks
from echo2.coordinator.prompts.prompt_choice import PLACES, ChoiceSummary, PromptFigures

MILLION: Final = 1_000_000
MOST_REWARD: Final = 1_000.0
"""Rewards beyond it count as so much: the sums stay within SQLite's integers."""


class GroupFigures(msgspec.Struct, frozen=True, array_like=True):
    """An accepted group. `party`, `node`: hashes of its party and its key. `reward`, `squares`: sums over its rollouts,
    of millionths."""

    party: bytes
    node: bytes
    rollouts: int
    reward: int
    squares: int


def figures_of(party: str, node: bytes, rewards: Sequence[float]) -> GroupFigures:
    """Return the figures of a group. `rewards`: finite."""
    bounded = [max(-MOST_REWARD, min(reward, MOST_REWARD)) for reward in rewards]
    return GroupFigures(
        _short(party.encode()),
        _short(node),
        len(bounded),
        sum(round(MILLION * reward) for reward in bounded),
        sum(round(MILLION * reward * reward) for reward in bounded),
    )


def with_group(groups: Sequence[GroupFigures], added: GroupFigures) -> list[GroupFigures]:
    """Return a prompt's last groups, oldest first, after one more (rule 2)."""
    others = [one for one in groups if one.party != added.party and one.node != added.node]
    return [*others, added][-PLACES:]


def sum_groups(groups: Sequence[GroupFigures]) -> PromptFigures:
    """Return the figures of a prompt by its last groups."""
    rollouts = sum(one.rollouts for one in groups)
    if not rollouts:
        return PromptFigures()
    reward, squares = sum(one.reward for one in groups), sum(one.squares for one in groups)
    variance = max(0, (squares * rollouts * MILLION - reward * reward) // (rollouts * rollouts * MILLION))
    return PromptFigures(len(groups), variance)


class PromptRecords:
    """The tables `prompt_groups` and `prompt_means`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, task: str, version: int, index: int, group: GroupFigures) -> None:
        """Add a group, in the caller's transaction (rules 1 to 3)."""
        query = "SELECT groups FROM prompt_groups WHERE task = ? AND task_version = ? AND prompt = ?"
        stored = self._database.value(query, (task, version, index))
        before = [] if stored is None else msgspec.msgpack.decode(stored, type=list[GroupFigures])
        after = with_group(before, group)
        query = "INSERT OR REPLACE INTO prompt_groups VALUES (?, ?, ?, ?)"
        self._database.do(query, (task, version, index, msgspec.msgpack.encode(after)))
        then, now = sum_groups(before), sum_groups(after)
        self._database.do(
            "INSERT INTO prompt_means VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET prompts = prompts +"
            " excluded.prompts, variance = variance + excluded.variance",
            (task, version, not before, now.variance - then.variance),
        )

    def summary(self, task: str, version: int, indices: Sequence[int]) -> ChoiceSummary:
        """Return the summary from which a position's prompt is chosen. `indices`: indices of its candidates."""
        query = "SELECT prompts, variance FROM prompt_means WHERE task = ? AND task_version = ?"
        prompts, variance = self._database.one(query, (task, version)) or (0, 0)
        query = (
            "SELECT prompt, groups FROM prompt_groups WHERE task = ? AND task_version = ?"
            f" AND prompt IN ({marks(indices)})"
        )
        stored = dict(self._database.all(query, (task, version, *indices)))
        tried = {
            index: sum_groups(msgspec.msgpack.decode(groups, type=list[GroupFigures]))
            for index, groups in stored.items()
        }
        return ChoiceSummary(variance // max(1, prompts), [tried.get(index, PromptFigures()) for index in indices])


def _short(name: bytes) -> bytes:
    return hashlib.blake2b(name, digest_size=8).digest()
