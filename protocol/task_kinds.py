"""The kinds of task: where a task's code runs, and so what a node needs to work for it. Pure.

pure     in the node's build, and in the coordinator's process, which replays each transcript
single   at the operator alone: an episode is one sampled turn, and a node needs nothing but the lease's prompt
served   at the operator alone: an episode has several turns, and the node asks for the answer to each sampled one
opened   served, and the environment opens each episode: its first turn has no sampled tokens, so the prompts of a
         group's samples may differ

Every node plays pure tasks of its build; its Hello's `kinds` names the others that it works for.
"""

from collections.abc import Collection, Iterable
from typing import Final

PURE: Final = "pure"
SINGLE: Final = "single"
SERVED: Final = "served"
OPENED: Final = "opened"
ANSWERED: Final = (SERVED, OPENED)
"""The kinds whose sampled turns the operator answers."""
PLAYED: Final = (SINGLE, *ANSWERED)
"""The kinds beside `PURE` that this build's nodes work for."""


def is_played(kind: str, name: str, version: int, *, kinds: Iterable[str], tasks: Collection[tuple[str, int]]) -> bool:
    """Tell whether a node can work for a task. `kinds`: those beside `PURE` that it plays. `tasks`: those of its build,
    by (name, version)."""
    return (name, version) in tasks if kind == PURE else kind in kinds
