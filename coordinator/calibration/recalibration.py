"""Calibrate open roundings again while the coordinator runs: training makes the policy more certain, near-ties rarer.

Rules
1. A rounding is due when the newest version is `calibration.every` versions past that of its Calibration, or is of
   another era. Only what is open is calibrated, by the engines that the Calibration names: the operator opens it.
2. It is made by processes of its own at low priority (coordinator/calibration/honest_groups.py), one rounding after the
   other: neither the scorer nor the learner waits. It takes the memory of two more models while it lasts.
3. A Calibration that fails, as where this machine lacks a device that it names, leaves the old one in force. The reason
   is logged, and it is tried again after `CALIBRATION_RETRY_SECONDS`.
4. Nothing about it is stored: after a crash the rounding is due as before. Leases given before the change are judged by
   the Calibration that they name, and evidence against a node goes on across it: under each table an honest node's
   stake does not grow in the mean, and the table of a group is fixed before its tokens are drawn.
5. A rounding is due as well once a key's day in it ended in doubt, and a check has confirmed that, where its
   Calibration was made before that day's end and on an earlier version than the newest (`to_come`). This machine's own
   engines then generate again, and the day is bet on by what they show (coordinator/verdicts/doubted_days.py): a doubt
   that comes from bounds that are out of date ends there. It is at most once per rounding and day, whatever the
   number of keys in doubt, and never where `calibration.every` is 0.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import structlog

from echo2.coordinator.calibration.calibrate import calibrate_classes
from echo2.coordinator.run.setup import Run
from echo2.coordinator.verification.calibration import Calibration
from echo2.runtime.errors import LocalFault

CLASS_POLL_SECONDS: Final = 10.0
"""Seconds between looks."""
CALIBRATION_RETRY_SECONDS: Final = 3600.0
"""Seconds."""

log = structlog.get_logger("coordinator")


class VersionNumber(NamedTuple):
    """A published version."""

    era: int
    version: int


def due(newest: Iterable[Calibration], at: VersionNumber, every: int) -> list[str]:
    """Return the roundings that are to be calibrated again (rule 1). `newest`: Calibration of each that is open."""
    return [one.rounding for one in newest if every and (one.era != at.era or at.version - one.version >= every)]


class Recalibration:
    """The daemon's part that makes Calibrations again."""

    def __init__(
        self,
        run: Run,
        newest: Callable[[], Iterable[Calibration]],
        published: Callable[[], VersionNumber | None],
        written: Callable[[], None],
        now: Callable[[], int],
    ) -> None:
        """`newest`: Calibration of each open rounding. `published`: the newest version. `written`: called after a
        Calibration was written. `now`: ms."""
        self._run = run
        self._newest, self._published, self._written, self._now = newest, published, written, now
        self._not_before: dict[str, float] = {}
        """Rounding -> monotonic seconds (rule 3)."""
        self._put_off: set[str] = set()
        """Roundings that are not tried now, as of the last look."""
        self._wanted: dict[str, int] = {}
        """Rounding -> since when its Calibration is to be (rule 5), ms; what was asked for since the last look."""
        self._calibrated: dict[str, int] = {}
        """The same, of those that were made."""

    def to_come(self, rounding: str, since: int) -> bool:
        """Tell whether a Calibration of a rounding, made after `since`, ms, is to come, and want it (rule 5)."""
        at = self._published()
        newest = self._open(rounding)
        if at is None or newest is None or not self._run.config.calibration.every or rounding in self._put_off:
            return False
        if newest.at >= since or self._is_calibrated(rounding, since) or (newest.era, newest.version) == at:
            return False
        self._wanted[rounding] = since
        return True

    def _open(self, rounding: str) -> Calibration | None:
        return next((one for one in self._newest() if one.rounding == rounding), None)

    def _is_calibrated(self, rounding: str, since: int) -> bool:
        return self._calibrated.get(rounding, -1) >= since

    async def run(self) -> None:
        """Look every `CLASS_POLL_SECONDS` seconds until cancelled."""
        while True:
            await asyncio.sleep(CLASS_POLL_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Calibrate each rounding that is due, and not put off."""
        at, elapsed = self._published(), asyncio.get_running_loop().time()
        if at is None:
            return
        self._put_off = {name for name, until in self._not_before.items() if elapsed < until}
        wanted = {name: since for name, since in self._wanted.items() if not self._is_calibrated(name, since)}
        self._wanted = {}
        for rounding in dict.fromkeys([*due(self._newest(), at, self._run.config.calibration.every), *wanted]):
            newest = self._open(rounding)
            if newest is not None and rounding not in self._put_off and await self._again(newest):
                self._calibrated[rounding] = wanted.get(rounding, self._calibrated.get(rounding, -1))

    async def _again(self, newest: Calibration) -> bool:
        """Make a Calibration again; tell whether that went well."""
        rounding, tokens = newest.rounding, self._run.config.calibration.tokens
        try:
            path = await calibrate_classes(self._run, newest.classes, tokens, self._now(), newest.devices)
        except LocalFault as error:
            self._not_before[rounding] = asyncio.get_running_loop().time() + CALIBRATION_RETRY_SECONDS
            self._put_off.add(rounding)
            log.warning("rounding not calibrated again", rounding=rounding, reason=str(error))
            return False
        log.info("rounding calibrated again", rounding=rounding, file=path.name)
        self._written()
        return True
