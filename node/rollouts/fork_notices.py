"""Tell a fork of the ledger to the coordinator and to other peers, and take one that they tell.

Rules
1. A node that knows a fork stores both documents, requests no lease, and shows both to the coordinator and to up to
   `MOST_NOTIFIED_PEERS` connected peers, in one request `ledger` each, before it ends; once per start, within
   `FORK_END_SECONDS` seconds. The coordinator is awaited and asked again for so long: one that was out of reach is told
   at the next start.
2. Evidence alone counts, whoever sends it. Both documents are verified (node/trust/ledger_witness.py), and compared
   with each other and with the heads that this node holds. Documents that prove no fork are forgotten. Once a fork is
   stored, later evidence is not read.
3. A node that learns of a fork so does what the finder does: it tells others, and ends.
4. A fork that a Root has settled (node/trust/ledger_witness.py, rule 10) is a record: the node goes on.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import structlog

from echo2.node.rollouts.ledger_sources import LedgerSources, Source
from echo2.node.run_state import NodeRunState
from echo2.node.trust.ledger_store import LedgerStore, fork_sentence
from echo2.node.trust.ledger_witness import LedgerFork
from echo2.p2p.errors import P2PError
from echo2.protocol.ledger_heads import LedgerRequest

MOST_NOTIFIED_PEERS: Final = 8
"""Most peers told, besides the coordinator. Each tells as many in turn."""
FORK_END_SECONDS: Final = 15.0
"""Most seconds from the knowledge of a fork to the node's end."""
NOTICE_RETRY_SECONDS: Final = 1.0
"""Seconds between two attempts at the coordinator."""

_log = structlog.get_logger("node")


class ForkNotices:
    """The fork that this node knows, if any. `check`: verifies a peer's evidence, raises `LedgerFork` where it is,
    `P2PError` where it does not verify. `known`: set once a fork is stored."""

    def __init__(
        self,
        sources: LedgerSources,
        store: LedgerStore,
        check: Callable[[Sequence[bytes]], None],
        run_state: NodeRunState,
    ) -> None:
        self._sources, self._store, self._check, self._run_state = sources, store, check, run_state
        self._told = False
        self.known = asyncio.Event()
        self._stop()

    def sentence(self) -> str:
        """Return the words about the stored fork for the owner; empty: there is none."""
        stored = self._store.fork()
        return "" if stored is None else fork_sentence(stored)

    def keep(self, fork: LedgerFork) -> None:
        """Store a fork, and request no lease from now on (rule 1)."""
        self._store.put_fork(fork)
        self._stop()

    def _stop(self) -> None:
        if sentence := self.sentence():
            self._run_state.withheld = sentence
            self.known.set()

    def settle(self) -> None:
        """Keep the stored fork as a record (rule 4)."""
        _log.warning("a fork of the ledger is settled: a Root revokes the key of its head", fork=self._store.fork())
        self._store.settle_fork()
        self._told, self._run_state.withheld = False, ""
        self.known.clear()

    def take(self, peer: str, sealed: Sequence[bytes]) -> None:
        """Take what a peer shows as evidence (rule 2)."""
        if not sealed or self.known.is_set():
            return
        try:
            self._check(sealed)
        except P2PError as error:
            _log.debug("peer shows evidence of a fork that does not verify", peer=peer, reason=str(error))
        except LedgerFork as fork:
            self.keep(fork)
            _log.error("a peer has shown a fork of the ledger", peer=peer, reason=str(fork))

    async def tell(self) -> None:
        """Show the stored fork to others, once (rule 1)."""
        if self._told:
            return
        self._told = True
        request = LedgerRequest(fork=self._store.fork_documents())
        with anyio.move_on_after(FORK_END_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._tell_coordinator, request)
                for peer in await self._sources.peers(MOST_NOTIFIED_PEERS):
                    tasks.start_soon(_show, peer.ask, request)

    async def _tell_coordinator(self, request: LedgerRequest) -> None:
        while True:
            coordinator = self._sources.coordinator()
            if coordinator is not None and await _show(coordinator, request):
                return
            await asyncio.sleep(NOTICE_RETRY_SECONDS)


async def _show(ask: Source, request: LedgerRequest) -> bool:
    """Show the evidence to a peer, and tell whether it answered."""
    try:
        await ask(request)
    except P2PError as error:
        _log.debug("a fork could not be shown to a peer", reason=str(error))
        return False
    return True
