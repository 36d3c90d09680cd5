"""Try each limit of a child's network on this machine, for the doctors.

Each is tried in a process of its own, which it binds for good.
"""

import subprocess
from collections.abc import Collection
from typing import Final, NamedTuple

from echo2.runtime.child_budgets import BUDGETS
from echo2.runtime.python_command import code_command

_NAMESPACES: Final = "allow user namespaces to users without privileges"
_LANDLOCK: Final = "use a kernel from 6.7 with Landlock"
_TRIALS: Final = {
    "local": ("no socket that leaves this machine", "local()", "use a Linux with seccomp, on x86-64 or ARM64"),
    "loopback": ("only loopback, in a network of its own", "loopback()", _NAMESPACES),
    "its one host": ("only one TCP port, at any address", "one_port('http://127.0.0.1:8000')", _LANDLOCK),
    "Ray": ("only TCP to the ports of Ray, at any address", "cluster('127.0.0.1:6379')", _LANDLOCK),
    "rendezvous": ("of several hosts: TCP to the port where they meet and to free ports", "meeting(29500)", _LANDLOCK),
}
"""A use of a network -> what the system enforces, the call that makes it, and what to do where it does not."""
_TRIAL_SECONDS: Final = 60.0
"""Seconds for a trial."""


class NetworkTrial(NamedTuple):
    """A use of a network. `children`: those that have it. `actual`: what the system enforces, or why it does not.
    `remedy`: what to do; empty where it does."""

    children: str
    actual: str
    remedy: str


def trials(kinds: Collection[str] = tuple(BUDGETS)) -> list[NetworkTrial]:
    """Return the outcome for each use of a network that a child of these kinds has."""
    return [_try_limit(names, *row) for use, row in _TRIALS.items() if (names := _children(use, kinds))]


def _try_limit(names: str, enforced: str, call: str, remedy: str) -> NetworkTrial:
    missing = _missing(call)
    return NetworkTrial(names, f"not enforced here: {missing}" if missing else enforced, remedy if missing else "")


def _children(use: str, kinds: Collection[str]) -> str:
    return ", ".join(kind for kind, budget in BUDGETS.items() if budget.network == use and kind in kinds)


def _missing(call: str) -> str:
    code = f"from echo2.runtime import child_network; print(child_network.{call})"
    try:
        done = subprocess.run(code_command(code), capture_output=True, text=True, timeout=_TRIAL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"the trial did not end within {_TRIAL_SECONDS:g} s"
    return done.stdout.strip() if done.returncode == 0 else f"the trial ended with {done.returncode}"
