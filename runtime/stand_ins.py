"""Put a module of a checkout in the place of a part of a daemon, so that a benchmark runs all the rest as it is.

Rules
1. ECHO2_STAND_INS names the parts and their modules of `benchmarks/` (runtime/checkout.py), as `learner=benchmarks.a
   engine=benchmarks.b`. An unknown part is refused in one sentence.
2. `learner` and `engine` are processes: the module's `main` serves the calls of the process that it stands in for.
   `window` is a class: the module's `Window` is made and used as `LeaseWindow` of coordinator/rollouts/lease_window.py.
"""

import os
from typing import Any, Final

from echo2.runtime.checkout import checkout_command, load_from_checkout
from echo2.runtime.errors import LocalFault
from echo2.runtime.python_command import module_command

VARIABLE: Final = "ECHO2_STAND_INS"
PARTS: Final = ("learner", "engine", "window")


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


def window_class(own: Any) -> Any:
    """Return the class of the window of leases. `own`: LeaseWindow."""
    other = stand_in("window")
    return own if other is None else load_from_checkout(other, f"{VARIABLE}=window={other}").Window
