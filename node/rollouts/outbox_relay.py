"""Carries the outbox to the coordinator: sends, asks for verdicts in batches, confirms what is stored.

Rules
1. Submissions go one at a time, oldest first, and again after every break; waits between tries grow and are jittered.
2. Verdicts are asked for, and receipts confirmed, beside asks for leases and submissions: two requests per group. They
   get a request of their own where no other went for `RIDE` seconds, where the outbox is full or the node finishes, and
   where the coordinator does not answer them beside others.
3. An answer that the run's keys did not sign changes nothing. Where the run has a later Root than the one held, the
   question is repeated under that; else the line is given up and found anew.
4. With nothing to send and nothing undecided it sleeps until the outbox gets something.
5. Once for each Root that it finds, a start included, it asks again for the Receipts that hold no more under it: those
   that were stored between the moment at which a Root was written and the one at which it was taken, and those of a
   stolen key. What comes in their place is stored only if it holds.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import structlog

from node.links.coordinator_client import CoordinatorClient, RequestRefused
from node.rollouts.outbox import Open, Outbox
from node.trust.trust_store import TrustStore
from p2p.errors import BadSignature, PeerFault, Unreachable
from protocol.authority import Root, open_kept
from protocol.leases import SubmitResponse, VerdictsRequest, VerdictsResponse
from protocol.methods import SUBMIT, VERDICTS
from runtime.backoff import Backoff

BATCH: Final = 256
LOOK: Final = Backoff(0.25, 8.0, jitter=0.3, factor=1.5)
"""Seconds between two rounds, shortest and longest."""
MOST_PAUSE: Final = 60.0
"""Seconds that a refusal puts it off, at most: a suspension of days may be lifted."""
RIDE: Final = 30.0
CLOCKS: Final = 24 * 3600_000
"""Milliseconds by which this machine's clock may be behind the run's, where Receipts are looked at again."""

_log = structlog.get_logger("node")


def unproven(outbox: Outbox, chain: Sequence[Root]) -> list[bytes]:
    """Return the leases whose stored Receipts hold no more (protocol/authority.py). Looked at are those alone that a
    change of the ledger's keys can touch: a Receipt of before it holds, whatever Root it was stored under."""
    leases: list[bytes] = []
    for before, root in pairwise(chain):
        gone = set(before.roles["ledger"].keys) - set(root.roles["ledger"].keys)
        if not gone:
            continue
        since = min([root.issued or 0, *(root.revoked[key] for key in gone & root.revoked.keys())])
        for row in outbox.stored_before(root.serial, since - CLOCKS):
            try:
                assert row.receipt is not None
                open_kept(row.receipt, "receipt", chain, stored=row.root_serial)
            except BadSignature:
                leases.append(row.lease)
    return list(dict.fromkeys(leases))


