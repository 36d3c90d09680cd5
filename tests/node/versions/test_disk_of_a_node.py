"""What weights and payloads take in a node's home, measured on its files, in multiples of the weights."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2.node.versions.acknowledgements import Acknowledger
from echo2.node.versions.local_weights import LocalWeights
from echo2.node.versions.payload_fetcher import PayloadFetcher
from echo2.p2p.envelope import Verified, document_hash, verify_named
from echo2.weights.diff import Payload, encode
from echo2.weights.documents import Edge
from echo2.weights.logged_weights import open_weights
from echo2.weights.snapshot import Snapshot
from echo2.weights.store import Store
from tests.support.disk_use import disk_use
from tests.support.publishing import NoPeers
from tests.support.quick_disk import quick_folder
from tests.support.synthetic_learner import SyntheticTrainer

ROOMY = 1 << 40


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder in memory: many versions are many fsyncs."""
    with quick_folder() as folder:
        yield folder


class Home:
    """A node's weights and payloads, and a learner whose versions come to it. `uses`: by the weights, `parts` of the
    disk after each change."""

    def __init__(self, folder: Path, store: Store, rho: float) -> None:
        self.folder, self.store = folder, store
        self.trainer = SyntheticTrainer(2048, rho)
        self.weights = LocalWeights(folder / "home" / "weights", quota=ROOMY)
        peers = NoPeers()
        self.fetcher = PayloadFetcher(
            peers,
            peers,
            peers,
            store,
            Acknowledger(_undelivered),
            coordinator=lambda: None,  # type: ignore[arg-type]
        )
        self.uses: list[float] = []
        self.version = 0
        self.last = self.written()

    def written(self) -> Snapshot:
        return self.trainer.save_snapshot(self.folder / f"{self.version}.safetensors")

    def arrive(self, base: Snapshot | None, new: Snapshot) -> tuple[Verified[Edge], Path]:
        """Let a payload arrive, as a fetch leaves it."""
        incoming = self.store.folder / "incoming" / "payload"
        payload = encode(base, new, incoming)
        edge = edge_of(payload, self.version)
        self.note()
        path = self.store.put_payload(1, self.version, payload.hash, incoming)
        return edge, path

    async def take_full(self) -> None:
        """Make the weights anew from a full payload, as the follower does."""
        length = self.last.nbytes * 3 // 4
        self.weights.fold(1)
        await self.fetcher.make_room([], lambda arriving: self.weights.room_beside_made(length))
        chain = [self.arrive(None, self.last)]
        await asyncio.to_thread(self.weights.make, chain)
        self.note()
        self.weights.swap_in()
        await self.tidy()

    async def take_diff(self) -> None:
        """Step the weights by the next version's diff."""
        before = self.last
        self.trainer.step(None, 0)  # type: ignore[arg-type]
        self.version += 1
        self.last = self.written()
        edge, path = self.arrive(before, self.last)
        before.path.unlink()
        open_weights(self.weights.path).apply(path, edge.value.root)
        await self.tidy()

    async def tidy(self) -> None:
        self.note()
        await self.fetcher.tidy(1, self.version, self.weights.room())
        self.note()
        self.weights.fold()

    def note(self) -> None:
        """Note what is on disk but the store's index, whose size does not depend on that of the weights."""
        index = sum(path.stat().st_size for path in self.store.folder.glob("index.sqlite*"))
        self.uses.append((disk_use(self.folder / "home") - index) / self.last.nbytes)


async def _undelivered(message: object) -> None:
    """Deliver nothing."""


def edge_of(payload: Payload, version: int) -> Verified[Edge]:
    edge = Edge(
        era=1, base=version - 1 if payload.base_root else None, base_root=payload.base_root, version=version,
        root=payload.root, codec=payload.codec, payload_hash=payload.hash, length=payload.length, chunk_size=1 << 14,
        chunk_root=bytes(32),
    )  # fmt: skip
    return verify_named(edge.to_bytes(), document_hash(edge.to_bytes()), Edge.from_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.005, 0.02])
async def test_a_home_takes_twice_the_weights_and_three_times_while_a_full_snapshot_arrives(
    rho: float, tmp_path: Path
) -> None:
    with Store(tmp_path / "home" / "store") as store:
        home = Home(tmp_path, store, rho)
        await home.take_full()
        assert max(home.uses) <= 2.1, "a newcomer has no other weights yet"
        home.uses.clear()
        for _ in range(60):
            await home.take_diff()
        settled = home.uses[2::3]
        assert max(settled) <= 2.0, max(settled)
        assert len(store.payloads()) > 20, "what it keeps, it can pass on"
        home.uses.clear()
        await home.take_full()
        assert max(home.uses) <= 3.0, home.uses
        assert home.uses[-1] <= 2.0
