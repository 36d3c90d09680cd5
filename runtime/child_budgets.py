"""Budgets of child processes: open files, memory, and network, a row for each kind of child.
docs/reference/limits.md has the same table, and a test holds them together.

Rules
1. Every child has a limit of open files.
2. A child that computes on no device and maps no model has a limit of its address space: an environment
   (coordinator/environments/limits.py). Others map models and device memory, which no such limit can tell from use:
   they watch their own resident memory, and end beyond a share of the machine's (runtime/resident_memory.py).
   An engine of another package has the row of `OTHER_BUDGET`.
3. A child may open sockets as its row says, as far as the system can enforce that (runtime/child_network.py):
   `local` by a filter of system calls, `loopback` by a network of its own, `its one host` and `rendezvous` by ports.
   `Ray` likewise.
   `none` and the bridge's `loopback`: coordinator/environments/limits.py. `echo2-coord doctor` and `echo2-node doctor`
   say which are enforced here; where one is not, the child's own code alone keeps to it.
4. Every child is private (runtime/own_memory.py), but for one whose processes share the memory of devices. Both doctors
   name those.
"""

import resource
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

from echo2.runtime import child_network, own_memory, resident_memory

Reach = Literal["local", "none", "loopback", "its one host", "rendezvous", "Ray"]


class Budget(NamedTuple):
    """A row. `files`: most open files. `memory`: the bound of memory. `network`: rule 3. `seen_by`: which processes of
    this user can read its memory (rule 4)."""

    files: int
    memory: Literal["address space", "resident"]
    network: Reach
    seen_by: Literal["none", "all"] = "none"


BUDGETS: Final[dict[str, Budget]] = {
    "transformers": Budget(4096, "resident", "local"),
    "llamacpp": Budget(4096, "resident", "local"),
    "vllm": Budget(16384, "resident", "loopback"),
    "server": Budget(4096, "resident", "its one host"),
    "learner": Budget(4096, "resident", "local"),
    "learner rank": Budget(16384, "resident", "rendezvous", "all"),
    "ray driver": Budget(4096, "resident", "Ray"),
    "environment": Budget(1024, "address space", "none"),
    "environment with processes": Budget(1024, "address space", "loopback"),
}
"""Kind of a child -> its budget. The scorer is an engine, also on another host, and a bridge to verifiers an
environment with processes."""


OTHER_BUDGET: Final = Budget(4096, "resident", "loopback", "all")
"""Of a kind without a row: nothing is known of its use of a network, or of its processes."""


def seen_by_all(kinds: Iterable[str] = BUDGETS) -> str:
    """Return those of these kinds whose memory other processes of this user can read, for a sentence; empty: none."""
    return ", ".join(kind for kind in kinds if BUDGETS.get(kind, OTHER_BUDGET).seen_by == "all")


def confine(kind: str, network: Callable[[], str]) -> str:
    """Keep this process to its row, as far as the system can. `network`: keeps it to the use of a network that its row
    names, or tells what did, where that is not `local`. Return the reason of what is missing; empty: nothing."""
    budget = BUDGETS.get(kind, OTHER_BUDGET)
    limit_files(budget.files)
    if budget.seen_by == "all":
        own_memory.keep_open()
    missing = child_network.local() if budget.network == "local" else network()
    if budget.memory == "resident":
        resident_memory.watch()
    return missing


def limit_files(most: int) -> None:
    """Limit the open files of this process and its children."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (value, value))
