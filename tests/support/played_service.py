"""A service manager that is played: it takes the unit that `service install` writes, and runs its ExecStart."""

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

_SYSTEMCTL: Final = """#!/bin/sh
[ "$2" = show ] || exit 0
[ "$3" = --property=UnitPath ] && echo "$HOME/.config/systemd/user" || printf 'ActiveState=inactive\\nSubState=dead\\n'
"""
_BOOTED: Final = 'mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec "$@"'
"""Makes a machine look as if systemd had started it, to the command that follows, in a mount namespace of its own."""
STOP_SECONDS: Final = 30.0


def stand_in_systemctl(folder: Path) -> None:
    """Write a systemctl into a folder on PATH. It says that nothing runs, and starts nothing."""
    folder.mkdir()
    (folder / "systemctl").write_text(_SYSTEMCTL)
    (folder / "systemctl").chmod(0o755)


def booted(argv: Sequence[str]) -> list[str]:
    """Return a command, in a mount namespace of its own, as a machine that systemd started would run it."""
    return ["/bin/sh", "-c", _BOOTED, "sh", *argv]


def exec_start(unit: Path) -> list[str]:
    """Return the command of a unit, as systemd reads it."""
    (text,) = [row for row in unit.read_text().splitlines() if row.startswith("ExecStart=")]
    return [word.replace("$$", "$").replace("%%", "%") for word in shlex.split(text.removeprefix("ExecStart="))]


class PlayedService:
    """The service of one unit. `within`: beginning of a command that runs on its machine, as its user."""

    def __init__(self, unit: Path, within: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self._argv, self._env, self._folder = [*within, *exec_start(unit)], dict(env), folder
        self._process: subprocess.Popen[bytes] | None = None
        self._known: set[psutil.Process] = set()

    def start(self, seconds: float) -> None:
        """Start it, and wait until it reports that it is up."""
        place = self._folder / "notify"
        place.unlink(missing_ok=True)
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
            (self._folder / "service.log").open("ab") as log,
        ):
            manager.bind(str(place))
            place.chmod(0o777)
            manager.settimeout(seconds)
            self._process = subprocess.Popen(
                self._argv, env={**self._env, "NOTIFY_SOCKET": str(place)}, cwd="/", stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
            assert manager.recv(4096).startswith(b"READY=1")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def tree(self) -> list[psutil.Process]:
        """Return its processes, the daemon first."""
        try:
            daemon = psutil.Process(self.pid)
            tree = [daemon, *daemon.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
        self._known.update(tree)
        return tree

    def send(self, number: signal.Signals) -> None:
        """Send a signal to each of its processes."""
        for process in self.tree():
            process.send_signal(number)

    def kill(self) -> None:
        """End all of its processes at once, as a machine does that loses its power."""
        self.send(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        psutil.wait_procs([one for one in self._known if one.is_running()], timeout=10)

    def wait(self, seconds: float) -> int:
        """Wait until it has ended by itself; return its exit code."""
        assert self._process is not None
        self.tree()
        return self._process.wait(seconds)

    def stop(self) -> float:
        """Stop it as systemd does; return the seconds that its end took."""
        assert self._process is not None
        self.tree()
        began = time.monotonic()
        self._process.terminate()
        self._process.wait(STOP_SECONDS)
        return time.monotonic() - began

    def end(self) -> None:
        """End whatever still runs of it (teardown)."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        for process in self._known:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                os.kill(process.pid, signal.SIGKILL)
