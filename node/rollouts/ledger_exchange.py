"""Fetch the heads of the ledger and the proofs of this node's receipts, and compare heads with other peers.

Rules
1. Every `ASK_EVERY` seconds, and before it ends, the node asks the coordinator for the heads after its newest one.
   Each is checked (node/trust/ledger_witness.py) and stored before it is used. Heads that a revoked key signed wait
   for a later one that vouches for them, at most `HELD`.
2. Then it asks `OTHERS` peers at random for their newest head. One that this node does not hold yet is compared once
   this node has the head of that number; at most `WAITING` heads wait for that.
3. Proofs are requested for the receipts that a head covers, at most `PROOFS` per round, the oldest first. Where they
   name Costs by which they were weighed, the proof of that entry is requested too, once.
4. A fork is stored, and ends the node: `TrustFailure`. A head that the ledger's key did not sign, or that comes without
   proof, is no evidence: nothing is stored, and the node tries again later.
5. Any peer is answered with the newest head that this node holds.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from node.errors import TrustFailure
from node.rollouts.outbox import Outbox
from node.run_context import RunContext
from node.trust.ledger_store import LedgerStore
from node.trust.ledger_witness import (
    LedgerFork,
    NotProved,
    ReceiptProof,
    WitnessedHead,
    check_fork,
    check_next,
    check_receipt,
    named_costs,
    opened,
    opened_costs,
    opened_in_order,
)
from p2p.errors import P2PError
from p2p.handlers import Handlers
from p2p.network import Links, Rpc
from protocol.authority import Unproven
from protocol.leases import Receipt
from protocol.ledger_heads import MOST_ENTRIES, GrownHead, LedgerRequest, LedgerResponse
from protocol.methods import LEDGER

ASK_EVERY: Final = 60.0
"""Seconds between two rounds."""
LOOK: Final = 1.0
"""Seconds between two looks for the coordinator, or two rounds once the run has finished."""
PATIENCE: Final = 15.0
"""Seconds to wait for an answer."""
OTHERS: Final = 2
"""Peers asked for their newest head per round."""
HELD: Final = 4096
"""Most heads that wait for a later one that vouches for them."""
WAITING: Final = 64
"""Most heads of other peers that wait until this node has theirs."""
PROOFS: Final = 2048
"""Most proofs per round."""

_log = structlog.get_logger("node")


class LedgerExchange:
    """This node's part as a witness. `coordinator`: returns its peer id; None: it is not connected."""

    def __init__(
        self,
        handlers: Handlers,
        rpc: Rpc,
        links: Links,
        context: RunContext,
        store: LedgerStore,
        outbox: Outbox,
        *,
        coordinator: Callable[[], str | None],
    ) -> None:
        self._rpc, self._links, self._context = rpc, links, context
        self._store, self._outbox, self._coordinator = store, outbox, coordinator
        self._random = random.Random(context.seed)
        self._waiting: OrderedDict[bytes, WitnessedHead] = OrderedDict()
        LEDGER.serve(handlers, self._answer)

    async def run(self) -> None:
        """Fetch and compare until cancelled. Raises `TrustFailure` for a fork, also for a stored one."""
        if (stored := self._store.fork()) is not None:
            raise TrustFailure(_sentence(stored))
        while True:
            asked = await self._checked_round()
            await asyncio.sleep(ASK_EVERY if asked else LOOK)

    async def finish(self) -> None:
        """Do one more round; of a run that has finished, one per second until every Receipt is proved. The caller
        limits the time. Raises `TrustFailure` for a fork."""
        while await self._checked_round():
            head = self._context.trust_store.trusted.head
            if head is None or not head.value.finished or not self._outbox.unproved(1 << 53, 1):
                return
            await asyncio.sleep(LOOK)

    async def _checked_round(self) -> bool:
        """Do one round, and store a fork; return whether the coordinator was asked. Raises `TrustFailure`."""
        coordinator = self._coordinator()
        if coordinator is None:
            return False
        try:
            await self._round(coordinator)
        except LedgerFork as fork:
            self._store.put_fork(fork)
            raise TrustFailure(_sentence(str(fork))) from fork
        except P2PError as error:
            _log.info("ledger not proved yet", reason=str(error))
        return True

    async def _round(self, coordinator: str) -> None:
        """Do one round (rules 1 to 3). Raises `LedgerFork`, and `P2PError` for a peer at fault or out of reach."""
        await self._fetch_heads(coordinator)
        await self._compare(coordinator)
        await self._fetch_proofs(coordinator)

    async def _fetch_heads(self, coordinator: str) -> None:
        held: list[GrownHead] = []
        while True:
            newest = self._store.newest()
            ask = LedgerRequest(after=None if newest is None else newest.head.number + len(held))
            answer = await LEDGER.ask(self._rpc, coordinator, ask, timeout=PATIENCE)
            held += answer.heads
            try:
                self._take(held)
                held = []
            except Unproven:
                if newest is None or not answer.heads or len(held) >= HELD:
                    raise
            if newest is None or not answer.heads:
                return

    def _take(self, heads: Sequence[GrownHead]) -> None:
        """Take heads that follow each other; none, and raise `Unproven`, where no head vouches for the last ones."""
        chain = self._context.trust_store.trusted.chain
        ones = opened_in_order([grown.sealed for grown in heads], chain, self._context.run)
        for one, grown in zip(ones, heads, strict=True):
            check_next(self._store.newest(), one, grown)
            self._store.put(one, self._context.trust_store.serial or 0)

    def _opened(self, sealed: bytes) -> WitnessedHead:
        return opened(sealed, self._context.trust_store.trusted.chain, self._context.run)

    async def _compare(self, coordinator: str) -> None:
        others = [peer for peer in await self._links.peers() if peer != coordinator]
        for peer in self._random.sample(others, min(OTHERS, len(others))):
            try:
                answer = await LEDGER.ask(self._rpc, peer, LedgerRequest(), timeout=PATIENCE)
                for grown in answer.heads[:1]:
                    one = self._opened(grown.sealed)
                    self._waiting[one.sealed] = one
            except P2PError as error:
                _log.debug("peer shows no head of the ledger", peer=peer, reason=str(error))
        while len(self._waiting) > WAITING:
            self._waiting.popitem(last=False)
        newest = self._store.newest()
        reached = 0 if newest is None else newest.head.number
        for one in list(self._waiting.values()):
            for known in self._store.like(one.head):
                check_fork(known, one)
            if one.head.number <= reached:
                del self._waiting[one.sealed]

    async def _fetch_proofs(self, coordinator: str) -> None:
        newest = self._store.newest()
        if newest is None:
            return
        number, size = newest.head.number, newest.head.size
        for _ in range(PROOFS // MOST_ENTRIES):
            wanted = {receipt.entry: receipt for receipt in self._outbox.unproved(size, MOST_ENTRIES)}
            if not wanted:
                return
            ask = LedgerRequest(after=number, entries=sorted(wanted), size=size)
            answer = await LEDGER.ask(self._rpc, coordinator, ask, timeout=PATIENCE)
            costs = self._take_proofs([ReceiptProof(proof, size) for proof in answer.proofs], wanted)
            await self._fetch_costs(coordinator, number, size, costs)

    async def _fetch_costs(self, coordinator: str, number: int, size: int, entries: set[int]) -> None:
        """Fetch the Costs of these entries that this node does not hold. Raises `P2PError`."""
        lacking = sorted(entry for entry in entries if 0 < entry <= size and not self._store.has_costs(entry))
        if not lacking:
            return
        ask = LedgerRequest(after=number, entries=lacking[:MOST_ENTRIES], size=size)
        answer = await LEDGER.ask(self._rpc, coordinator, ask, timeout=PATIENCE)
        for proof in answer.proofs:
            if proof.entry in lacking:
                proved = ReceiptProof(proof, size)
                opened_costs(proved, self._store.root_of, self._context.trust_store.trusted.chain)
                self._store.put_costs(proved, self._context.trust_store.serial or 0)

    def _take_proofs(self, proofs: Sequence[ReceiptProof], wanted: Mapping[int, Receipt]) -> set[int]:
        """Check and store proofs; return the numbers of the entries with the Costs that they name. `wanted`: Receipts
        by entry. Raises `NotProved`, also where none is proved."""
        proved, costs = [], set[int]()
        for one in proofs:
            receipt = wanted.get(one.proof.entry)
            if receipt is not None:
                check_receipt(receipt, one, self._store.root_of)
                self._store.put_proof(receipt.lease, one)
                proved.append(receipt.lease)
                costs.add(named_costs(one))
        if not proved:
            raise NotProved("the coordinator proves no entry of this node's receipts")
        self._outbox.mark_proved(proved)
        return costs

    async def _answer(self, peer: str, request: LedgerRequest) -> LedgerResponse:
        newest = self._store.newest()
        return LedgerResponse(heads=[] if newest is None else [GrownHead(sealed=newest.sealed)])


def _sentence(fork: str) -> str:
    return (
        f"{fork}. The two are kept as evidence; work for this run has ended: ask its operator, and show them to others"
    )
