"""What this machine says of its owner: thin probes, each of one occasion (node/owner/owner_rules.py).

Rules
1. A probe blocks the thread that it runs in, for `ANSWER_SECONDS` seconds at most where a program answers. It returns a
   sentence, empty where the occasion is not there. What it raises is one of `PROBE_ERRORS`.
2. An occasion that has no source on this machine has no `look`, and its `source` says why.
3. Processes of this node, and what they started, are not the owner's.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from echo2.node.owner.gpu_use import GpuUse, gpu_use, is_ours
from echo2.node.owner.owner_rules import Occasion, OwnerRule

ANSWER_SECONDS: Final = 2.0
"""Seconds for a program that is asked."""
LOOK_SECONDS: Final = 0.9
"""Seconds from one look to the next: new work stops within 1 s."""
LINE_SECONDS: Final = 30.0
"""Seconds between two looks at the line: NetworkManager answers slowly."""
USED_WITHIN: Final = 6.0
"""Seconds for which keyboard and mouse count as used; above the time between two looks of a node that rests."""
MOST_NAME: Final = 15
"""Characters of a program's name that Linux keeps."""
YOUNG_LOOKS: Final = 5
"""Looks after which a process is taken to keep its name: until then a shell may become the program."""
ALL_ANEW: Final = 16
"""Looks after which all names are read again."""
PROBE_ERRORS: Final = (OSError, subprocess.SubprocessError, psutil.Error, ValueError)


class Probe(NamedTuple):
    """`source`: source of what it sees, in words; without a `look`, why there is none. `period`: seconds between two
    looks while the node works."""

    rule: OwnerRule
    source: str
    look: Callable[[], str] | None
    period: float = LOOK_SECONDS


def probes_of(programs: Sequence[str], occasions: Sequence[Occasion]) -> list[Probe]:
    """Return the probes of these programs and occasions; it may ask programs."""
    return [*([program_probe(programs)] if programs else []), *map(probe_of, occasions)]


def probe_of(occasion: Occasion) -> Probe:
    """Return the probe of an occasion; it may ask programs."""
    if occasion == "gpu":
        use = gpu_use()
        return Probe("gpu", use.source, use.look if isinstance(use, GpuUse) else None)
    if occasion == "battery":
        return _battery_probe()
    if occasion == "fullscreen":
        return _screen_probe()
    return _keyboard_probe() if occasion == "keyboard" else _line_probe()


def program_probe(names: Sequence[str]) -> Probe:
    """Return the probe of programs by name."""
    return Probe("program", "the list of processes", RunningPrograms(names).look)


class RunningPrograms:
    """Looks for programs by their names, as `ps -e` shows them, in any case. `root`: the folder of processes."""

    def __init__(self, names: Sequence[str], root: Path = Path("/proc")) -> None:
        self._root, self._wanted = root, {name.casefold(): name for name in names}
        self._short = {name[:MOST_NAME] for name in self._wanted}
        self._known: dict[str, tuple[str, int]] = {}
        """By process: its name, and in how many looks it was there."""
        self._looks = 0

    def look(self) -> str:
        """Return which one runs, a sentence."""
        for process, short in self._names():
            if short in self._short and (name := self._name_of(process)):
                return f"{name} is running (setting yield_to)"
        return ""

    def _names(self) -> list[tuple[int, str]]:
        """Return the processes and their short names, in small letters."""
        if sys.platform != "linux":
            rows = [(one.pid, str(one.info["name"] or "")) for one in psutil.process_iter(["name"])]
            return [(process, name.casefold()[:MOST_NAME]) for process, name in rows]
        self._looks += 1
        before, self._known = self._known, {}
        for entry in os.listdir(self._root):
            if not entry.isdigit():
                continue
            name, looks = before.get(entry, ("", 0))
            if looks < YOUNG_LOOKS or self._looks % ALL_ANEW == 0:
                try:
                    name = self._short_name(entry)
                except OSError:  # it has ended
                    continue
            self._known[entry] = name, looks + 1
        return [(int(entry), name) for entry, (name, _) in self._known.items()]

    def _short_name(self, entry: str) -> str:
        with open(f"{self._root}/{entry}/comm", "rb", buffering=0) as file:  # a Path would take twice as long
            return file.read().decode(errors="replace").strip().casefold()

    def _name_of(self, process: int) -> str:
        """Return the name as the owner wrote it; empty: it is another program, one of ours, or has ended."""
        try:
            one = psutil.Process(process)
            name = self._wanted.get(one.name().casefold(), "")
            ended = one.status() == psutil.STATUS_ZOMBIE
            return "" if not name or ended or is_ours(one) else name
        except psutil.Error:
            return ""


