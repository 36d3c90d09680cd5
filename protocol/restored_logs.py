"""Logs of a run: the first, and those that follow where a ledger was restored from a copy older than a published head.

Rules
1. The first log has the run's id. Each later one has a document of kind `log.restored`, sealed by the role root; its id
   is the SHA-256 of that payload. Documents are numbered 1, 2, 3, ..., and each names the log that it follows.
2. A document states what the copy had: `size` entries with the tree's `root`, and heads up to `number`. The new log has
   these entries and heads, and goes on behind them. Heads and entries of earlier logs behind that are lost.
3. It contains the newest head that was known, signed by the ledger's key, of a log before: it has at least `size`
   entries, and at least the number `number`. Without such a head there is nothing from which to begin a new log.
4. So a head of log j has a number and a size above those of document j, and not above those of any later document.
5. Two documents with the same serial and different payloads, both sealed by the role root, prove two histories.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from echo2.p2p.envelope import decode_unverified
from echo2.p2p.errors import BadSignature
from echo2.p2p.wire_types import Count, Hash, Milliseconds, Wire, decode
from echo2.protocol.ledger_heads import GrownHead, LedgerHead, LedgerRequest, payload_hash
from echo2.runtime.figures import number_of

KIND: Final = "log.restored"
"""The kind of the document, and of the ledger's entry that repeats it."""


class LogRestored(Wire, frozen=True):
    """operator (root) -> everyone. The log that begins where a ledger was restored from a copy. `serial`: 1, 2, 3, ...
    `old`: id of the log before. `number`: number of the copy's newest head; 0: it has none. `size`, `root`: entries of
    the copy, and of their tree. `restored`: when the copy took the ledger's place, ms. `head`: the newest head
    known."""

    serial: Annotated[int, Meta(ge=1, lt=1 << 53)]
    old: Hash
    number: Count
    size: Annotated[int, Meta(ge=1, lt=1 << 53)]
    root: Hash
    restored: Milliseconds
    head: Annotated[bytes, Meta(max_length=4096)]

    @property
    def known(self) -> LedgerHead:
        """The newest head known, its signature unverified. Raises `Malformed`."""
        return decode(decode_unverified(self.head).payload, LedgerHead)


@dataclass(frozen=True)
class SealedLog:
    """A document whose signature was verified, and its sealed bytes."""

    document: LogRestored
    sealed: bytes

    @property
    def id(self) -> bytes:
        """The id of the log."""
        return payload_hash(self.sealed)


def open_unverified(sealed: bytes) -> SealedLog:
    """Decode a document that was verified before. Raises `Malformed`."""
    return SealedLog(decode(decode_unverified(sealed).payload, LogRestored), sealed)


class LogChain:
    """The logs of a run, in order. `logs`: the documents of all but the first, each verified to follow the one
    before."""

    def __init__(self, run: bytes, logs: Iterable[SealedLog] = ()) -> None:
        self.run = run
        self.logs: Sequence[SealedLog] = tuple(logs)
        self._serials = {run: 0} | {one.id: one.document.serial for one in self.logs}

    @property
    def serial(self) -> int:
        """The serial of the newest log; 0: it is the first."""
        return len(self.logs)

    @property
    def newest(self) -> bytes:
        """The id of the newest log."""
        return self.logs[-1].id if self.logs else self.run

    def serial_of(self, log: bytes | None) -> int | None:
        """Return the serial of a log, of the first for None; None: it is none of these."""
        return 0 if log is None else self._serials.get(log)

    def after(self, log: bytes | None) -> Sequence[SealedLog]:
        """Return the documents that follow a log; all where it is none of these."""
        return self.logs[self.serial_of(log) or 0 :]

    def admits(self, head: LedgerHead) -> bool:
        """Tell whether a head stands in this chain of logs (rule 4)."""
        serial = self.serial_of(head.log)
        if serial is None:
            return False
        if serial:
            own = self.logs[serial - 1].document
            if head.number <= own.number or head.size <= own.size:
                return False
        later = [one.document for one in self.logs[serial:]]
        return all(head.number <= one.number and head.size <= one.size for one in later)

    def begun_between(self, before: LedgerHead | None, head: LedgerHead) -> LogRestored | None:
        """Return the document of a head's log where the head before is of an earlier one; None: both are of one log."""
        serial = self.serial_of(head.log) or 0
        earlier = 0 if before is None else self.serial_of(before.log) or 0
        return self.logs[serial - 1].document if serial > earlier else None

    def with_next(self, one: SealedLog) -> "LogChain":
        """Return the chain with a further log (rules 1 to 3). Raises `BadSignature`, `Malformed`."""
        document, known = one.document, one.document.known
        if (document.serial, document.old) != (self.serial + 1, self.newest):
            raise BadSignature(
                f"log.restored {document.serial} does not follow the log held, the one with serial {self.serial}"
            )
        if self.serial_of(known.log) is None:
            raise BadSignature(
                f"log.restored {document.serial} shows a head of another run's ledger, or of no log before"
            )
        if known.size < document.size or known.number < document.number:
            raise BadSignature(
                f"log.restored {document.serial} restores {number_of(document.size, 'entry')}, and the newest head "
                f"that it shows covers {known.size}: nothing was lost"
            )
        return LogChain(self.run, (*self.logs, one))


def chain_of(run: bytes, documents: Iterable[bytes]) -> LogChain:
    """Return the chain of documents that were verified before, in order. Raises `BadSignature`, `Malformed`."""
    chain = LogChain(run)
    for sealed in documents:
        chain = chain.with_next(open_unverified(sealed))
    return chain


def heads_up_to(logs: LogChain, request: LedgerRequest, heads: Sequence[GrownHead]) -> list[GrownHead]:
    """Return those heads of an answer that a client can take: of logs up to its own. A request for the newest head
    alone gets that, whatever its log, and a client of an unknown log the documents alone."""
    if request.after is None or request.log == logs.newest:
        return list(heads)
    serial = logs.serial_of(request.log)
    return [one for one in heads if serial is not None and _serial_of(logs, one) <= serial]


def _serial_of(logs: LogChain, grown: GrownHead) -> int:
    head = decode(decode_unverified(grown.sealed).payload, LedgerHead)
    return logs.serial_of(head.log) or 0
