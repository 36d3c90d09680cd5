"""The process in the Python that has verifiers (other_python/bridge_server.py), seen from the environment's process.

Rules
1. Orders and answers are lines of JSON on its pipes. It ends with its standard input.
2. Nothing that it says is trusted: a message is an object of at most `MOST_LINE` bytes that names its episode. A line
   that is none is passed over: what it stood for costs its episode the time of an answer.
3. Without it no episode goes on: when it ends, this process ends too, and the coordinator starts both again.
4. It plays all episodes on one thread. Where no answer comes in time it is asked for a sign of life: if there is one,
   that episode alone has failed; else all hang, and this process is to be ended (`TaskBroken`).
"""

import json
import os
import selectors
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from echo2.tasks.task import TaskBroken, TaskFault
from echo2.tasks.verifiers.taskset_file import TasksetFault

SCRIPTS: Final = Path(__file__).with_name("other_python")
MOST_LINE: Final = 16 << 20
SIGN: Final = 1.5
"""Most seconds for a sign of life (rule 4)."""
_CHUNK: Final = 1 << 16
_PING: Final = "ping"


class OtherSide:
    """The process, started. `argv`: its command."""

    def __init__(self, argv: Sequence[str]) -> None:
        surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=surroundings)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        os.set_blocking(self._out.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        self._read = b""
        self._told: defaultdict[str, deque[dict[str, Any]]] = defaultdict(deque)
        """By episode; the empty name: of the opening."""
        self._names = {"", _PING}

    def wait_until_open(self) -> dict[str, Any]:
        """Wait until the taskset is open, and return what it is. Raises `TasksetFault`."""
        told = self._next("", None)
        assert told is not None
        if "fault" in told:
            raise TasksetFault(str(told["fault"]))
        return told

    def listen(self, name: str) -> None:
        """Keep what is said of an episode."""
        self._names.add(name)

    def forget(self, name: str) -> None:
        """Keep no more of it."""
        self._names.discard(name)
        self._told.pop(name, None)

    def tell(self, do: str, name: str = "", **what: object) -> None:
        """Send an order."""
        try:
            self._in.write(json.dumps({"do": do, "name": name, **what}).encode() + b"\n")
            self._in.flush()
        except BrokenPipeError:
            _end("the environment server of verifiers has ended")

    def hear(self, name: str, seconds: float) -> dict[str, Any]:
        """Wait for what is said of an episode next. Raises `TaskFault` after `seconds`, or for a fault; `TaskBroken`
        where nothing is said any more."""
        told = self._next(name, seconds)
        if told is None:
            self.tell("ping", _PING)
            if self._next(_PING, SIGN) is None:
                raise TaskBroken(f"no answer within {seconds:g} s, and the environment server hangs")
            raise TaskFault(f"no answer within {seconds:g} s", verified=True)
        if "fault" in told:
            raise TaskFault(str(told["fault"]), verified=True)
        return told

    def has_said(self, name: str) -> bool:
        """Tell whether something was said of an episode that nobody has heard yet."""
        while self._selector.select(0):
            self._take(os.read(self._out.fileno(), _CHUNK))
        return bool(self._told.get(name))

    def close(self) -> None:
        """End the process."""
        self._in.close()
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._selector.close()

    def _next(self, name: str, seconds: float | None) -> dict[str, Any] | None:
        """Return what is said under a name next; None: nothing within `seconds`."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self._told[name]:
            left = None if until is None else until - time.monotonic()
            if (left is not None and left <= 0) or not self._selector.select(left):
                return None
            self._take(os.read(self._out.fileno(), _CHUNK))
        return self._told[name].popleft()

    def _take(self, data: bytes) -> None:
        """Sort what was read to its episodes (rule 2)."""
        if not data:
            if "" in self._names and not self._told[""]:
                raise TasksetFault(f"the Python with verifiers ended with {self._process.wait()} before it was open")
            _end(f"the environment server of verifiers ended with {self._process.wait()}")
        *lines, self._read = (self._read + data).split(b"\n")
        if len(self._read) > MOST_LINE:
            _end(f"the environment server of verifiers said more than {MOST_LINE} bytes at once")
        for message in filter(None, map(_message, lines)):
            name = message.get("name", "")
            if name in self._names:
                self._told[name].append(message)
            self._names.discard("")


def _message(data: bytes) -> dict[str, Any] | None:
    """Return a line's message; None: it is none (rule 2)."""
    try:
        told: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) and isinstance(told.get("name", ""), str) else None


def _end(why: str) -> NoReturn:
    """End this process (rule 3)."""
    print(why, file=sys.stderr, flush=True)
    os._exit(1)
