"""The delivery of the outbox: send submissions, request verdicts in batches, confirm stored Receipts.

Rules
1. Submissions are sent oldest first, several at once (node/rollouts/submission_sender.py), each once per round, and
   again after every break. Waits between attempts grow and are jittered, also where the coordinator no longer knows
   groups that it had received.
2. Verdicts are requested, and Receipts confirmed, beside requests for leases and submissions: two requests per group.
   One request at a time carries that. It is a request for nothing else if no other was answered for
   `VERDICT_WAIT_SECONDS` seconds, or the outbox is full, or the node finishes.
3. An answer that the run's keys did not sign changes nothing. The request is repeated under the run's later Root, if
   there is one; otherwise the node drops the connection and searches for the coordinator.
4. With no submission to send and no verdict or confirmation outstanding, the relay sleeps until the outbox gets a
   submission.
5. Once per Root, a start included, the relay requests again the Receipts that are no longer valid under it. Such
   Receipts were stored between the issue of a Root and its adoption here, or signed by a stolen key. A replacement is
   stored only if it is valid.
6. Requests for verdicts also ask for the Receipts of groups in quarantine whose day has ended: the coordinator seals
   them anew, with a code that says how.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import structlog

from echo2.node.links.coordinator_client import CoordinatorClient, RequestRefused
from echo2.node.rollouts.accepted_tally import AcceptedTally
from echo2.node.rollouts.outbox import Open, Outbox
from echo2.node.rollouts.submission_sender import SubmissionSender
from echo2.node.run_context import RunContext
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.errors import BadSignature, PeerFault, Unreachable
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import Root, open_kept
from echo2.protocol.group_weights import GroupLengths
from echo2.protocol.leases import Receipt, VerdictsRequest, VerdictsResponse
from echo2.protocol.methods import VERDICTS
from echo2.protocol.refusals import QUARANTINE
from echo2.protocol.requests import Refusal
from echo2.runtime.backoff import Backoff

BATCH: Final = 256
"""Most leases per request for verdicts."""
OUTBOX_BACKOFF: Final = Backoff(0.25, 8.0, jitter=0.3, factor=1.5)
"""Seconds between two rounds of requests."""
MOST_AGAIN: Final = 128
"""Most Receipts per request that are no longer valid (rule 5)."""
MOST_ENDED: Final = 16
"""Most groups per request whose quarantine has ended."""
MOST_PAUSE: Final = 60.0
"""Longest pause after a refusal, seconds: a ban of days may be lifted earlier."""
VERDICT_WAIT_SECONDS: Final = 30.0
"""Seconds without an answer until verdicts get a request of their own (rule 2)."""
MOST_BEGUN: Final = 16 * BATCH
"""Most submissions of one round: each is remembered until the round ends, and one that the coordinator forgot waits for
the next."""
CLOCKS: Final = 24 * 3600_000
"""Milliseconds by which this machine's clock may be behind the run's, for the choice of Receipts to check again."""

_TOO_LATE: Final = (
    "they are credited, and not learned from: a group takes this machine longer than the steps that the run lets it be"
    " old; fewer groups at once or a quicker device may help"
)

_log = structlog.get_logger("node")


def unproven(outbox: Outbox, chain: Sequence[Root]) -> list[bytes]:
    """Return the leases whose stored Receipts are no longer valid (protocol/authority.py). Only Receipts that a change
    of the ledger's keys can affect are checked: one stored before the change stays valid under any Root."""
    leases: list[bytes] = []
    for before, root in pairwise(chain):
        removed = set(before.roles["ledger"].keys) - set(root.roles["ledger"].keys)
        if not removed:
            continue
        since = min([root.issued, *(root.revoked[key] for key in removed & root.revoked.keys())])
        for row in outbox.stored_before(root.serial, since - CLOCKS):
            try:
                assert row.receipt is not None
                open_kept(row.receipt, "receipt", chain, stored=row.root_serial)
            except BadSignature:
                leases.append(row.lease)
    return list(dict.fromkeys(leases))


