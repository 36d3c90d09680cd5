"""The demo's processes: started, watched, ended, and nothing of them left.

1. Each process leads a process group of its own, so that a Ctrl-C at the terminal reaches the demo alone, which then
   ends the others in order.
2. A process that ends before it was told to is a failure, unless it was killed on purpose or may end by itself.
3. `stop` leaves no process. A daemon's children lead groups of their own, and may outlive it: they are known by the
   variable `MARK` of their environment, which they inherit; they are waited for, then killed.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from runtime.figures import figure

MARK = "ECHO2_CONFIG"
"""Names a file in the demo's own folder, so its value is in the environment of no other process."""
GRACE = 3.0
"""Seconds that `stop` waits before it forces an end: what had to be kept was kept before."""
FINE: frozenset[int] = frozenset({0, 130})
"""Exit codes of a process that was told to end, or had nothing left to do (runtime.exit_codes)."""


class CrewFault(Exception):
    """A process ended that should not have, or would not end. `names`: of whom the logs tell more."""

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)


@dataclass
class _Member:
    process: "subprocess.Popen[bytes]"
    log: Path
    killed: bool = False
    told: int | None = None


@dataclass
class ProcessGroup:
    """`logs`: folder of one log file a process. `env`: of all processes; it has `MARK`."""

    logs: Path
    env: Mapping[str, str]
    _members: dict[str, _Member] = field(default_factory=dict)

    def start(self, name: str, argv: Sequence[str]) -> None:
        """Start a process under a name of its own."""
        log = self.logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(self.env),
                start_new_session=True,
            )
        self._members[name] = _Member(process, log)

    def alive(self, name: str) -> bool:
        return self._members[name].process.poll() is None

    def names(self) -> list[str]:
        """Of those that run now."""
        return [name for name in self._members if self.alive(name)]

    def check(self, may_end: Iterable[str] = ()) -> None:
        """Raises `CrewFault` for one that ended against rule 2. `may_end`: those with nothing left to do."""
        free = set(may_end)
        for name, member in self._members.items():
            _check(name, member, name in free)

    def kill(self, name: str) -> None:
        """SIGKILL, on purpose."""
        member = self._members[name]
        member.killed = True
        member.process.kill()

    def tell(self, name: str, number: signal.Signals) -> None:
        """Ask for an orderly end."""
        member = self._members[name]
        member.told = number
        if member.process.poll() is None:
            member.process.send_signal(number)

    def wait(self, names: Iterable[str], seconds: float) -> list[str]:
        """Until these have ended; those that have not within `seconds`."""
        until, left = time.monotonic() + seconds, []
        for name in names:
            try:
                self._members[name].process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                left.append(name)
        return left

    def end(self, name: str, number: signal.Signals, seconds: float) -> None:
        """Tell one to end and wait until it has, in order. Raises `CrewFault`."""
        self.tell(name, number)
        if self.wait([name], seconds):
            raise CrewFault(f"{name} did not end within {figure(seconds)} s", [name])
        _check(name, self._members[name], may_end=False)

    def stop(self, grace: float = GRACE) -> None:
        """End all that still run, in order if they will, and leave nothing (rule 3)."""
        for member in self._members.values():
            self._signal(member, signal.SIGTERM)
        until = time.monotonic() + grace
        for member in self._members.values():
            with suppress(subprocess.TimeoutExpired):
                member.process.wait(max(0.0, until - time.monotonic()))
        for member in self._members.values():
            self._signal(member, signal.SIGKILL)
            member.process.wait()
        while left := self._marked():
            _, stubborn = psutil.wait_procs(left, timeout=1.0)
            for process in stubborn:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def tail(self, name: str, lines: int = 15) -> list[str]:
        """The last of what a process wrote."""
        with suppress(KeyError, FileNotFoundError):
            return self._members[name].log.read_text(errors="replace").splitlines()[-lines:]
        return []

    def _marked(self) -> list[psutil.Process]:
        """The living processes of this crew, wherever they hang in the tree."""
        pids = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self.env[MARK] and process.status() != psutil.STATUS_ZOMBIE:
                    pids.append(process)
        return [process for process in pids if process.pid != os.getpid()]

    @staticmethod
    def _signal(member: _Member, number: signal.Signals) -> None:
        if member.process.poll() is None:  # else its id may be another's by now
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(member.process.pid, number)


def _check(name: str, member: _Member, may_end: bool) -> None:
    code = member.process.poll()
    if code is None or member.killed or (code in FINE and (member.told or may_end)):
        return
    if member.told and code == -member.told:  # it came before the program had a handler, or after
        return
    raise CrewFault(f"{name} {ended_with(code)}", [name])


def ended_with(code: int) -> str:
    """How a process ended, for people."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}"
