"""Sign the heads of the ledger, and answer for them: which entries a head covers, and that the ledger only grew.

Rules
1. A head is signed once the ledger has grown since the last one and that is `every` old, at once when the run has
   finished, and when the coordinator stops.
2. Heads are numbered without a gap. Each names the head before it (protocol/ledger_heads.py, rule 2), and is issued
   after it.
3. No head contradicts an earlier one: the tree of the last head's size must have its root, or nothing is signed,
   `Tampered` is raised, and the next attempt is made `every` later. The run goes on, and nodes see no newer head.
4. A head is stored for good in the transaction that signs it, and leaves once that is committed.
5. Heads are of the newest log (coordinator/accounts/run_logs.py). A client of an earlier one gets the documents of
   those that follow, with the proof that they continue what it has, and heads of its own log.
6. None is signed while `holds` says so: nodes may have later heads than this file
   (coordinator/publishing/foreign_heads.py).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import ORIGIN, Tampered
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.ledger_heads import (
    MOST_HEADS,
    EntryProof,
    GrownHead,
    LedgerHead,
    LedgerRequest,
    LedgerResponse,
    checkpoint,
    payload_hash,
)
from echo2.protocol.restored_logs import LogChain, heads_up_to
from echo2.runtime.figures import number_of

MOST_BYTES: Final = 1 << 20
"""Bytes of entries per answer; the first one may be larger."""
REMEMBERED_HEADS: Final = 1024
"""Heads whose proofs are remembered."""

Seal = Callable[[str, bytes], bytes]
Note = Callable[[LedgerHead, str], str]
"""A head and its checkpoint -> the checkpoint with the signature of the ledger's key."""


class StoredHead(NamedTuple):
    """A head, and as it is sent."""

    head: LedgerHead
    sealed: bytes