class OutboxRelay:
    """`settled` is set whenever nothing waits for an answer or a confirmation."""

    def __init__(
        self, outbox: Outbox, link: CoordinatorClient, records: TrustStore, local: Callable[[], int], seed: int
    ) -> None:
        self._outbox, self._link, self._records, self._local = outbox, link, records, local
        self._open: Open = records.trusted.open_kept
        self._random = random.Random(seed)
        self._rides: bool | None = None
        """Whether the coordinator answers beside other requests; None: not known."""
        self._asked = -RIDE
        self._wake = asyncio.Event()
        self._alone = False
        self._looked: int | None = None
        """Serial of the Root under which the Receipts here were looked at (rule 5)."""
        self._unproven: list[bytes] = []
        link.rider = self
        self.settled = asyncio.Event()

    def put(self, lease: bytes, body: bytes) -> None:
        """Store a submission durably and send it soon."""
        self._outbox.put(lease, body, self._local())
        self.settled.clear()
        self._wake.set()

    def finish(self) -> None:
        """Do the next round now, and wait for no other request any more: none comes."""
        self._alone = True
        self._wake.set()

    def question(self) -> VerdictsRequest | None:
        """Return what to ask beside a request; also nothing at all, where that shows whether it is answered."""
        ask = VerdictsRequest(leases=self._outbox.undecided(BATCH), confirmed=self._outbox.unconfirmed(BATCH))
        return ask if ask.leases or ask.confirmed or self._rides is None else None

    def answered(self, ask: VerdictsRequest, answer: VerdictsResponse | None) -> None:
        """Take the answer to it (rule 2). Raises `BadSignature`, `Mismatch`, `Malformed`."""
        self._rides = answer is not None
        if answer is not None:
            self._take_verdicts(ask, answer)

    async def run(self) -> None:
        """Carry until cancelled."""
        idle = 0
        while True:
            self._wake.clear()
            moved = await self._round()
            idle = 0 if moved else idle + 1
            if self._outbox.waiting() or self._outbox.unconfirmed(1):
                await self._sleep(LOOK.delay(idle + 1, self._random.random()))
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
        """Send what is queued, ask for what is undecided; whether anything moved."""
        await self._link.connected()
        serial = self._records.serial
        try:
            sent = await self._send()
            asked = await self._ask()
            return await self._ask_again() or asked or sent
        except Unreachable as error:
            _log.info("submissions wait", reason=str(error))
        except RequestRefused as error:
            pause = min(MOST_PAUSE, (error.refusal.retry_after or 1000) / 1000)
            _log.info("submissions wait", reason=str(error), seconds=pause)
            await asyncio.sleep(pause)
        except PeerFault as error:
            if await self._link.behind(serial):
                return True
            self._link.distrust(f"a false answer to a submission: {error}")
        return False

    async def _send(self) -> bool:
        moved = False
        while (row := self._outbox.queued()) is not None:
            lease, body = row
            try:
                answer = await self._link.call(SUBMIT, body)
            except RequestRefused as error:
                if error.refusal.retry_after is not None:
                    raise
                self._outbox.take_refusal(lease, error.refusal, self._local())
                _log.warning("group refused", lease=lease.hex(), code=error.refusal.code, reason=str(error))
            else:
                self._take(lease, answer)
            moved = True
        return moved

    def _take(self, lease: bytes, answer: SubmitResponse) -> None:
        if answer.receipt is not None:
            self._take_receipt(lease, answer.receipt)
        elif answer.received is not None:
            self._outbox.take_received(lease, answer.received, self._open)
        else:
            raise BadSignature("an answer without acknowledgement or Receipt")

    async def _ask(self) -> bool:
        ask = VerdictsRequest(leases=self._outbox.undecided(BATCH), confirmed=self._outbox.unconfirmed(BATCH))
        if not (ask.leases or ask.confirmed) or self._may_ride():
            return False
        return self._take_verdicts(ask, await self._link.call(VERDICTS, ask))

    async def _ask_again(self) -> bool:
        """Rule 5, for one batch of Receipts."""
        if self._looked != self._records.serial:
            self._looked = self._records.serial
            self._unproven = unproven(self._outbox, self._records.trusted.chain)
        if not self._unproven:
            return False
        batch = self._unproven[:BATCH]
        answer = await self._link.call(VERDICTS, VerdictsRequest(leases=batch))
        self._unproven = [lease for lease in self._unproven if lease not in batch]
        pairs = zip(batch, answer.receipts, strict=False)
        came = [(lease, sealed) for lease, sealed in pairs if sealed is not None]
        for lease, sealed in came:
            self._outbox.take_receipt(lease, sealed, self._open, self._local(), self._records.serial or 0)
        _log.info("receipts that held no more come anew", wanted=len(batch), came=len(came))
        return True

    def _may_ride(self) -> bool:
        """Whether another request is likely to bring the answers soon (rule 2). With a full outbox none does."""
        if not self._rides or self._alone or self._outbox.full:
            return False
        return asyncio.get_running_loop().time() - self._asked < RIDE

    def _take_verdicts(self, ask: VerdictsRequest, answer: VerdictsResponse) -> bool:
        """Store what the answer says; whether anything moved."""
        self._asked = asyncio.get_running_loop().time()
        self._outbox.confirmed(ask.confirmed)
        waiting = set(self._outbox.undecided(BATCH))  # another answer may have come first
        pairs = zip(ask.leases, answer.receipts, strict=False)
        decided = [(lease, sealed) for lease, sealed in pairs if sealed is not None and lease in waiting]
        for lease, sealed in decided:
            self._take_receipt(lease, sealed)
        self._outbox.requeue([lease for lease in answer.unknown if lease in ask.leases])
        return bool(decided or answer.unknown or ask.confirmed)

    def _take_receipt(self, lease: bytes, sealed: bytes) -> None:
        receipt = self._outbox.take_receipt(lease, sealed, self._open, self._local(), self._records.serial or 0)
        if receipt.verdict == "accepted":
            _log.info("group accepted", lease=lease.hex(), version=receipt.version, weight=receipt.weight)
        else:
            _log.warning("group refused", lease=lease.hex(), code=receipt.code, reason=receipt.reason)
