"""Fetch the proofs of this node's Receipts, and check them before they are stored.

Rules
1. Proofs are requested for the Receipts that a head covers, at most `PROOFS` per call, the lowest entry first.
2. A Receipt that names entry 0 is proved by the end of its lease under the root in an entry `leases.ended`, and by that
   entry. The coordinator has these ends for a day after the entry; a Receipt older than `ENDS_KEPT` is not asked for.
3. What the coordinator does not prove is asked for over HTTPS (node/rollouts/ledger_sources.py).
4. A Receipt in whose place the ledger is proved to have another entry is lost: it is listed, and not asked for again.
5. Where an entry names Costs by which the group was weighed, the proof of that entry is requested too, once.
6. Where a Receipt names an epoch, the entries with the epoch's close and terms are requested by their keys, until the
   epoch has closed and a head covers that (node/trust/pay_witness.py).
7. The coordinator limits its answers. So one that proves nothing is no evidence, and is asked again in the next round.
8. A proof that does not hold stops no other one: the others of its answer are stored.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from echo2.node.rollouts.ledger_sources import LedgerSources, Source
from echo2.node.rollouts.outbox import Outbox
from echo2.node.trust import pay_witness
from echo2.node.trust.ledger_store import LedgerStore
from echo2.node.trust.ledger_witness import (
    EndedProof,
    NotProved,
    ReceiptProof,
    check_end,
    check_receipt,
    is_lost,
    named_costs,
    opened_costs,
    proved_entry,
)
from echo2.node.trust.pay_witness import OwnEpoch
from echo2.node.trust.trust_store import TrustStore
from echo2.p2p.errors import P2PError
from echo2.protocol.leases import Receipt
from echo2.protocol.ledger_heads import MOST_ENTRIES, MOST_KEYS, EndProof, EntryProof, LedgerRequest, LedgerResponse
from echo2.runtime.units import DAY

PROOFS: Final = 2048
"""Most proofs per call."""
ENDS_KEPT: Final = DAY + 600_000
"""Milliseconds after a Receipt for which its lease's end may still be proved."""


_log = structlog.get_logger("node")