class LedgerHeads:
    """The table `ledger_heads`. `logs`: the run's, the first of which has the id `log`."""

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        log: bytes,
        seal: Seal,
        note: Note,
        *,
        every: int,
        logs: Callable[[], LogChain] | None = None,
        holds: Callable[[int], bool] | None = None,
    ) -> None:
        """`every`: milliseconds between two heads. `note`: signs a checkpoint in text. `logs`: returns the run's logs;
        None: it has one, `log`. `holds`: tells whether no head is signed now, ms (rule 6); None: it always is."""
        self._database = database
        self._ledger = ledger
        alone = LogChain(log)
        self._logs = logs or (lambda: alone)
        self._seal = seal
        self._note = note
        self.every = every
        self.holds = holds or _never
        self._failed: int | None = None
        self._remembered: OrderedDict[int, GrownHead] = OrderedDict()

    @property
    def logs(self) -> LogChain:
        """The run's logs."""
        return self._logs()

    @property
    def log(self) -> bytes:
        """The id of the newest log."""
        return self.logs.newest

    def tick(self, now: int, *, at_once: bool = False) -> LedgerHead | None:
        """Sign a head if one is due (rule 1); return it. Call every second or so. `at_once`: the run has finished."""
        newest = self.newest()
        last = self._failed if newest is None or self._failed is not None else newest.head.issued
        waits = last is not None and 0 <= now - last < self.every
        return None if waits and not (at_once and self._failed is None) else self.sign(now)

    def sign(self, now: int) -> LedgerHead | None:
        """Sign a head if the ledger has grown since the last one; return it. Raises `Tampered`."""
        before, tip = self.newest(), self._ledger.tip()
        if self.holds(now) or tip.entries == (0 if before is None else before.head.size):
            return None
        self._failed = now
        if before is not None:
            self._check(before.head, tip.entries)
        self._failed = None
        with self._database.transaction():
            head = LedgerHead(
                log=self.log,
                number=1 if before is None else before.head.number + 1,
                size=tip.entries,
                root=self._ledger.tree.root(tip.entries),
                tip=tip.hash,
                issued=now if before is None else max(now, before.head.issued + 1),
                before=None if before is None else payload_hash(before.sealed),
            )
            sealed, note = self._seal("ledgerhead", encode(head)), self._note(head, checkpoint(head))
            self._database.do(
                "INSERT INTO ledger_heads VALUES (?, ?, ?, ?, ?)", (head.number, head.size, head.issued, sealed, note)
            )
        return head

    def _check(self, before: LedgerHead, entries: int) -> None:
        """Raise `Tampered` where the ledger does not continue that of a head (rule 3)."""
        if entries < before.size:
            raise Tampered(
                entries + 1, f"is missing: LedgerHead {before.number} covers {number_of(before.size, 'entry')}"
            )
        if self._ledger.tree.root(before.size) != before.root:
            raise Tampered(before.size, f"the tree is not that of LedgerHead {before.number}")

    def newest(self) -> StoredHead | None:
        rows = self._select("ORDER BY number DESC LIMIT 1")
        return rows[0] if rows else None

    def all(self) -> Iterator[StoredHead]:
        """Yield every head in order."""
        after = 0
        while heads := self._select("WHERE number > ? ORDER BY number LIMIT ?", (after, MOST_HEADS)):
            yield from heads
            after = heads[-1].head.number

    def _select(self, which: str, parameters: tuple[int, ...] = ()) -> list[StoredHead]:
        rows = self._database.all(f"SELECT sealed FROM ledger_heads {which}", parameters)
        return [StoredHead(_head(sealed), sealed) for (sealed,) in rows]

    def heads_after(self, after: int | None) -> list[GrownHead]:
        """Return at most `MOST_HEADS` heads after number `after`, each with the proof from the head before; None: the
        newest alone."""
        newest = self.newest()
        if newest is None or after is None:
            return [] if newest is None else [GrownHead(sealed=newest.sealed)]
        last = min(newest.head.number, after + MOST_HEADS)
        return [self._grown_head(number) for number in range(after + 1, last + 1)]

    def answer(self, request: LedgerRequest) -> LedgerResponse:
        """Return the heads and documents for a client (rule 5), without proofs of entries."""
        heads = heads_up_to(self.logs, request, self.heads_after(request.after))
        later = self.logs.after(request.log)
        if not later:
            return LedgerResponse(heads=heads, every=self.every)
        kept = self._select("WHERE number = ?", (min([request.after or 0, *(one.document.number for one in later)]),))
        size = later[-1].document.size
        fits = kept and kept[0].head.size <= size <= self._ledger.tree.size
        proof = self._ledger.tree.consistency(kept[0].head.size, size) if fits else []
        documents = [one.sealed for one in later]
        return LedgerResponse(heads=heads, every=self.every, restored=documents, continued=proof)

    def _grown_head(self, number: int) -> GrownHead:
        """Return one head with its proof; the last `REMEMBERED_HEADS` are remembered, since a head never changes."""
        if number in self._remembered:
            return self._remembered[number]
        *before, one = self._select("WHERE number IN (?, ?) ORDER BY number", (number - 1, number))
        proof = self._ledger.tree.consistency(before[0].head.size, one.head.size) if before else []
        begun = self.logs.begun_between(before[0].head, one.head) if before else None
        restored = [] if begun is None else self._ledger.tree.consistency(begun.size, one.head.size)
        self._remembered[number] = GrownHead(sealed=one.sealed, consistency=proof, restored=restored)
        if len(self._remembered) > REMEMBERED_HEADS:
            self._remembered.popitem(last=False)
        return self._remembered[number]

    def proofs(self, entries: Sequence[int], size: int) -> list[EntryProof]:
        """Return the proofs of entries in the tree over `size` entries: of those that it has, up to `MOST_BYTES`. An
        entry beyond that is not read: anybody may name 32 closes of epochs, of megabytes each."""
        if size > self._ledger.tree.size:
            return []
        proofs: list[EntryProof] = []
        left = MOST_BYTES
        for number in entries:
            if proofs and self._ledger.bytes_of(number) > left:
                continue
            proof = self.proof(number, size)
            if proof is None:
                continue
            left -= len(proof.canonical)
            proofs.append(proof)
        return proofs

    def entry_numbers(self, keys: Sequence[str]) -> list[int]:
        """Return the numbers of the entries with these keys, as far as there are any."""
        return [number for key in keys if (number := self._ledger.number_of(key)) is not None]

    def proof(self, number: int, size: int) -> EntryProof | None:
        """Return the proof of an entry in the tree over `size` entries; None: it is not in there."""
        return entry_proof(self._ledger, number, size)


def entry_proof(ledger: Ledger, number: int, size: int) -> EntryProof | None:
    """Return the proof of an entry in the tree over `size` entries; None: it is not in there."""
    written = ledger.canonical_of(number) if 0 < number <= size <= ledger.tree.size else None
    if written is None:
        return None
    before = ledger.hash_of(number - 1)
    return EntryProof(
        entry=number,
        previous=ORIGIN if before is None else before,
        canonical=written,
        path=ledger.tree.inclusion(number, size),
    )


def _head(sealed: bytes) -> LedgerHead:
    return decode(decode_unverified(sealed).payload, LedgerHead)


def _never(now: int) -> bool:
    """Hold no head back."""
    return False
