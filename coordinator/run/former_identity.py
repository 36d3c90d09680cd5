"""Answer nodes under a network identity that was replaced, and tell them where the coordinator is now.

Rules
1. The former identity listens at the addresses of `network.former_listen` and `https.former_listen`, until
   `keys.FORMER_LIFE` after the Root that replaced it. Nothing of the run depends on it.
2. It answers one thing: the newest Head, which names the coordinator's addresses, and the Roots under which that Head
   verifies. Each greeting or other request to the coordinator is refused as `moved`, with the Roots.
3. Its key proves nothing: a thief of it can answer in its place, and cannot sign a Head.
4. It has few connections of its own, `MOST_FORMER_CONNECTIONS` by each route. They are taken off the process's
   descriptors before the others are fitted to these (serving.py), so a crowd here costs the run nothing for its 30
   days. The run's nodes have their reserve of them.
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.run import keys
from echo2.coordinator.run.setup import Run
from echo2.p2p.guard import one_error
from echo2.p2p.handlers import Handlers
from echo2.p2p.https.certificate import server_context
from echo2.p2p.https.client_limits import HttpsLimits
from echo2.p2p.https.server import HttpsServer
from echo2.p2p.limits.party import Parties
from echo2.p2p.limits.subnets import PeerLimits
from echo2.p2p.local_addresses import listenable
from echo2.p2p.network import Host
from echo2.p2p.wire_types import encode
from echo2.protocol import document_service
from echo2.protocol.methods import HEAD, SEALED
from echo2.protocol.refusals import refusal
from echo2.protocol.requests import Response
from echo2.protocol.versions import HeadRequest, HeadResponse
from echo2.runtime.errors import LocalFault

MOVED_RETRY_MS: Final = 60_000
"""Milliseconds after which a node that does not follow asks again."""
NO_ADDRESS: Final = "network.former_listen is empty: nodes that know its addresses alone find no coordinator"
MOST_REQUEST_BYTES: Final = 64 << 10
"""Bytes of a request."""
MOST_FORMER_CONNECTIONS: Final = 64
"""By libp2p, and as many by HTTPS: one answer is all that each is for."""
FORMER_DESCRIPTORS: Final = 2 * MOST_FORMER_CONNECTIONS
PER_VISITOR: Final = 16

log = structlog.get_logger("coordinator")


class FormerIdentity:
    """The answers of a former identity of `run`. `newest`: returns the newest sealed Head."""

    def __init__(self, run: Run, newest: Callable[[], bytes | None]) -> None:
        self._run, self._newest = run, newest

    def serve(self, handlers: Handlers) -> None:
        """Register the handlers (rule 2)."""
        HEAD.serve(handlers, self._head)
        for method in SEALED:
            handlers.serve(method.name, self._answer_moved, limit=MOST_REQUEST_BYTES)

    async def _head(self, peer: str, request: HeadRequest) -> HeadResponse:
        return document_service.head(request, self._newest(), self._roots())

    async def _answer_moved(self, peer: str, data: bytes) -> bytes:
        told = refusal(
            "moved", retry_after=MOVED_RETRY_MS, detail="it has moved to another identity and other addresses"
        )
        return encode(Response(refusal=msgspec.structs.replace(told, roots=list(self._run.roots))))

    def _roots(self) -> dict[int, bytes]:
        return {root.serial: sealed for root, sealed in zip(self._run.chain, self._run.roots, strict=True)}


class Former(NamedTuple):
    """A former identity that still answers. `until`: ms since the Unix epoch."""

    key: Ed25519PrivateKey
    until: int


def former_of(run: Run, now: int, secret: str | None) -> Former | None:
    """Return the former identity that answers at `now`, ms; None: there is none, its time is over, its file cannot be
    opened or it has no address."""
    former = keys.former_identity(run.chain, now)
    if former is None:
        return None
    try:
        key = keys.load_identity(run.folder, former.chain, secret)
    except LocalFault as fault:
        log.warning("former identity is silent", reason=str(fault))
        return None
    if not (run.config.network.former_listen or run.config.https.former_listen):
        log.warning("former identity is silent", reason=NO_ADDRESS)
        return None
    return Former(key, former.until)


async def answer_as(
    former: Former, run: Run, newest: Callable[[], bytes | None], now: Callable[[], int], parties: Parties
) -> None:
    """Answer over libp2p and HTTPS until the identity's time is over (rule 1). `parties`: the run's. A port that is
    taken ends this part alone."""
    from echo2.p2p.libp2p.threaded_network import ThreadedPeer

    peer = ThreadedPeer(
        former.key,
        listenable(run.config.network.former_listen),
        limits=PeerLimits(connections=MOST_FORMER_CONNECTIONS, parties=parties),
    )
    FormerIdentity(run, newest).serve(peer.handlers)
    hosts: list[Host] = [peer]
    if run.config.https.former_listen and run.config.https.listen:
        context = server_context(run.folder.https_certificate, run.folder.https_key, keys.passphrase())
        limits = HttpsLimits(connections=MOST_FORMER_CONNECTIONS, per_visitor=PER_VISITOR, parties=parties)
        listen = listenable(run.config.https.former_listen)
        hosts.append(HttpsServer(peer.peer_id, peer.handlers, listen, context, limits))
    log.info("former identity answers", peer=peer.peer_id, until=former.until)
    try:
        with one_error():
            async with asyncio.timeout((former.until - now()) / 1000), asyncio.TaskGroup() as group:
                for host in hosts:
                    group.create_task(host.run())
    except TimeoutError:
        log.info("former identity ended", peer=peer.peer_id)
    except LocalFault as fault:
        log.warning("former identity is silent", reason=str(fault))
