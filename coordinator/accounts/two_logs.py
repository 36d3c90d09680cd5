"""Two documents of restored logs with one serial, both signed by the root keys: the run has two histories by authority.

Rules
1. Both are verified by the run's Roots, and compared with the logs of this coordinator and with each other. Two with
   one serial and different payloads are evidence: both are stored, as long as the signatures of both count under the
   newest Root.
2. Nodes end where they see both, and nothing tells which one is right. So the coordinator goes on by neither silently:
   it pauses, signs no head, and pays nothing out; log, `status` and page say why.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from echo2.coordinator.database.database import Database
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.errors import P2PError
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import Root, open_log
from echo2.protocol.restored_logs import KIND, LogChain, LogRestored, SealedLog

_FACT: Final = "two_logs"
_pair = msgspec.msgpack.Decoder(tuple[bytes, bytes])


def is_log(sealed: bytes) -> bool:
    """Tell whether a document that a peer shows begins a restored log. Raises `Malformed`."""
    return decode_unverified(sealed).kind == KIND


def take(database: Database, sealed: Sequence[bytes], chain: Sequence[Root], logs: LogChain) -> bool:
    """Store two documents as evidence if there are two (rule 1); return whether there are. `sealed`: that a peer shows.
    Raises `P2PError` for one that does not verify."""
    known = list(logs.logs)
    for document in sealed:
        one = open_log(document, chain)
        for other in known:
            if other.document.serial == one.document.serial and other.id != one.id:
                database.set_fact(_FACT, msgspec.msgpack.encode((other.sealed, one.sealed)))
                return True
        known.append(one)
    return False


def recheck(database: Database, chain: Sequence[Root]) -> str:
    """Drop evidence that no longer counts under the Roots (rule 1); return why, or an empty text."""
    for sealed in _stored_logs(database):
        try:
            open_log(sealed, chain)
        except P2PError as error:
            database.do("DELETE FROM facts WHERE name = ?", (_FACT,))
            return str(error)
    return ""


def evidence(database: Database) -> str:
    """Return the sentence of the stored evidence; empty: there is none."""
    stored = [SealedLog(decode(decode_unverified(one).payload, LogRestored), one) for one in _stored_logs(database)]
    if not stored:
        return ""
    one, other = stored
    return (
        f"the run's root keys signed two documents log.restored {one.document.serial}: {one.id.hex()[:16]} restores "
        f"{one.document.size} entries, and {other.id.hex()[:16]} {other.document.size}; nodes that see both end. Find "
        "out who signed the second one: if a root key was stolen, a Root that revokes it ends this, else make another "
        "run"
    )


def _stored_logs(database: Database) -> tuple[bytes, ...]:
    stored: bytes | None = database.fact(_FACT)
    return () if stored is None else _pair.decode(stored)
