"""A publisher of small versions on a network without peers, and the exports that a learner would leave for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.learner.messages import Export, ExportedEdge
from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.publishing.signing_keys import Signing
from echo2.p2p.handlers import Handlers
from echo2.p2p.network import Network
from echo2.weights.diff import encode, encode_full
from echo2.weights.documents import TensorEntry
from echo2.weights.snapshot import Snapshot, writing_snapshot
from echo2.weights.store import Store

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SIGNING = Signing(run=bytes(32), policy=KEY, channel=KEY, root_serial=1)


class NoPeers:
    """A stand-in for the network: shared payloads and published Heads reach no peer."""

    async def share(self, manifest: Any, path: Path) -> None:
        """Accept a payload."""

    async def unshare(self, payload_hash: bytes) -> None:
        """Forget a payload."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Accept a message."""


def network_of(peers: Any, handlers: Handlers | None = None) -> Network:
    """Return a network of which every part but the handlers is `peers`."""
    return Network(peers, handlers or Handlers(), peers, peers, peers, peers, peers)


async def no_addresses() -> list[str]:
    return []


def publisher_over(
    store: Store,
    folder: Path,
    *,
    signing: Signing = SIGNING,
    network: Network | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> Publisher:
    """Return a publisher over `store`, as a start makes it; its Head is in `folder`."""
    network = network or network_of(NoPeers())
    return Publisher(signing, store, network, head_file=folder / "head", addresses=no_addresses, clock=clock)


@contextmanager
def publishing(folder: Path, **options: Any) -> Iterator[tuple[Publisher, Store]]:
    """Open the store in `folder`, with a publisher over it. `options`: see `publisher_over`."""
    with Store(folder / "store") as store:
        yield publisher_over(store, folder, **options), store


def export(folder: Path, version: int, before: Export | None) -> Export:
    """Write the export of a version: its snapshot, and a diff from the version `before`. None: a full edge."""
    path = folder / f"{version}.safetensors"
    with writing_snapshot(path, [TensorEntry(name="w", dtype="BF16", shape=(64,))], {}) as writer:
        writer.write(np.full(64, version, np.uint16))
        writer.finish()
    new, payload = Snapshot(path), folder / f"{version}.edge"
    if before is None:
        encode_full(new, payload)
        edge = ExportedEdge(base=None, base_root=None, payload=str(payload))
    else:
        encode(Snapshot(Path(before.snapshot)), new, payload)
        edge = ExportedEdge(base=before.version, base_root=before.root, payload=str(payload))
    return Export(version=version, root=new.root, snapshot=str(path), edges=[edge], seconds=0.0)


def exports_of(folder: Path, number: int) -> list[Export]:
    """Write the exports of `number` versions, each with a diff from the version before."""
    exports: list[Export] = []
    for version in range(number):
        exports.append(export(folder, version, exports[-1] if exports else None))
    return exports
