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

PURE_KIND: Final = "pure"
SINGLE_KIND: Final = "single"
SERVED_KIND: Final = "served"
OPENED_KIND: Final = "opened"
ANSWERED_KINDS: Final = (SERVED_KIND, OPENED_KIND)
"""The kinds whose sampled turns the operator answers."""
PLAYED_KINDS: Final = (SINGLE_KIND, *ANSWERED_KINDS)
"""The kinds beside `PURE_KIND` that this build's nodes work for."""


def is_played(kind: str, name: str, version: int, *, kinds: Iterable[str], tasks: Collection[tuple[str, int]]) -> bool:
    """Tell whether a node can work for a task. `kinds`: those beside `PURE_KIND` that it plays. `tasks`: those of its
    build, by (name, version)."""
    return (name, version) in tasks if kind == PURE_KIND else kind in kinds


def public_name(name: str) -> str:
    """Return a task's name as volunteers read it: of a path at its operator, as in math:/srv/sums.jsonl, the last part
    alone."""
    family, _, argument = name.partition(":")
    parts = [part for part in argument.partition("?")[0].split("/") if part]
    return f"{family}: {parts[-1]}" if "/" in argument and parts else name
