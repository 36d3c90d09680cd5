"""A stand-in for systemctl or launchctl on PATH, and services to install. No program of the machine is called."""

import os
import stat
from pathlib import Path

import pytest

from echo2.runtime.service_unit import Service

_SYSTEMCTL = """#!/bin/sh
echo "$*" >> "$STUBS/calls"
[ ! -f "$STUBS/no-bus" ] || { echo "Failed to connect to bus: No medium found" >&2; exit 1; }
case "$2" in
show) [ "$3" = --property=UnitPath ] && echo "/run/systemd/user $(cat "$STUBS/units") /etc/systemd/user" ||
  cat "$STUBS/state" ;;
start) [ ! -f "$STUBS/fails" ] || { echo "Job for it failed" >&2; exit 1; }
  printf 'ActiveState=active\\nSubState=running\\nUnitFileState=enabled\\n' > "$STUBS/state" ;;
esac
"""
_LAUNCHCTL = """#!/bin/sh
echo "$*" >> "$STUBS/calls"
case "$1 $2" in
"print gui/"*/*) cat "$STUBS/loaded" ;;
"bootstrap "*) printf 'gui = {\\n\\tstate = running\\n\\tlast exit code = 75: no\\n}\\n' > "$STUBS/loaded" ;;
"bootout "*) rm "$STUBS/loaded" ;;
esac
"""
IDLE = "ActiveState=inactive\nSubState=dead\nUnitFileState=disabled\nExecMainStatus=0\n"


class Stubs:
    """The stand-ins' folder. `calls`: what they were called with, a line each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "state").write_text(IDLE)
        for name, text in (("systemctl", _SYSTEMCTL), ("launchctl", _LAUNCHCTL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o700)

    @property
    def calls(self) -> list[str]:
        file = self.folder / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def mark(self, name: str) -> None:
        """Have the stand-in fail: `no-bus`, `fails`."""
        (self.folder / name).touch()


def stubs_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    """Put stand-ins in front on PATH, and make HOME and XDG_CONFIG_HOME folders of the test."""
    (folder / "stubs").mkdir()
    monkeypatch.setenv("STUBS", str(folder / "stubs"))
    monkeypatch.setenv("PATH", f"{folder / 'stubs'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("HOME", str(folder / "user"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "user/config"))
    (folder / "stubs/units").write_text(str(folder / "user/config/systemd/user"))
    return Stubs(folder / "stubs")


def service_in(home: Path, **changed: object) -> Service:
    """Return a service of a home, which is made."""
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(stat.S_IRWXU)
    facts = {"program": "echo2-node", "name": "echo2-node", "description": "echo2 node", "home": home,
             "command": ("/opt/python", "-P", "-m", "echo2.node.cli", "run", "--home", str(home)),
             "stop_seconds": 300}  # fmt: skip
    return Service(**{**facts, **changed})  # type: ignore[arg-type]
