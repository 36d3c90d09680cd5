"""Documents by hash: kept in the store, fetched from whoever has them, served to whoever asks.

Rules
1. What a peer sends is kept only if its hash is the one asked for; whether it is signed is `trust`'s question.
2. The coordinator is asked last, like for chunks.
3. An answer is bounded: `ANSWER_BYTES` in all, the rest is None and may be asked for again.
"""

import random
from collections.abc import Callable
from typing import Final

from p2p.envelope import document_hash
from p2p.errors import P2PError, PeerFault, Unreachable
from p2p.messages import Documents, DocumentsAsk, HeadAnswer, HeadAsk, decode, encode
from p2p.network import Network
from weights.store import Store

ANSWER_BYTES: Final = 48 << 20
ASK_LIMIT: Final = 4096
_AT_ONCE: Final = 64
_STRANGERS: Final = 3
"""Other peers that are asked before the coordinator."""
PATIENCE: Final = 10.0


class Library:
    """`coordinator`: its peer id, or None. `head`: the newest sealed Head, or empty."""

    def __init__(
        self,
        network: Network,
        store: Store,
        *,
        coordinator: Callable[[], str | None],
        head: Callable[[], bytes],
        seed: int,
    ) -> None:
        self._network, self._store, self._coordinator, self._head = network, store, coordinator, head
        self._random = random.Random(seed)
        network.serve("documents", self._answer_documents, limit=ASK_LIMIT)
        network.serve("head", self._answer_head, limit=ASK_LIMIT)

    async def get(self, hashes: list[bytes], *, hint: str | None = None) -> dict[bytes, bytes]:
        """Documents by hash. `hint`: a peer that should have them. Raises `Unreachable` when one is nowhere."""
        found = {wanted: held for wanted in hashes if (held := self._store.document(wanted)) is not None}
        for peer in await self._sources(hint):
            missing = [wanted for wanted in hashes if wanted not in found]
            for first in range(0, len(missing), _AT_ONCE):
                found |= await self._ask(peer, missing[first : first + _AT_ONCE])
        if absent := [wanted for wanted in hashes if wanted not in found]:
            raise Unreachable(f"{len(absent)} documents are at no peer, the first {absent[0].hex()[:16]}")
        return found

    async def heads(self) -> list[tuple[str, bytes]]:
        """(peer, sealed Head) of a few peers and the coordinator, unverified."""
        heads = []
        for peer in await self._sources(None):
            try:
                data = await self._network.request(peer, "head", encode(HeadAsk()), timeout=PATIENCE)
                answer = decode(data, HeadAnswer)
            except (PeerFault, Unreachable):
                continue
            if answer.head is not None:
                heads.append((peer, answer.head))
        return heads

    async def _sources(self, hint: str | None) -> list[str]:
        last = self._coordinator()
        others = [peer for peer in await self._network.peers() if peer not in (hint, last)]
        chosen = self._random.sample(others, min(_STRANGERS, len(others)))
        first = [hint] if hint is not None and hint != last else []
        return [*first, *chosen, *([last] if last is not None else [])]

    async def _ask(self, peer: str, hashes: list[bytes]) -> dict[bytes, bytes]:
        try:
            ask = encode(DocumentsAsk(hashes=hashes))
            answer = decode(await self._network.request(peer, "documents", ask, timeout=PATIENCE), Documents)
        except P2PError:
            return {}
        pairs = zip(hashes, answer.documents, strict=False)
        return {wanted: data for wanted, data in pairs if data is not None and document_hash(data) == wanted}

    async def _answer_documents(self, peer: str, data: bytes) -> bytes:
        room, documents = ANSWER_BYTES, list[bytes | None]()
        for wanted in decode(data, DocumentsAsk).hashes:
            document = self._store.document(wanted)
            if document is not None and len(document) > room:
                document = None
            room -= len(document or b"")
            documents.append(document)
        return encode(Documents(documents=documents))

    async def _answer_head(self, peer: str, data: bytes) -> bytes:
        return encode(HeadAnswer(head=self._head() or None))
