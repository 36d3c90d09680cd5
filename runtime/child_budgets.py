"""Budgets of child processes: open files, memory, and network, a row for each kind of child. docs/operations.md has the
same table, and a test holds them together.

Rules
1. Every child has a limit of open files.
2. A child that computes on no device and maps no model has a limit of its address space: an environment
   (coordinator/environments/limits.py). Others map models and device memory, which no such limit can tell from use:
   the parent watches their own resident memory (runtime/resident_memory.py), and ends the child beyond `RESIDENT` of
   the machine's.
   An engine of another package has the row of `OTHER`.
3. A child may open sockets as its row says. `local`: within this machine's kernel alone, no Internet address, which
   Linux enforces (runtime/system_call_filter.py). The other rows name the one use of a network that a child has; a
   filter of system calls cannot tell addresses apart, so there the child's own code alone keeps to it.
"""

import resource
from typing import Final, Literal, NamedTuple

from runtime.system_call_filter import FilterUnavailable, install

RESIDENT: Final = 0.9
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


OTHER: Final = Budget(4096, "resident", "loopback")
"""Of a kind without a row: nothing is known of its use of a network."""


def confine(kind: str) -> str:
    """Keep this process to its row, as far as the system can. Return the reason of what is missing; empty: nothing."""
    budget = BUDGETS.get(kind, OTHER)
    limit_files(budget.files)
    if budget.network != "local":
        return ""
    try:
        install(network=False, subprocesses=True, local=True)
    except FilterUnavailable as unavailable:
        return str(unavailable)
    return ""


def limit_files(most: int) -> None:
    """Limit the open files of this process and its children."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (value, value))
