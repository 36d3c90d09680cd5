"""The logs of a run as its coordinator has them: documents in the run folder, and entries that repeat them.

Rules
1. The documents are the files `restored/SERIAL` of the run folder, verified as a chain (protocol/restored_logs.py) each
   time they are read. They are no part of run.sqlite: a later copy, of any age, still follows them.
2. `restore` records what the copy had (`RestoredCopy`). A document is taken once it states exactly that: its entry is
   written, evidence of heads of the logs before is dropped, and heads are of the new log from then on.
3. A ledger that lacks the entry of the newest document, and waits for none, is a copy that was put there since: no head
   is signed, as nodes hold heads of that log, until a further document is taken.
4. A document is requested only where a node has shown a head that the copy lacks, and only for a copy that the newest
   log begins with.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.ledger.ledger_facts import LOG_RESTORED, LogBegun, log_key
from echo2.p2p.envelope import seal
from echo2.p2p.errors import PeerFault
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import Root, open_kept, open_log
from echo2.protocol.ledger_heads import MOST_LOGS
from echo2.protocol.restored_logs import LogChain, LogRestored, SealedLog
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.errors import LocalFault

RESTORED_FACT: Final = "restored"
"""The fact that a copy was put in the place of run.sqlite: the number of its newest head."""
FOREIGN_HEAD_FACT: Final = "foreign_head"
"""The fact with the newest head that a node showed and the ledger lacks, sealed."""
_COPY: Final = "restored_copy"
_LEAST_ERA: Final = "least_era"
_MOST_NUMBER: Final = 1 << 52


class RestoredCopy(msgspec.Struct, frozen=True):
    """State of a copy when it took the ledger's place. `number`: number of its newest head. `at`: ms."""

    number: int
    size: int
    at: int


def record(database: Database, copy: RestoredCopy) -> None:
    """Record in a copy that it takes the ledger's place (rule 2)."""
    database.set_fact(RESTORED_FACT, copy.number)
    database.set_fact(_COPY, msgspec.json.encode(copy))


def recorded_copy(database: Database) -> RestoredCopy | None:
    """Return what the copy had that waits for its document or for its nodes; None: none does."""
    stored: bytes | None = database.fact(_COPY)
    return None if stored is None else msgspec.json.decode(stored, type=RestoredCopy)


def forget(database: Database) -> None:
    """Record that the copy counts as the ledger: heads are signed again."""
    database.do("DELETE FROM facts WHERE name IN (?, ?)", (RESTORED_FACT, _COPY))


def order_new_era(database: Database, now: int) -> None:
    """Record that eras begun before `now`, ms, are also another coordinator's: the learner begins one after it."""
    database.set_fact(_LEAST_ERA, now // 1000)


def least_era(database: Database) -> int:
    """Return the era before which no checkpoint is resumed; 0: each is."""
    least: int | None = database.fact(_LEAST_ERA)
    return least or 0


def read_logs(place: RunFolder, chain: Sequence[Root]) -> LogChain:
    """Read and verify the documents of a run folder (rule 1). `chain`: its Roots. Raises `Untrusted`."""
    logs = LogChain(chain[-1].run)
    while (path := place.restored / str(logs.serial + 1)).exists():
        try:
            logs = logs.with_next(open_log(path.read_bytes(), chain))
        except (PeerFault, OSError) as error:
            raise Untrusted(f"{path} is no document that begins the next log: {error}") from error
    return logs


def of_ledger(ledger: Ledger, logs: LogChain) -> int:
    """Return the serial of the newest log whose entry the ledger has; 0: it is in the first."""
    serials = [one.document.serial for one in logs.logs if ledger.find(log_key(one.document.serial)) is not None]
    return max(serials, default=0)


def newest_shared(database: Database, logs: LogChain) -> int | None:
    """Return the number of the newest LedgerHead that each copy had which took the ledger's place, as far as it is
    known; None: it is of none. Behind it the run's histories may differ."""
    copy = recorded_copy(database)
    numbers = [one.document.number for one in logs.logs] + ([copy.number] if copy is not None else [])
    return min(numbers, default=None)


def next_log(database: Database, logs: LogChain, chain: Sequence[Root]) -> LogRestored:
    """Return the document that begins the next log, unsigned (rule 4). Raises `LocalFault`."""
    copy, shown = recorded_copy(database), database.fact(FOREIGN_HEAD_FACT)
    if copy is None:
        raise LocalFault(
            "run.sqlite is no copy that waits for a new log: put one there by `echo2-coord restore`, and start the run"
        )
    if shown is None:
        raise LocalFault(
            "no node has shown a head later than the copy, so no new log is needed: the run goes on by itself an hour "
            "after its start"
        )
    if logs.serial >= MOST_LOGS:
        raise LocalFault(f"this run has begun {logs.serial} logs, and no more are possible: make another run")
    ledger = Ledger(database)
    later = logs.logs[of_ledger(ledger, logs) :]
    if any(copy.size > one.document.size or copy.number > one.document.number for one in later):
        raise LocalFault(
            "the copy is of a log that has ended, and the newest one lacks its last entries: restore another"
        )
    document = LogRestored(
        serial=logs.serial + 1, old=logs.newest, number=copy.number, size=copy.size, root=ledger.tree.root(copy.size),
        restored=copy.at, head=shown,
    )  # fmt: skip
    try:
        open_kept(shown, "ledgerhead", chain)
        logs.with_next(SealedLog(document, seal(LOG_RESTORED, logs.run, encode(document))))
    except PeerFault as error:
        raise LocalFault(f"no log can begin here: {error}") from error
    if document.known.number > _MOST_NUMBER:
        raise LocalFault("the head shown has a number that no run reaches: revoke the stolen key of the ledger first")
    return document


class RunLogs:
    """The logs of a running coordinator. `chain`: returns the Roots. `logs`: all of the folder."""

    def __init__(self, place: RunFolder, chain: Callable[[], Sequence[Root]], database: Database) -> None:
        """Raises `Untrusted`."""
        self._place, self._chain, self._database = place, chain, database
        self._ledger = Ledger(database)
        self.logs = read_logs(place, chain())

    def look(self, now: int) -> SealedLog | None:
        """Take a document that was put into the folder (rule 2); return it. `now`: ms. Raises `Untrusted`."""
        if (self._place.restored / str(self.logs.serial + 1)).exists():
            self.logs = read_logs(self._place, self._chain())
        copy = recorded_copy(self._database)
        if copy is None or not self.logs.logs:
            return None
        one = self.logs.logs[-1]
        document = one.document
        if (document.number, document.size, document.restored) != (copy.number, copy.size, copy.at):
            return None
        if self._ledger.tree.root(document.size) != document.root:
            raise Untrusted(f"log.restored {document.serial} restores another ledger than run.sqlite has")
        with self._database.transaction():
            self._ledger.append(now, LOG_RESTORED, log_key(document.serial), LogBegun.of(one))
            forget(self._database)
            self._database.do("DELETE FROM facts WHERE name = ?", (FOREIGN_HEAD_FACT,))
        return one

    def behind(self) -> str:
        """Return why no head may be signed as the ledger is not in the newest log (rule 3); empty: it is."""
        if not self.logs.logs or self._ledger.find(log_key(self.logs.serial)) is not None:
            return ""
        return (
            f"run.sqlite lacks entry log.restored {self.logs.serial}, with which the run's newest log begins: it is a "
            "copy from before; restore a later one, or begin a new log: `echo2-coord keys request-log FILE`"
        )
