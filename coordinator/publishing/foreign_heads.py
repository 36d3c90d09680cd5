"""Notice heads of the ledger that nodes hold and this ledger never signed: it was restored from a copy, or forked.

Rules
1. Each hello, and each request for heads, tells the number and hash of the newest head that the node took. One that
   this ledger signed under that number is no news.
2. Any other is a claim, and a claim costs nothing. So the node is asked for the head itself, at most one node per
   `ASK_EVERY`. Nodes with accepted work are asked first: new keys cannot crowd out their claims. At most
   `MOST_WAITING_CLAIMS` claims of each kind wait, and further ones are dropped until a later message. Over HTTPS no
   node can be asked.
3. A head that the ledger's key signed under the run's Roots, with another payload than this ledger's, is evidence: the
   first is stored and logged as an error, and page and status show it, as long as its signature counts under the newest
   Root. Any other answer is logged at level info and forgotten. Other signatures beside the ledger's change no head.
4. A second head of one number would be a fork, at which every node stops. So no head is signed while there is evidence
   of a later one: the run pauses instead, and says why.
   The newest head that a node shows is kept. From it a new log can begin (coordinator/accounts/run_logs.py), after
   which heads of the logs before are no evidence any more, unless that log has another head of the same number.
5. For the same reason a run that published before signs none for `START_SETTLE_MS` after a start, in which its nodes
   greet it, also where its ledger has no heads: run.sqlite may be lost. After a restore
   (coordinator/ledger_files/ledger_backup.py) it signs none for `RESTORED_QUIET_MS`.
6. A node that found a fork shows both heads unasked, before it ends. Each counts by rule 3; once there is evidence,
   none is looked at. Documents of restored logs that it shows are looked at by two_logs.py.
7. Payments wait as long as heads do, while a node with accepted work is asked, and for head_witnesses.py.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import structlog

from echo2.coordinator.accounts import run_logs, two_logs
from echo2.coordinator.accounts.fork_evidence import evidence, head_of, newest_head
from echo2.coordinator.accounts.run_logs import FOREIGN_HEAD_FACT, RESTORED_FACT
from echo2.coordinator.database.database import Database
from echo2.coordinator.publishing.head_witnesses import HeadWitnesses
from echo2.coordinator.run.setup import Run
from echo2.p2p.errors import P2PError
from echo2.p2p.limits.origin import Origin
from echo2.p2p.multiaddr import OVER_HTTPS
from echo2.p2p.network import Rpc
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import open_kept
from echo2.protocol.ledger_heads import HeadReference, LedgerHead, LedgerRequest, payload_hash
from echo2.protocol.methods import LEDGER
from echo2.protocol.restored_logs import LogChain

ASK_EVERY: Final = 2.0
"""Seconds between two nodes that are asked."""
HEAD_ANSWER_SECONDS: Final = 15.0
"""Seconds to wait for an answer."""
MOST_WAITING_CLAIMS: Final = 64
START_SETTLE_MS: Final = 60_000
"""Milliseconds (rule 5)."""
RESTORED_QUIET_MS: Final = 3_600_000
"""Milliseconds (rule 5): nodes that are offline for a moment, or put off by their backoff, come back within."""

_log = structlog.get_logger("coordinator")


class _Claim(NamedTuple):
    """A head that a node says that it holds."""

    origin: Origin
    head: HeadReference


class ForeignHeads:
    """The claims of nodes, and the evidence, if there is some. `witnesses`: witnesses of payments. `pause`: called with
    the reason once evidence of a later head is there. `logs`: returns the run's logs; None: it has one."""

    def __init__(
        self, run: Run, database: Database, rpc: Rpc, pause: Callable[[str], None], clock: Callable[[], int],
        logs: Callable[[], LogChain] | None = None, works: Callable[[Origin], bool] = lambda origin: False,
        workers: Callable[[], Iterable[tuple[bytes, str]]] = tuple,
    ) -> None:  # fmt: skip
        """`works`, `workers`: see `HeadWitnesses`."""
        self._works, self.witnesses = works, HeadWitnesses(workers, works)
        self._logs = logs or (lambda: LogChain(run.id))
        self._run, self._database, self._rpc, self._pause = run, database, rpc, pause
        self._started = clock()
        self._settles = run.folder.head.exists() or newest_head(database) > 0
        self._chain = 0
        """Number of Roots under which the evidence was verified last."""
        self._workers: OrderedDict[str, _Claim] = OrderedDict()
        """Claims of nodes with accepted work, by peer id (rule 2). That of the node that is asked stays until then."""
        self._others: OrderedDict[str, _Claim] = OrderedDict()
        self._claimed = asyncio.Event()

    def holds(self, now: int) -> bool:
        """Tell whether no head is signed now (rules 4 and 5)."""
        if self._beyond() or self._two_logs():
            return True
        restored = self._database.fact(RESTORED_FACT) is not None
        if not (restored or self._settles):
            return False
        if now < self._started:  # the clock was set back
            self._started = now
        if now - self._started < (RESTORED_QUIET_MS if restored else START_SETTLE_MS):
            return True
        self._settles = False
        if restored:
            run_logs.forget(self._database)
            _log.info("no node has a later head than the restored ledger; heads are signed again")
        return False

    def payments_wait(self, now: int) -> str:
        """Return why payments wait (rule 7), a sentence; empty: they do not."""
        if why := evidence(self._database):
            return why
        if self._workers:
            return "a node tells of a LedgerHead that run.sqlite lacks, and is asked for it: try again in a minute"
        if self.holds(now):
            return "the coordinator started, or was restored, and hears its nodes before it signs LedgerHeads again"
        return self.witnesses.lack()

    def _beyond(self) -> bool:
        """Tell whether there is evidence of a later head; drop what no longer verifies (rule 3)."""
        sealed: bytes | None = self._database.fact(FOREIGN_HEAD_FACT)
        if sealed is None:
            return False
        if self._chain != len(self._run.chain):
            try:
                open_kept(sealed, "ledgerhead", self._run.chain)
            except P2PError as error:
                self._database.do("DELETE FROM facts WHERE name = ?", (FOREIGN_HEAD_FACT,))
                _log.info("evidence of another ledger head no longer counts", reason=str(error))
                return False
            self._chain = len(self._run.chain)
        head = head_of(sealed)
        return self._logs().serial_of(head.log) is None or head.number > newest_head(self._database)

    def _two_logs(self) -> bool:
        """Tell whether there is evidence of two restored logs that still counts (rule 6)."""
        if two_logs.evidence(self._database) and (why := two_logs.recheck(self._database, self._run.chain)):
            _log.info("evidence of two restored logs no longer counts", reason=why)
        return bool(two_logs.evidence(self._database))

    def on_claim(self, origin: Origin, head: HeadReference) -> None:
        """Take what a node says that it holds (rules 1 and 2). `origin`: its peer id, or its name over HTTPS, and its
        party."""
        if self._has_own_signature(head):
            self.witnesses.on_own_head(origin, head.number)
            return
        known: bytes | None = self._database.fact(FOREIGN_HEAD_FACT)
        beyond = known is None or head.number > head_of(known).number
        if not beyond or origin.connection.startswith(OVER_HTTPS):
            return
        claims = self._workers if self._works(origin) else self._others
        if origin.connection in claims or len(claims) < MOST_WAITING_CLAIMS:
            claims[origin.connection] = _Claim(origin, head)
            self._claimed.set()

    def on_evidence(self, peer: str, heads: Sequence[bytes]) -> None:
        """Take sealed documents that a peer shows as evidence of a fork (rule 6)."""
        logs = list[bytes]()
        for sealed in heads:
            try:
                if two_logs.is_log(sealed):
                    logs.append(sealed)
                elif self._database.fact(FOREIGN_HEAD_FACT) is None:
                    self._take(Origin(peer, peer), sealed)
            except P2PError as error:
                _log.info("peer shows a ledger head as evidence that does not verify", node=peer, reason=str(error))
        self._take_logs(peer, logs)

    def _take_logs(self, peer: str, sealed: Sequence[bytes]) -> None:
        """Store two documents of one restored log as evidence, and pause (rule 6)."""
        if not sealed or two_logs.evidence(self._database):
            return
        try:
            if two_logs.take(self._database, sealed, self._run.chain, self._logs()):
                why = two_logs.evidence(self._database)
                self._pause(why)
                _log.error("two documents begin one log of the ledger", node=peer, reason=why)
        except P2PError as error:
            _log.info("peer shows a restored log as evidence that does not verify", node=peer, reason=str(error))

    async def run(self) -> None:
        """Ask one node after another for the head that it claims to hold, until cancelled (rule 2)."""
        while True:
            await self._claimed.wait()
            claims = self._workers or self._others
            peer, claim = next(iter(claims.items()))
            if not (known := self._has_own_signature(claim.head)):
                await self._ask(claim.origin)
            del claims[peer]
            if not (self._workers or self._others):
                self._claimed.clear()
            await asyncio.sleep(0.0 if known else ASK_EVERY)

    def _has_own_signature(self, head: HeadReference) -> bool:
        sealed = self._database.value("SELECT sealed FROM ledger_heads WHERE number = ?", (head.number,))
        return sealed is not None and hashlib.sha256(sealed).digest() == head.hash

    async def _ask(self, origin: Origin) -> None:
        peer = origin.connection
        try:
            request = LedgerRequest(log=self._logs().newest)
            answer = await LEDGER.ask(self._rpc, peer, request, timeout=HEAD_ANSWER_SECONDS)
            for grown in answer.heads[:1]:
                self._take(origin, grown.sealed)
        except P2PError as error:
            _log.info("node claims a ledger head and does not show it", node=peer, reason=str(error))

    def _take(self, origin: Origin, sealed: bytes) -> None:
        """Store a head as evidence if it is one (rule 3). Raises `P2PError`."""
        head = decode(open_kept(sealed, "ledgerhead", self._run.chain), LedgerHead)
        if _is_ours(self._database, head.number, sealed):
            self.witnesses.on_own_head(origin, head.number)
        elif self._former(head):
            _log.info("node has yet to take the restored log", node=origin.connection, head=head.number)
        elif self._newer(head):
            self._database.set_fact(FOREIGN_HEAD_FACT, sealed)
            if self._beyond():
                self._pause(evidence(self._database))
            _log.error(
                "node holds a ledger head that is not in this ledger", node=origin.connection,
                reason=evidence(self._database),
            )  # fmt: skip

    def _former(self, head: LedgerHead) -> bool:
        """Tell whether a head is of a log before the newest, behind what was restored of it (rule 4)."""
        logs = self._logs()
        return logs.serial_of(head.log) is not None and not logs.admits(head)

    def _newer(self, head: LedgerHead) -> bool:
        """Tell whether a head is evidence beyond that which is stored."""
        known: bytes | None = self._database.fact(FOREIGN_HEAD_FACT)
        return known is None or head.number > max(head_of(known).number, newest_head(self._database))


def _is_ours(database: Database, number: int, sealed: bytes) -> bool:
    """Tell whether a head is a copy of the one of that number: other signatures may stand beside the ledger's."""
    own = database.value("SELECT sealed FROM ledger_heads WHERE number = ?", (number,))
    return own is not None and payload_hash(own) == payload_hash(sealed)
