"""Fetch the heads of the ledger and the proofs of this node's receipts, and compare heads with other peers.

Rules
1. Every `ASK_EVERY` seconds, and before it ends, the node asks the coordinator for the heads after its newest one,
   until there are no more: so it tells which one it holds, and payments wait for that. Each is checked
   (node/trust/ledger_witness.py) and stored before it is used. Where one is refused, or another peer has a later one,
   the other sources are asked (node/rollouts/ledger_sources.py). Heads that a revoked key signed wait for a later one
   that vouches for them, at most `MOST_UNVOUCHED`.
2. Then it asks a few peers at random for their newest head. One that this node does not hold yet is compared once
   this node has the head of that number; at most `MOST_WAITING_HEADS` heads wait for that. Each head follows from the
   first one here, which is taken as it is. So that counts as confirmed once `CONFIRMING_PARTIES` parties have shown,
   since this daemon's start, a head that is one of those here. Until then the owner is told, and the work goes on.
3. Then it fetches proofs of its Receipts (node/rollouts/receipt_proofs.py).
4. A fork is stored, told to others (node/rollouts/fork_notices.py), and ends the node: `TrustFailure`, also one that a
   peer tells, or that is stored from before. A head that the ledger's key did not sign, or that comes without proof, is
   no evidence: nothing is stored, and the node tries again later.
5. Each round is judged (node/trust/proof_watch.py): proofs that are missing for too long are logged, shown, and in the
   end no new lease is requested.
6. Any peer is answered with heads that this node holds: the newest one, or those after a number with their proofs, of
   logs up to the peer's; and with the documents of later logs.
7. A restored log that follows (node/trust/ledger_witness.py, rule 8) is taken whoever shows its document. Receipts of
   entries that it lacks are claims from then on, and the work goes on. Two documents of one serial are a fork.
8. A fork that a Root has settled (node/trust/ledger_witness.py, rule 10) ends no node: it is looked at before the node
   would end. While the newest head here is in doubt, the coordinator is asked for the one of its number: one that the
   coordinator lacks goes, one after the other, and no head is compared or taken from other peers.
9. A head that is dated `MOST_HEAD_AHEAD_MS` or more ahead of the coordinator's clock is taken, since nothing here rests
   on its date, and a later one follows it whatever the clock says. The owner is told, once by the log and by `why`
   while it is so.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

import structlog

from echo2.node.errors import TrustFailure
from echo2.node.rollouts.fork_notices import ForkNotices
from echo2.node.rollouts.ledger_sources import LedgerSources, Source
from echo2.node.rollouts.outbox import Outbox
from echo2.node.rollouts.receipt_proofs import ReceiptProofs
from echo2.node.run_context import RunContext
from echo2.node.run_state import NodeRunState
from echo2.node.trust.ledger_store import LedgerStore, least_number
from echo2.node.trust.ledger_witness import (
    LedgerFork,
    WitnessedHead,
    check_evidence,
    check_fork,
    check_logs,
    check_next,
    is_disowned,
    is_settled,
    open_head,
    opened_in_order,
    opened_logs,
)
from echo2.node.trust.proof_watch import Missing, ProofWatch
from echo2.p2p.errors import P2PError, Unreachable
from echo2.p2p.handlers import Handlers
from echo2.protocol.authority import Unproven
from echo2.protocol.ledger_heads import MOST_HEADS, GrownHead, LedgerRequest, LedgerResponse, payload_hash
from echo2.protocol.methods import LEDGER
from echo2.protocol.restored_logs import heads_up_to
from echo2.runtime.figures import figure

ASK_EVERY: Final = 60.0
"""Seconds between two rounds."""
MOST_HEAD_AHEAD_MS: Final = 600_000
"""Milliseconds, beyond what clocks that are set differ by."""
EXCHANGE_POLL_SECONDS: Final = 1.0
"""Seconds between two looks for the coordinator, or two rounds once the run has finished."""
MOST_UNVOUCHED: Final = 4096
"""Most heads that wait for a later one that vouches for them."""
MOST_WAITING_HEADS: Final = 64
"""Most heads of other peers that wait until this node has theirs."""
CONFIRMING_PARTIES: Final = 2
"""Parties, besides the coordinator (rule 2)."""

_log = structlog.get_logger("node")


class _ShownHead(NamedTuple):
    """A head that peers of these parties have shown."""

    one: WitnessedHead
    parties: set[str]


class LedgerExchange:
    """This node's part as a witness. `watch`: its judgement of the last rounds."""

    def __init__(
        self,
        handlers: Handlers,
        sources: LedgerSources,
        context: RunContext,
        store: LedgerStore,
        outbox: Outbox,
        run_state: NodeRunState,
    ) -> None:
        self._sources, self._context, self._run_state = sources, context, run_state
        self._store, self._outbox = store, outbox
        self._receipt_proofs = ReceiptProofs(outbox, store, sources, context.trust_store)
        self._forks = ForkNotices(sources, store, self._check_evidence, run_state)
        self._waiting: OrderedDict[bytes, _ShownHead] = OrderedDict()
        """Heads of other peers, by payload: copies of one head wait once (rule 2)."""
        self._confirming: set[str] = set()
        """Parties that have shown a head which is one of those here (rule 2)."""
        self._refused = ""
        """Why the last round could take no head; empty: it could, or there was none to take."""
        self._every: int | None = None
        """Milliseconds between two heads, as the coordinator tells."""
        self._one = asyncio.Lock()
        """Held during a round: the owner may ask for one beside those of `run`."""
        self.watch = ProofWatch()
        self.ahead = ""
        """A sentence about the newest head's date (rule 9); empty: it is not ahead."""
        LEDGER.serve(handlers, self._answer)

    @property
    def history(self) -> str:
        """Whether other parties have shown a head that is one of those here (rule 2), for the owner."""
        if len(self._confirming) >= CONFIRMING_PARTIES:
            return "confirmed"
        return f"unconfirmed (shown by {len(self._confirming)} of {CONFIRMING_PARTIES} other parties)"

    async def run(self) -> None:
        """Fetch and compare until cancelled. Raises `TrustFailure` for a fork (rule 4)."""
        while True:
            asked = await self._checked_round()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_EVERY if asked else EXCHANGE_POLL_SECONDS):
                    await self._forks.known.wait()

    async def finish(self) -> None:
        """Do one more round; of a run that has finished, one per second until every Receipt is proved. The caller
        limits the time. Raises `TrustFailure` for a fork."""
        while await self._checked_round():
            head = self._context.trust_store.trusted.head
            if head is None or not head.value.finished or not self._outbox.unproved_receipts(1 << 53, 1):
                return
            await asyncio.sleep(EXCHANGE_POLL_SECONDS)

    async def fetch(self) -> None:
        """Do one round now, for the owner. Raises `TrustFailure` for a fork, and `Unreachable` without a
        coordinator."""
        if not await self._checked_round():
            raise Unreachable("the coordinator is not connected")

    async def _checked_round(self) -> bool:
        """Do one round, judge what is missing, and return whether the coordinator was asked; or end with a fork. Raises
        `TrustFailure`."""
        async with self._one:
            try:
                if not self._forks.known.is_set() or self._settles():
                    return await self._judged_round()
            except LedgerFork as fork:
                self._forks.keep(fork)
            try:
                await self._forks.tell()
            finally:  # also where the caller's time is up; the coordinator's newest Roots have come by now
                if not self._settles():
                    raise TrustFailure(self._forks.sentence())
            return False

    def _settles(self) -> bool:
        """Settle the stored fork, if a Root has (rule 8); return whether none is left."""
        fork = self._store.fork_documents()
        settled = is_settled(fork, self._context.trust_store.trusted.chain)
        if settled:
            self._waiting.clear()
            self._forks.settle()
        return settled or not fork

    async def _judged_round(self) -> bool:
        """As `_checked_round`. Raises `LedgerFork`."""
        coordinator = self._sources.coordinator()
        if coordinator is None:
            return False
        try:
            await self._round(coordinator)
        except P2PError as error:
            _log.info("ledger not proved yet", reason=str(error))
        self._judge()
        return True

    async def _round(self, coordinator: Source) -> None:
        """Do one round (rules 1 to 3). Raises `LedgerFork`, and `P2PError` for a peer at fault or out of reach."""
        await self._fetch_heads(coordinator)
        await self._compare()
        await self._receipt_proofs.fetch(self._context.clock.local())

    def _judge(self) -> None:
        """Judge the round (rules 5 and 9)."""
        self._judge_date()
        receipts, since = self._outbox.unproved_since()
        behind = f"another peer has head {max(self._later())}" if self._later() else ""
        before = self.watch.proofs.unproven
        missing = Missing(receipts, since, self._refused or behind)
        proofs = self.watch.judge(missing, self._every, self._context.clock.local())
        self._run_state.withheld = self._forks.sentence() or proofs.withheld
        if proofs.unproven and not before:
            _log.warning("ledger unproven", reason=proofs.unproven)
        elif before and not proofs.unproven:
            _log.info("ledger proved again")

    def _judge_date(self) -> None:
        newest, before = self._store.newest(), self.ahead
        ahead = 0 if newest is None else newest.head.issued - self._context.clock.now()
        self.ahead = ""
        if newest is not None and ahead >= MOST_HEAD_AHEAD_MS:
            self.ahead = (
                f"LedgerHead {newest.head.number} is dated {figure(ahead / 3_600_000)} h ahead of the coordinator's "
                "clock: ask the run's operator which of its clocks was set"
            )
        if self.ahead and not before:
            _log.warning(self.ahead)

    async def _fetch_heads(self, coordinator: Source) -> None:
        """Take the heads after the newest one (rule 1)."""
        before = self._newest_number()
        try:
            self._refused = ""
            await self._follow(coordinator, of_coordinator=True)
            if not self._later():
                return
        except P2PError as error:
            self._refused = str(error)
        async for source in self._sources.instead(entries=False):
            try:
                await self._follow(source)
            except P2PError as error:
                _log.debug("source has no provable head", reason=str(error))
        if self._newest_number() > before:
            self._refused = ""
        if self._refused:
            _log.info("ledger head not proved yet", reason=self._refused)

    async def _follow(self, source: Source, *, of_coordinator: bool = False) -> None:
        """Take the heads of a source until it has no more. Raises `LedgerFork`, `P2PError`."""
        unvouched: list[GrownHead] = []
        while True:
            newest = self._store.newest()
            doubted = self._in_doubt(newest)
            if doubted and not of_coordinator:
                return
            after = None if newest is None else newest.head.number + (len(unvouched) or -doubted)
            told = self._store.reference() if of_coordinator else None
            answer = await source(LedgerRequest(after=after, log=self._store.log(), newest=told))
            if of_coordinator:
                self._every = answer.every
            begun = not unvouched and self._take_logs(answer)
            heads = [] if begun and after is not None else answer.heads
            if doubted and not begun and not unvouched:
                if not self._confirm_head(newest, heads):
                    continue
                heads = heads[1:]
            unvouched += heads
            try:
                self._take(unvouched)
                unvouched = []
            except Unproven:
                if newest is None or not heads or len(unvouched) >= MOST_UNVOUCHED:
                    raise
            if not begun and (newest is None or not heads):
                return

    def _in_doubt(self, newest: WitnessedHead | None) -> bool:
        """Tell whether the newest head here is in doubt (rule 8)."""
        chain = self._context.trust_store.trusted.chain
        return newest is not None and bool(self._store.settled_forks()) and is_disowned(newest.sealed, chain)

    def _confirm_head(self, newest: WitnessedHead | None, heads: Sequence[GrownHead]) -> bool:
        """Tell whether the first of the coordinator's heads is the newest one here; if not, drop that, which is in
        doubt."""
        assert newest is not None
        if heads and payload_hash(heads[0].sealed) == payload_hash(newest.sealed):
            return True
        number = newest.head.number - 1
        self._outbox.prove_again(self._store.uncovered_receipts(number))
        self._store.drop_behind(number)
        return False

    def _take_logs(self, answer: LedgerResponse) -> bool:
        """Take the restored logs that follow (rule 7); return whether one did. Raises `LedgerFork`, `P2PError`."""
        if not answer.restored:
            return False
        before, trust = self._store.logs(self._context.run), self._context.trust_store
        begun = opened_logs(answer.restored, trust.trusted.chain, before).logs[before.serial :]
        if not begun:
            return False
        documents = [one.document for one in begun]
        check_logs(begun, *self._store.around(min(one.number for one in documents)), answer.continued)
        claims = self._outbox.claim(documents, self._store.uncovered_receipts(least_number(begun)))
        self._store.take_logs(begun, trust.serial or 0, answer.continued)
        _log.warning("ledger restored from a copy: a new log began", entries=documents[-1].size, claims=len(claims))
        return True

    def _take(self, heads: Sequence[GrownHead]) -> None:
        """Take heads that follow each other; none, and raise `Unproven`, where no head vouches for the last ones."""
        chain, logs = self._context.trust_store.trusted.chain, self._store.logs(self._context.run)
        ones = opened_in_order([grown.sealed for grown in heads], chain, logs)
        for one, grown in zip(ones, heads, strict=True):
            before = self._store.newest()
            check_next(before, one, grown, logs)
            self._store.put(one, self._context.trust_store.serial or 0, None if before is None else grown)

    def _open_head(self, sealed: bytes) -> WitnessedHead:
        return open_head(sealed, self._context.trust_store.trusted.chain, self._store.logs(self._context.run))

    def _check_evidence(self, sealed: Sequence[bytes]) -> None:
        """Verify what a peer shows as evidence of a fork. Raises `LedgerFork`, `P2PError`."""
        logs = self._store.logs(self._context.run)
        check_evidence(sealed, self._context.trust_store.trusted.chain, logs, self._store.like)

    def _newest_number(self) -> int:
        newest = self._store.newest()
        return 0 if newest is None else newest.head.number

    def _later(self) -> list[int]:
        """Return the numbers of heads, signed and held by other peers, that this node could not take yet."""
        reached, logs = self._newest_number(), self._store.logs(self._context.run)
        heads = [shown.one.head for shown in self._waiting.values()]
        return [head.number for head in heads if head.number > reached and logs.admits(head)]

    async def _compare(self) -> None:
        if self._in_doubt(self._store.newest()):
            return
        for party, ask in await self._sources.peers():
            try:
                answer = await ask(LedgerRequest(log=self._store.log()))
                self._take_logs(answer)
                for grown in answer.heads[:1]:
                    one = self._open_head(grown.sealed)
                    self._waiting.setdefault(one.payload, _ShownHead(one, set())).parties.add(party)
            except P2PError as error:
                _log.debug("peer shows no head of the ledger", reason=str(error))
        while len(self._waiting) > MOST_WAITING_HEADS:
            self._waiting.popitem(last=False)
        reached, logs = self._newest_number(), self._store.logs(self._context.run)
        for one, parties in list(self._waiting.values()):
            for known in self._store.like(one.head):
                check_fork(known, one)
                if known.payload == one.payload and len(self._confirming) < CONFIRMING_PARTIES:
                    self._confirming |= parties
            if one.head.number <= reached or not logs.admits(one.head):
                del self._waiting[one.payload]

    async def _answer(self, peer: str, request: LedgerRequest) -> LedgerResponse:
        self._forks.take(peer, request.fork)
        logs = self._store.logs(self._context.run)
        heads = heads_up_to(logs, request, self._store.heads_after(request.after, MOST_HEADS))
        restored, continued = self._store.following(logs.serial_of(request.log) or 0)
        return LedgerResponse(heads=heads, restored=restored, continued=continued)
