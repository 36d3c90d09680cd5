"""Budgets of child processes: open files, memory, and network, a row for each kind of child. docs/operations.md has the
same table, and a test holds them together.

Rules
1. Every child has a limit of open files.
2. A child that computes on no device and maps no model has a limit of its address space: an environment
   (coordinator/environments/limits.py). Others map models and device memory, which no such limit can tell from use:
   the parent watches their own resident memory (runtime/resident_memory.py), and ends the child beyond
   `RESIDENT_MEMORY_SHARE` of the machine's.
   An engine of another package has the row of `OTHER_BUDGET`.
3. A child may open sockets as its row says, as far as the system can enforce that (runtime/child_network.py):
   `local` by a filter of system calls, `loopback` by a network of its own, `its one host` and `rendezvous` by ports.
   `none` and the bridge's `loopback`: coordinator/environments/limits.py. `echo2-coord doctor` and `echo2-node doctor`
   say which are enforced here; where one is not, the child's own code alone keeps to it.
"""

import resource
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from echo2.runtime import child_network

RESIDENT_MEMORY_SHARE: Final = 0.9
"""Most share of the machine's memory that a child without a limit of its address space may use."""
Reach = Literal["local", "none", "loopback", "its one host", "rendezvous"]


class Budget(NamedTuple):
    """A row. `files`: most open files. `memory`: the bound of memory. `network`: rule 3."""

    files: int
    memory: Literal["address space", "resident"]
    network: Reach


BUDGETS: Final[dict[str, Budget]] = {
    "transformers": Budget(4096, "resident", "local"),
    "llamacpp": Budget(4096, "resident", "local"),
    "vllm": Budget(16384, "resident", "loopback"),
    "server": Budget(4096, "resident", "its one host"),
    "learner": Budget(4096, "resident", "local"),
    "learner rank": Budget(16384, "resident", "rendezvous"),
    "environment": Budget(1024, "address space", "none"),
    "environment with processes": Budget(1024, "address space", "loopback"),
}
"""Kind of a child -> its budget. The scorer is an engine, and a bridge to verifiers an environment with processes."""


OTHER_BUDGET: Final = Budget(4096, "resident", "loopback")
"""Of a kind without a row: nothing is known of its use of a network."""


def confine(kind: str, network: Callable[[], str]) -> str:
    """Keep this process to its row, as far as the system can. `network`: keeps it to the use of a network that its row
    names, or tells what did, where that is not `local`. Return the reason of what is missing; empty: nothing."""
    budget = BUDGETS.get(kind, OTHER_BUDGET)
    limit_files(budget.files)
    return child_network.local() if budget.network == "local" else network()


def limit_files(most: int) -> None:
    """Limit the open files of this process and its children."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (value, value))
