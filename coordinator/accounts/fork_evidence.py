"""The evidence of another history: a head that a node holds and that the ledger in run.sqlite does not have."""

from echo2.coordinator.accounts import two_logs
from echo2.coordinator.accounts.run_logs import FOREIGN_HEAD_FACT
from echo2.coordinator.database.database import Database
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.wire_types import decode
from echo2.protocol.ledger_heads import LedgerHead
from echo2.runtime.figures import number_of


def evidence(database: Database) -> str:
    """Return the sentence of the stored evidence; empty: there is none."""
    if logs := two_logs.evidence(database):
        return logs
    sealed: bytes | None = database.fact(FOREIGN_HEAD_FACT)
    if sealed is None:
        return ""
    head, newest = head_of(sealed), newest_head(database)
    evident = (
        f"a node holds LedgerHead {head.number} over {number_of(head.size, 'entry')}, which the ledger's key signed"
    )
    if head.number > newest:
        return (
            f"{evident}, and run.sqlite ends with head {newest}: it is an older copy; restore a later one, or begin "
            "a new log: `echo2-coord keys request-log FILE`"
        )
    return f"{evident}, and run.sqlite has another head {head.number}: two histories are signed"


def newest_head(database: Database) -> int:
    """Return the number of the newest head; 0: there is none."""
    return int(database.value("SELECT max(number) FROM ledger_heads") or 0)


def head_of(sealed: bytes) -> LedgerHead:
    """Decode a head whose signature was verified before it was stored."""
    return decode(decode_unverified(sealed).payload, LedgerHead)
