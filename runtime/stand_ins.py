"""Put a module of a checkout in the place of a part of a daemon, so that a benchmark runs all the rest as it is.

Rules
1. ECHO2_STAND_INS names the parts and their modules of `benchmarks/` (runtime/checkout.py), as `learner=benchmarks.a
   engine=benchmarks.b`. An unknown part is refused in one sentence.
2. `PROCESSES` are the learner, a node's engine and the coordinator's scorer: the module's `main` serves the calls of
   the process that it stands in for.
3. `NAMES` are classes and functions: that of this name in the module is used in the place of the part's own.

       window       Window           LeaseWindow of coordinator/leases/lease_window.py
       connection   Connection       sqlite3.Connection, for run.sqlite
       subnets      subnet_of        subnet_of of p2p/limits/party.py, for a coordinator's connections
       payload      PayloadFile      PayloadFile of p2p/swarm/payload_file.py: a payload that is shared
       partial      PartialPayload   PartialPayload of the same module: one that is fetched
"""

import os
from collections.abc import Mapping
from typing import Final, TypeVar

from echo2.runtime.checkout import checkout_command, load_from_checkout
from echo2.runtime.errors import LocalFault
from echo2.runtime.python_command import module_command

VARIABLE: Final = "ECHO2_STAND_INS"
PROCESSES: Final = ("learner", "engine", "scorer")
NAMES: Final[Mapping[str, str]] = {
    "window": "Window",
    "connection": "Connection",
    "subnets": "subnet_of",
    "payload": "PayloadFile",
    "partial": "PartialPayload",
}
PARTS: Final = (*PROCESSES, *NAMES)

T = TypeVar("T")


def stand_in(part: str) -> str | None:
    """Return the module that stands in for a part; None: the part itself is used. Raises `LocalFault`."""
    named = [word.partition("=") for word in os.environ.get(VARIABLE, "").split()]
    for name, _, module in named:
        if name not in PARTS or not module:
            raise LocalFault(f"{VARIABLE} names {name!r}; write PART=MODULE, with a part of {', '.join(PARTS)}")
    return next((module for name, _, module in named if name == part), None)


def process_command(part: str, module: str) -> list[str]:
    """Return the command of a part that is a process. `module`: its own one."""
    other = stand_in(part)
    return module_command(module) if other is None else checkout_command(other)


def or_stand_in(part: str, own: T) -> T:
    """Return the class or function of a part. `own`: the part's own one."""
    other = stand_in(part)
    if other is None:
        return own
    stands: T = getattr(load_from_checkout(other, f"{VARIABLE}={part}={other}"), NAMES[part])
    return stands
