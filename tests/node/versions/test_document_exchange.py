"""Documents by hash: the order of the peers asked, false answers, and the search for Roots."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.node.run_context import RunContext
from echo2.node.versions.document_exchange import SEEK_AGAIN, DocumentExchange
from echo2.p2p.envelope import document_hash
from echo2.p2p.errors import Unreachable
from echo2.p2p.identity import generate_key
from echo2.p2p.peer.peer import Peer
from echo2.protocol.methods import DOCUMENTS, HEAD
from echo2.protocol.requests import DocumentsRequest, DocumentsResponse
from echo2.protocol.versions import HeadRequest, HeadResponse
from tests.support.clock import run_fake
from tests.support.fake_coordinator import FakeCoordinator, Keys, wall
from tests.support.peers import running

FIRST, SECOND = b"a document", b"another document"
HASHES = [document_hash(FIRST), document_hash(SECOND)]


class Served:
    """The documents and Roots that a peer serves. It records the requests that it gets."""

    def __init__(self, peer: Peer, asked: list[str]) -> None:
        self.documents: dict[bytes, bytes] = {}
        self.roots: list[bytes] = []
        self._name, self._asked = peer.peer_id, asked
        DOCUMENTS.serve(peer, self._answer)
        HEAD.serve(peer, self._head)

    async def _answer(self, peer: str, ask: DocumentsRequest) -> DocumentsResponse:
        self._asked.append(self._name)
        return DocumentsResponse(documents=[self.documents.get(wanted) for wanted in ask.hashes])

    async def _head(self, peer: str, ask: HeadRequest) -> HeadResponse:
        self._asked.append(self._name)
        return HeadResponse(head=None, roots=self.roots)


class World:
    """A node with a document exchange, its coordinator "c" and another peer "a"."""

    def __init__(self, folder: Path) -> None:
        network = MemoryNetwork(0)
        self.run = FakeCoordinator(folder / "coordinator")
        self.context = RunContext.open(folder / "home", self.run.invite(), generate_key(), local=wall, seed=1)
        self.context.trust_store.update_roots(self.run.roots, wall())
        self.peers = [Peer(network.transport(name), seed=0) for name in ("n", "a", "c")]
        node, other, coordinator = self.peers
        self.asked: list[str] = []
        self.other, self.coordinator = Served(other, self.asked), Served(coordinator, self.asked)
        self.exchange = DocumentExchange(node.handlers, node, node, self.context, coordinator=lambda: "c")
        self.node, self.asking = node, other


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    built = World(folder)
    with closing(built.context.store):
        async with running(*built.peers):
            yield built


def test_the_coordinator_is_asked_last_and_only_for_what_no_peer_had(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            here.other.documents = {HASHES[0]: FIRST}
            here.coordinator.documents = dict(zip(HASHES, (FIRST, SECOND), strict=True))
            assert await here.exchange.get(HASHES[:1]) == {HASHES[0]: FIRST}
            assert here.asked == ["a"]
            assert await here.exchange.get(HASHES) == here.coordinator.documents
            assert here.asked == ["a", "a", "c"]

    run_fake(main)


def test_the_peer_that_announced_a_version_is_asked_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            here.coordinator.documents = {HASHES[0]: FIRST}
            await here.exchange.get(HASHES[:1], hint="c")
            assert here.asked == ["c"]

    run_fake(main)


def test_bytes_of_another_hash_are_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            here.other.documents = here.coordinator.documents = {HASHES[0]: SECOND}
            with pytest.raises(Unreachable, match=f"1 documents are at no peer, the first {HASHES[0].hex()[:16]}"):
                await here.exchange.get(HASHES[:1])
            assert here.asked == ["a", "c"]

    run_fake(main)


def test_a_stored_document_is_served_and_not_requested(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            digest = here.context.store.put_document("edge", 1, 0, FIRST)
            assert await here.exchange.get([digest]) == {digest: FIRST}
            assert here.asked == []
            answer = await DOCUMENTS.ask(here.asking, "n", DocumentsRequest(hashes=[digest]), timeout=1.0)
            assert answer.documents == [FIRST]

    run_fake(main)


def test_a_search_for_a_root_is_not_repeated_at_once_and_ends_when_it_is_adopted(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            await here.exchange.seek_roots(1, "a")
            assert here.asked == ["a", "c"]
            await here.exchange.seek_roots(1, "a")
            assert here.asked == ["a", "c"], "asked again too soon"
            old = here.run.keys
            new = Keys(root=old.root, policy=old.policy, ledger=old.ledger)
            here.other.roots = [here.run.sealed_root(1, new, old.root)]
            await anyio.sleep(SEEK_AGAIN + 1)
            await here.exchange.seek_roots(1, "a")
            assert here.context.trust_store.serial == 1
            assert here.asked == ["a", "c", "a"]
            await here.exchange.seek_roots(1, "a")
            assert len(here.asked) == 3, "the Root is here already"

    run_fake(main)
