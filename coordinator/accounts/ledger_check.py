"""Verify the whole ledger beside the run: at each start, and once per day.

Rules
1. Opening run.sqlite reads no history. So the ledger is verified in a thread, over one snapshot of the file, for at
   most `CHECK_TIME_SHARE` of the time: a million entries take about a minute, and delay no request.
2. Entries behind the snapshot follow by their own transactions. Heads compare the tree with the last head each time
   (coordinator/accounts/head_signing.py).
3. A ledger that does not verify pauses the run, with the number of the first wrong entry as the reason in the log, on
   the page and in `status`. No head is signed until the next start.
4. No money goes before the ledger is verified: `payout send` verifies it itself, each time, up to its end
   (coordinator/payouts/payout_checks.py).
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import anyio.to_thread
import structlog

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import CHECK_EVERY, Database
from echo2.ledger.ledger_entries import Entry, Tampered

CHECK_TIME_SHARE: Final = 0.25
AT_ONCE: Final = 256
"""Entries between two pauses; some 2 ms of work."""

_log = structlog.get_logger("coordinator")


class LedgerChecked(NamedTuple):
    """The outcome of a verification: the number of verified entries, or the sentence of what is wrong."""

    entries: int = 0
    fault: str = ""


class LedgerCheck:
    """The verification of a run's ledger. `path`: path of run.sqlite. `wrong`: called with the sentence of a fault."""

    def __init__(self, path: Path, wrong: Callable[[str], None]) -> None:
        self._path, self._wrong = path, wrong
        self._ended = threading.Event()
        self.last: LedgerChecked | None = None
        """The last outcome; None: the first verification since the start goes on."""

    def holds(self) -> bool:
        """Tell whether the ledger was seen not to verify, so that no head is signed (rule 3)."""
        return self.last is not None and bool(self.last.fault)

    async def run(self) -> None:
        """Verify, then again once per day, until cancelled."""
        try:
            while True:
                self._note(await anyio.to_thread.run_sync(self._verify_ledger, abandon_on_cancel=True))
                await anyio.sleep(CHECK_EVERY / 1000)
        finally:
            self._ended.set()

    def _note(self, outcome: LedgerChecked) -> None:
        self.last = outcome
        if outcome.fault:
            _log.error("ledger does not verify; no head is signed", reason=outcome.fault)
            self._wrong(outcome.fault)
        else:
            _log.info("ledger verified", entries=outcome.entries)

    def _verify_ledger(self) -> LedgerChecked:
        with Database.read(self._path) as database, database.reading():
            try:
                return LedgerChecked(Ledger(database).verify(self._pace_entries).entries)
            except Tampered as error:
                return LedgerChecked(fault=f"{error}: restore a copy, and keep this run.sqlite")

    def _pace_entries(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        """Yield entries with pauses (rule 1), until the run ends."""
        began = time.perf_counter()
        for number, entry in enumerate(entries, start=1):
            yield entry
            if number % AT_ONCE == 0:
                if self._ended.wait((time.perf_counter() - began) * (1 / CHECK_TIME_SHARE - 1)):
                    return
                began = time.perf_counter()