class ReceiptProofs:
    """The proofs of one node's Receipts."""

    def __init__(self, outbox: Outbox, store: LedgerStore, sources: LedgerSources, trust_store: TrustStore) -> None:
        self._outbox, self._store, self._sources, self._trust_store = outbox, store, sources, trust_store

    async def fetch(self, now: int) -> None:
        """Fetch what the newest head covers (rules 1 to 3). `now`: ms, this machine's clock. Raises `P2PError` where a
        source is at fault or nothing is proved."""
        newest, coordinator = self._store.newest(), self._sources.coordinator()
        if newest is None or coordinator is None:
            return
        number, size = newest.head.number, newest.head.size
        try:
            await self._fetch_entries(coordinator, number, size)
            await self._fetch_epochs(coordinator, number, size)
            await self._fetch_ends(coordinator, number, size, now)
        except P2PError as fault:
            before = self._store.count_proved()
            async for source in self._sources.instead(entries=True):
                await self._fetch_entries(source, number, size)
                await self._fetch_epochs(source, number, size)
                await self._fetch_ends(source, number, size, now)
            if self._store.count_proved() == before:
                raise fault

    async def _fetch_entries(self, source: Source, number: int, size: int) -> None:
        for _ in range(PROOFS // MOST_ENTRIES):
            wanted = {receipt.entry: receipt for receipt in self._outbox.unproved_receipts(size, MOST_ENTRIES)}
            if not wanted:
                return
            answer = await source(LedgerRequest(log=self._store.log(), after=number, entries=sorted(wanted), size=size))
            costs = self._take_entries([ReceiptProof(proof, size) for proof in answer.proofs], wanted)
            await self._fetch_costs(source, number, size, costs)

    async def _fetch_costs(self, source: Source, number: int, size: int, entries: set[int]) -> None:
        """Fetch the Costs of these entries that this node does not hold. Raises `P2PError`."""
        lacking = sorted(entry for entry in entries if 0 < entry <= size and not self._store.has_costs(entry))
        if not lacking:
            return
        answer = await source(
            LedgerRequest(log=self._store.log(), after=number, entries=lacking[:MOST_ENTRIES], size=size)
        )
        for proof in answer.proofs:
            if proof.entry in lacking:
                proved = ReceiptProof(proof, size)
                opened_costs(proved, self._store.root_of, self._trust_store.trusted.chain)
                self._store.put_costs(proved, self._trust_store.serial or 0)

    async def _fetch_epochs(self, source: Source, number: int, size: int) -> None:
        """Fetch the closes of epochs (rule 6). Raises `P2PError`."""
        for _ in range(PROOFS // MOST_ENTRIES):
            wanted = self._store.wanted_epochs(MOST_KEYS)
            if not wanted:
                return
            keys = {pay_witness.close_key(epoch): epoch for epoch in wanted}
            answer = await source(LedgerRequest(log=self._store.log(), after=number, size=size, keys=list(keys)))
            for proof in answer.proofs:
                closed = ReceiptProof(proof, size)
                epoch = keys.pop(proved_entry(closed, self._store.root_of).key, None)
                if epoch is not None:
                    self._store.put_epoch(epoch, closed, self._own(epoch, closed))
            if keys:
                return

    def _own(self, epoch: int, closed: ReceiptProof) -> OwnEpoch | None:
        """Return what the close of an epoch says of this node; None where that contradicts itself: it is then evidence,
        which `receipts verify` names."""
        try:
            return pay_witness.own_epoch(epoch, closed, self._outbox.peer, self._store.root_of)
        except NotProved as error:
            _log.warning("the close of an epoch does not hold", epoch=epoch, reason=str(error))
            return None

    def _take_entries(self, proofs: Sequence[ReceiptProof], wanted: Mapping[int, Receipt]) -> set[int]:
        """Check and store proofs (rule 8); return the numbers of the entries with the Costs that they name. `wanted`:
        Receipts by entry. Raises `NotProved` where none is proved."""
        proved, lost, costs, epochs = [], [], set[int](), set[int]()
        fault = NotProved("the coordinator proves no entry of this node's receipts")
        for one in proofs:
            receipt = wanted.get(one.proof.entry)
            if receipt is None:
                continue
            if is_lost(receipt, one, self._store.root_of):
                self._store.put_lost(receipt.lease, one)
                lost.append(receipt.lease)
                _log.error("receipt lost: the ledger has another entry", lease=receipt.lease.hex(), entry=receipt.entry)
                continue
            try:
                check_receipt(receipt, one, self._store.root_of)
            except NotProved as error:
                fault = error
                continue
            self._store.put_proof(receipt.lease, one)
            proved.append(receipt.lease)
            epochs |= set() if receipt.epoch is None else {receipt.epoch}
            costs.add(named_costs(one))
        if not proved and not lost:
            raise fault
        self._store.want_epochs(epochs)
        self._outbox.mark_proved(proved)
        self._outbox.mark_lost(lost)
        return costs

    async def _fetch_ends(self, source: Source, number: int, size: int, now: int) -> None:
        asked: set[bytes] = set()
        for _ in range(PROOFS // MOST_ENTRIES):
            receipts = self._outbox.unproved_ends(now - ENDS_KEPT, MOST_ENTRIES + len(asked))
            wanted = {one.lease: one for one in receipts if one.lease not in asked}
            if not wanted:
                return
            leases = list(wanted)[:MOST_ENTRIES]
            answer = await source(LedgerRequest(log=self._store.log(), after=number, leases=leases, size=size))
            if not self._take_ends(answer, size, wanted):
                asked.update(leases)

    def _take_ends(self, answer: LedgerResponse, size: int, wanted: Mapping[bytes, Receipt]) -> bool:
        """Check and store the ends of an answer (rule 8); return whether there was one. Raises `NotProved` where none
        of them holds."""
        entries = {proof.entry: proof for proof in answer.proofs}
        proved, fault = [], None
        for end in answer.ends:
            try:
                lease = self._take_end(end, entries, size, wanted)
            except NotProved as error:
                fault = error
            else:
                proved += [lease] if lease is not None else []
        if fault is not None and not proved:
            raise fault
        self._outbox.mark_proved(proved)
        return bool(proved)

    def _take_end(
        self, end: EndProof, entries: Mapping[int, EntryProof], size: int, wanted: Mapping[bytes, Receipt]
    ) -> bytes | None:
        """Check and store one end; return its lease, None if it was not asked for. Raises `NotProved`."""
        if end.entry not in entries:
            raise NotProved(f"the end of a lease comes without its entry {end.entry}")
        one = EndedProof(end, ReceiptProof(entries[end.entry], size))
        receipt = wanted.get(one.lease)
        if receipt is not None:
            check_end(receipt, one, self._store.root_of)
            self._store.put_end(receipt.lease, one)
        return None if receipt is None else receipt.lease