def _battery_probe() -> Probe:
    def look() -> str:
        battery = psutil.sensors_battery()
        if battery is None or battery.power_plugged is not False:
            return ""
        return f"this machine runs on its battery ({battery.percent:.0f} %)"

    try:  # a system without a list of batteries, as some containers have, is an OSError
        present = hasattr(psutil, "sensors_battery") and psutil.sensors_battery() is not None
    except PROBE_ERRORS as error:
        return Probe("battery", _reason("the system", error), None)
    return Probe("battery", "the battery", look) if present else Probe("battery", "there is no battery", None)


def _keyboard_probe() -> Probe:
    def sentence(idle: float) -> str:
        return "you use keyboard or mouse" if idle < USED_WITHIN else ""

    def of_logind() -> str:
        answer = _ask("loginctl", "show-session", "--property", "IdleHint").strip()
        if answer not in ("IdleHint=yes", "IdleHint=no"):
            raise ValueError(f"loginctl answers {answer[:80]!r}")
        return "you use this machine, as its session says" if answer == "IdleHint=no" else ""

    def of_x() -> str:
        return sentence(int(_ask("xprintidle")) / 1000)

    def of_macos() -> str:
        idle = re.search(r'"HIDIdleTime" = (\d+)', _ask("ioreg", "-c", "IOHIDSystem", "-d", "4"))
        if idle is None:
            raise ValueError("ioreg names no idle time")
        return sentence(int(idle[1]) / 1e9)

    sources = {"ioreg": of_macos} if sys.platform == "darwin" else {"xprintidle": of_x, "loginctl": of_logind}
    return _first_source("keyboard", sources, LOOK_SECONDS)


def _screen_probe() -> Probe:
    def look() -> str:
        """Ask the window that is in front, as the Extended Window Manager Hints say."""
        window = re.search(r"0x[0-9a-f]+", _ask("xprop", "-root", "_NET_ACTIVE_WINDOW"))
        if window is None or int(window[0], 16) == 0:
            return ""
        state = _ask("xprop", "-id", window[0], "_NET_WM_STATE")
        return "a program has the whole screen" if "_NET_WM_STATE_FULLSCREEN" in state else ""

    return _first_source("fullscreen", {"xprop": look}, LOOK_SECONDS)


def _line_probe() -> Probe:
    def look() -> str:
        device = _default_device()
        answer = _ask("nmcli", "-t", "-f", "GENERAL.METERED", "device", "show", *([device] if device else []))
        metered = re.search(r"^GENERAL\.METERED:yes", answer, re.MULTILINE) is not None
        return f"the line {f'{device} ' if device else ''}is metered" if metered else ""

    return _first_source("metered", {"nmcli": look}, LINE_SECONDS)


def _default_device(tables: Path = Path("/proc/net")) -> str:
    """Return the network device of the default route, of IPv4 before IPv6; empty: none is known."""
    for row in _rows_of(tables / "route")[1:]:
        if len(row) > 7 and row[1] == row[7] == "00000000":
            return row[0]
    for row in _rows_of(tables / "ipv6_route"):
        if len(row) > 9 and int(row[0], 16) == int(row[1], 16) == 0 and row[9] != "lo":
            return row[9]
    return ""


def _rows_of(table: Path) -> list[list[str]]:
    try:
        return [row.split() for row in table.read_text().splitlines()]
    except OSError:
        return []


def _first_source(rule: OwnerRule, sources: dict[str, Callable[[], str]], period: float) -> Probe:
    """Return the probe by the first program that answers."""
    whys = []
    for program, look in sources.items():
        try:
            if shutil.which(program) is None:
                raise FileNotFoundError(f"{program} is not installed")
            look()
        except PROBE_ERRORS as error:
            whys.append(_reason(program, error))
        else:
            return Probe(rule, program, look, period)
    return Probe(rule, "; ".join(whys), None)


def _reason(program: str, error: BaseException) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{program} says: {(error.stderr or '').strip().partition(chr(10))[0][:120] or error}"
    return f"{program} does not answer" if isinstance(error, subprocess.TimeoutExpired) else str(error)


def _ask(*command: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS, check=True,
        stdin=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    return done.stdout
