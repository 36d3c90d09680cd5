"""The instance of this daemon, and those of the daemons of the same home before it.

Rules
1. An instance is random, drawn at each start. Every request names it, and the run gives leases to one instance of a key
   at a time (coordinator/nodes/key_fence.py).
2. The file `instance` of the run's folder has the last instance that the run took, and those that were drawn since. A
   greeting names them, so that a restart takes over from the daemon before it at once. The file is written before the
   first greeting: a kill at any moment leaves the one that the run knows in it.
3. A copy of the home on another machine has instances that were replaced here, or will be: it gets no leases while this
   daemon works.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from echo2.protocol.refusals import FENCED_CODE, REASONS
from echo2.protocol.requests import MOST_INSTANCES, Rival
from echo2.runtime.files import writing

FILE: Final = "instance"
LENGTH: Final = 16
WARNINGS: Final[dict[Rival, str]] = {
    "": "",
    "works": REASONS[FENCED_CODE].sentence,
    "waits": "Within the last hour another daemon with this node's key asked for work from elsewhere, and was refused."
    " If it is yours, give it another home: `--home DIR`. If you know of none, somebody has your key: stop this node,"
    " and `echo2-node keys rotate`.",
}
"""Sentence for the owner about another daemon with the node's key."""

_log = structlog.get_logger("node")


class HomeInstance:
    """The instance of one daemon in one run. `after`: the earlier ones that its greetings name, the oldest first."""

    def __init__(self, folder: Path, entropy: Callable[[int], bytes] = os.urandom) -> None:
        """`folder`: folder of the run. Raises `DiskFull`."""
        self._path = folder / FILE
        self.id = entropy(LENGTH)
        self.rival: Rival = ""
        self.after = _read(self._path)
        self._write([*self.after[:1], *self.after[1:][-(MOST_INSTANCES - 2) :], self.id])

    @property
    def warning(self) -> str:
        """Sentence for the owner about another daemon with the node's key; empty: none is known."""
        return WARNINGS[self.rival]

    def on_message(self, rival: Rival) -> None:
        """Take what an answer of the run tells of another daemon with the node's key."""
        if rival and rival != self.rival:
            _log.warning("another daemon has this key", reason=WARNINGS[rival])
        self.rival = rival

    def on_welcome(self) -> None:
        """Note that the run has answered a greeting: unless another daemon works, this one is known to it (rule 2).
        Raises `DiskFull`."""
        if self.rival != "works" and self.after != [self.id]:
            self._write([self.id])
            self.after = [self.id]

    def _write(self, instances: list[bytes]) -> None:
        with writing(self._path) as file:
            file.write(b"".join(instances))


def _read(path: Path) -> list[bytes]:
    """Return the instances of a file; none where there is no file, or it is none of ours."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    whole = len(data) % LENGTH == 0 and len(data) <= LENGTH * MOST_INSTANCES
    return [data[at : at + LENGTH] for at in range(0, len(data), LENGTH)] if whole else []
