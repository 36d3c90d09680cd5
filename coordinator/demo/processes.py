"""The processes of a demo: starting, watching and ending them, without leaving any behind.

1. Each process leads a process group of its own, so Ctrl-C at the terminal reaches only the demo, which then ends the
   others in order.
2. A process that ends before it was told to is a failure, unless it was killed on purpose or may end by itself.
3. `stop` leaves no process. A daemon's children lead groups of their own and may outlive it. They are noted before the
   daemon is ended, while it stands still and can start no other; they are waited for, then killed. A Ctrl-C that comes
   while a process is being started takes effect when its name is known.
4. Where the demo itself is killed, its processes get SIGTERM (on Linux), and end in order.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import psutil

from echo2.coordinator.demo.interruption import delay_interrupt
from echo2.coordinator.demo.parent_death import ending_with_parent
from echo2.runtime.figures import figure

KILL_GRACE_SECONDS = 3.0
"""Seconds that `stop` waits before SIGKILL; all durable state was written before."""
ORPHAN_SECONDS = 1.0
"""Seconds that the children of ended processes get to end by themselves."""
TAIL_LINES = 15
CLEAN_EXITS: frozenset[int] = frozenset({0, 130})
"""Exit codes of a process that was told to end, or that finished its work (runtime.exit_codes)."""


class ProcessFault(Exception):
    """A process ended unexpectedly (rule 2), or did not end when told. `names`: the processes whose logs explain it."""

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)


class ProcessorTimes(NamedTuple):
    """Seconds since the machine's start for which its processors were busy, and free, all of them together."""

    busy: float
    free: float

    @classmethod
    def now(cls) -> "ProcessorTimes":
        """Read them. Processes of lower priority (`nice`) give a processor up as soon as another one wants it, so their
        own time counts as free."""
        times = psutil.cpu_times()
        free = times.idle + getattr(times, "iowait", 0.0) + times.nice
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in `user` and `nice` too
        return cls(sum(times) - free - guests, free)

    def share_until(self, later: "ProcessorTimes") -> float:
        """Return the share of the time until `later` for which the processors were busy."""
        busy, free = later.busy - self.busy, later.free - self.free
        return busy / max(busy + free, 1e-9)


@dataclass
class _Member:
    process: "subprocess.Popen[bytes]"
    log: Path
    killed: bool = False
    signalled: int | None = None


@dataclass
class ProcessGroup:
    """The processes of one demo, by name. `logs`: folder with one log file per process. `env`: environment of all
    processes."""

    logs: Path
    env: Mapping[str, str]
    _members: dict[str, _Member] = field(default_factory=dict)
    _children: set[psutil.Process] = field(default_factory=set)

    def start(self, name: str, argv: Sequence[str], more: Mapping[str, str] = MappingProxyType({})) -> None:
        """Start a process under the unique name `name`. `more`: variables of its own."""
        log = self.logs / f"{name}.log"
        with log.open("ab") as output, delay_interrupt():
            process = subprocess.Popen(
                ending_with_parent(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**self.env, **more},
                start_new_session=True,
            )
            self._members[name] = _Member(process, log)

    def pid(self, name: str) -> int:
        """Return the process id of a process, also of one that has ended."""
        return self._members[name].process.pid

    def alive(self, name: str) -> bool:
        """Tell whether a process is running."""
        return self._members[name].process.poll() is None

    def names(self) -> list[str]:
        """Return the names of the running processes."""
        return [name for name in self._members if self.alive(name)]

    def check(self, may_end: Iterable[str] = ()) -> None:
        """Check that no process ended before it was told to (rule 2). `may_end`: names of the processes that may end by
        themselves. Raises `ProcessFault`."""
        free = set(may_end)
        for name, member in self._members.items():
            _check(name, member, name in free)

    def kill(self, name: str) -> None:
        """Send SIGKILL to a process, on purpose."""
        member = self._members[name]
        member.killed = True
        with self._note_children(member):
            member.process.kill()

    def tell(self, name: str, number: signal.Signals) -> None:
        """Send the signal `number` to a process, for an orderly end."""
        member = self._members[name]
        member.signalled = number
        with self._note_children(member):
            member.process.send_signal(number)

    def wait(self, names: Iterable[str], seconds: float) -> list[str]:
        """Wait until these have ended; return the names of those still running after `seconds`."""
        until, left = time.monotonic() + seconds, []
        for name in names:
            try:
                self._members[name].process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                left.append(name)
        return left

    def end(self, name: str, number: signal.Signals, seconds: float) -> None:
        """Tell a process to end and wait for it. Raises `ProcessFault`."""
        self.tell(name, number)
        if self.wait([name], seconds):
            raise ProcessFault(f"{name} did not end within {figure(seconds)} s", [name])
        _check(name, self._members[name], may_end=False)

    def stop(self, grace: float = KILL_GRACE_SECONDS) -> None:
        """End all running processes: SIGTERM, then SIGKILL after `grace` seconds, then their children (rule 3)."""
        for member in self._members.values():
            with self._note_children(member):
                self._signal(member, signal.SIGTERM)
        until = time.monotonic() + grace
        for member in self._members.values():
            with suppress(subprocess.TimeoutExpired):
                member.process.wait(max(0.0, until - time.monotonic()))
        for member in self._members.values():
            self._signal(member, signal.SIGKILL)
            member.process.wait()
        _, stubborn = psutil.wait_procs(self._children, timeout=ORPHAN_SECONDS)
        for process in stubborn:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(stubborn, timeout=KILL_GRACE_SECONDS)

    def tail(self, name: str) -> list[str]:
        """Return the last `TAIL_LINES` lines of a process's log."""
        with suppress(KeyError, FileNotFoundError):
            return self._members[name].log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return []

    @contextmanager
    def _note_children(self, member: _Member) -> Iterator[None]:
        """Note the children of a process that is about to end. It stands still until the end of the block (rule 3)."""
        pid = member.process.pid
        try:
            member.process.send_signal(signal.SIGSTOP)
            if member.process.poll() is None:
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # a stop takes effect a little later
                with suppress(psutil.NoSuchProcess):
                    self._children.update(psutil.Process(pid).children(recursive=True))
            yield
        finally:
            member.process.send_signal(signal.SIGCONT)

    @staticmethod
    def _signal(member: _Member, number: signal.Signals) -> None:
        if member.process.poll() is None:  # else the process id may have been reused
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(member.process.pid, number)


def _check(name: str, member: _Member, may_end: bool) -> None:
    code = member.process.poll()
    if code is None or member.killed or (code in CLEAN_EXITS and (member.signalled or may_end)):
        return
    if (
        member.signalled and code == -member.signalled
    ):  # the signal came before the program installed its handler, or after it removed it
        return
    raise ProcessFault(f"{name} {ended_with(code)}", [name])


def ended_with(code: int) -> str:
    """Describe how a process ended, for people."""
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}"