class OutboxRelay:
    """The sender of one outbox's submissions. `settled`: set while no submission waits for an answer, and no Receipt
    for its confirmation."""

    def __init__(self, outbox: Outbox, coordinator_client: CoordinatorClient, context: RunContext) -> None:
        self.outbox, self._coordinator_client = outbox, coordinator_client
        self._trust_store, self._local = context.trust_store, context.clock.local
        self._open: Open = context.trust_store.trusted.open_kept
        self._random = random.Random(context.seed)
        self._riding = False
        """Whether a request for verdicts is under way: a second would ask for the same ones."""
        self._moved = False
        """Whether an answer changed any state since the last round."""
        self._asked = -VERDICT_WAIT_SECONDS
        """Loop time of the last answer to a request for verdicts."""
        self._forgotten = 0
        """Answers in a row that did not know a group which had been received."""
        self._wake = asyncio.Event()
        self._accepted = AcceptedTally()
        self._alone = False
        """Whether no other request will carry one for verdicts (`finish`)."""
        self._looked: int | None = None
        """Serial of the Root under which the stored Receipts were last checked (rule 5)."""
        self._unproven: list[bytes] = []
        """Leases whose Receipts must be requested again (rule 5)."""
        coordinator_client.rider = self
        self.settled = asyncio.Event()
        self._sender = SubmissionSender(outbox, coordinator_client, self._take, self._refuse)

    @property
    def on_sent(self) -> Callable[[], None]:
        """The function that is called after each submission that the coordinator has answered for good or received."""
        return self._sender.on_sent

    @on_sent.setter
    def on_sent(self, call: Callable[[], None]) -> None:
        self._sender.on_sent = call

    @property
    def room(self) -> int:
        """Number of further submissions that the outbox takes."""
        return self.outbox.room

    def put(self, lease: bytes, body: bytes, lengths: GroupLengths) -> None:
        """Store an encoded submission durably, and start the next round. `lengths`: lengths of its group."""
        self.outbox.put(lease, body, self._local(), lengths)
        self.settled.clear()
        self._wake.set()
        self._sender.wake()

    def finish(self) -> None:
        """Start the next round, and request verdicts without waiting for other requests, since none will follow."""
        self._alone = True
        self._wake.set()

    def question(self) -> VerdictsRequest | None:
        """Return the request for verdicts to send inside another request, None for none."""
        ask = None if self._riding else self._outstanding()
        self._riding |= ask is not None
        return ask

    def _outstanding(self) -> VerdictsRequest | None:
        """Return what is to be asked for and confirmed; None: nothing is."""
        if self._looked != self._trust_store.serial:
            self._looked = self._trust_store.serial
            self._unproven = unproven(self.outbox, self._trust_store.trusted.chain)
        leases = self._unproven[:MOST_AGAIN]
        leases += self.outbox.list_undecided(BATCH - len(leases))
        leases += self.outbox.quarantine_ended(self._local(), min(MOST_ENDED, BATCH - len(leases)))
        confirmed = self.outbox.unconfirmed_leases(BATCH)
        return VerdictsRequest(leases=leases, confirmed=confirmed) if leases or confirmed else None

    def release(self, ask: VerdictsRequest) -> None:
        """Let another request carry one for verdicts: that which carried `ask`, from `question`, has ended."""
        self._riding = False

    def on_answer(self, ask: VerdictsRequest, answer: VerdictsResponse) -> None:
        """Store the answer to `ask`, from `question` (rule 2). Raises `BadSignature`, `Mismatch`, `Malformed`."""
        self._asked = asyncio.get_running_loop().time()
        self.outbox.mark_confirmed(ask.confirmed)
        waiting = set(self.outbox.list_undecided(BATCH))  # another answer may have arrived first
        again = [lease for lease in ask.leases if lease in self._unproven]
        replaced = 0
        for lease, sealed in zip(ask.leases, answer.receipts, strict=False):
            if sealed is None:
                continue
            if lease in waiting:
                self._take_receipt(lease, sealed)
            elif lease in again:
                self._replace_receipt(lease, sealed)
                replaced += 1
            else:
                self._take_end_of_quarantine(lease, sealed)
            self._moved = True
        if again:
            self._unproven = [lease for lease in self._unproven if lease not in again]
            _log.info("invalid receipts replaced", wanted=len(again), replaced=replaced)
        forgotten = [lease for lease in answer.unknown if lease in ask.leases]
        if ask.leases:
            self._forgotten = self._forgotten + 1 if forgotten else 0
        self.outbox.requeue(forgotten)
        self._moved |= bool(answer.unknown or ask.confirmed)

    async def run(self) -> None:
        """Deliver until cancelled."""
        idle = 0
        while True:
            self._wake.clear()
            moved = await self._round()
            idle = 0 if moved else idle + 1
            if self.outbox.waiting() or self.outbox.unconfirmed_leases(1) or self._unproven:
                await self._sleep(OUTBOX_BACKOFF.delay(max(idle, self._forgotten) + 1, self._random.random()))
            else:
                self.settled.set()
                await self._wake.wait()
                idle = 0

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _round(self) -> bool:
        """Send queued submissions and request missing verdicts; tell whether any state changed."""
        await self._coordinator_client.wait_until_connected()
        serial = self._trust_store.serial
        try:
            sent = await self._sender.send(lambda begun: begun >= (MOST_BEGUN if self._may_ride() else BATCH)) > 0
            if not self._may_ride() and not self._riding and self._outstanding() is not None:
                await self._coordinator_client.call(VERDICTS, None)
            moved, self._moved = self._moved, False
            return moved or sent
        except Unreachable as error:
            _log.info("submissions wait", reason=str(error))
        except RequestRefused as error:
            pause = min(MOST_PAUSE, (error.refusal.retry_after or 1000) / 1000)
            _log.info("submissions wait", reason=str(error), seconds=pause)
            await asyncio.sleep(pause)
        except PeerFault as error:
            if await self._coordinator_client.behind(serial):
                return True
            self._coordinator_client.distrust(f"a false answer to a submission: {error}")
        return False

    def _refuse(self, lease: bytes, refusal: Refusal) -> None:
        self.outbox.take_refusal(lease, refusal, self._local())
        _log.warning("group refused", lease=lease.hex(), code=refusal.code, reason=refusal.sentence)

    def _take(self, lease: bytes, answer: bytes) -> None:
        self.outbox.take_received(lease, answer, self._open)

    def _may_ride(self) -> bool:
        """Tell whether another request will probably carry one for verdicts soon (rule 2)."""
        if self._alone or self.outbox.full:
            return False
        return asyncio.get_running_loop().time() - self._asked < VERDICT_WAIT_SECONDS

    def _take_end_of_quarantine(self, lease: bytes, sealed: bytes) -> None:
        """Store a Receipt that says how a quarantine ended (rule 6); nothing happens if it does not, or not here."""
        if lease not in self.outbox.quarantine_ended(self._local(), BATCH):
            return
        if decode(decode_unverified(sealed).payload, Receipt).code == QUARANTINE:
            return
        receipt = self._replace_receipt(lease, sealed)
        _log.info("quarantine ended", lease=lease.hex(), code=receipt.code, reason=receipt.reason)

    def _take_receipt(self, lease: bytes, sealed: bytes) -> None:
        receipt = self._replace_receipt(lease, sealed)
        if receipt.verdict == "accepted":
            _log.debug("group accepted", lease=lease.hex(), version=receipt.version, weight=receipt.weight)
            summary = self._accepted.add(receipt.weight, self._local())
            if summary is not None:
                _log.info("groups accepted", version=receipt.version, groups=summary.groups, points=summary.points)
            if self._accepted.note_age(late=receipt.code == "ok" and not receipt.trainable):
                _log.warning("groups come too late", groups=self._accepted.late, reason=_TOO_LATE)
        else:
            _log.warning("group refused", lease=lease.hex(), code=receipt.code, reason=receipt.reason)

    def _replace_receipt(self, lease: bytes, sealed: bytes) -> Receipt:
        return self.outbox.take_receipt(lease, sealed, self._open, self._local(), self._trust_store.serial or 0)
