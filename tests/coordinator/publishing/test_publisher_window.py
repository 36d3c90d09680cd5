"""In a run of many versions unneeded ones leave disk and memory, and a new node still finds a path."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo2.coordinator.learner.messages import Export, ExportedEdge
from echo2.coordinator.publishing import publisher as module
from echo2.coordinator.publishing.publisher import Publisher
from echo2.weights.diff import encode, encode_full
from echo2.weights.documents import EdgeIndex, TensorEntry
from echo2.weights.snapshot import Snapshot, writing_snapshot
from echo2.weights.update_path import path_to
from tests.support.publishing import export, publisher_over, publishing
from tests.support.quick_disk import quick_folder

VERSIONS, WINDOW, ANCHOR_EVERY = 30, 8, 6
ROOMY = 1 << 40


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a folder in memory: many versions are many fsyncs."""
    with quick_folder() as folder:
        yield folder


@pytest.fixture(autouse=True)
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_VERSIONS", WINDOW, raising=False)
    monkeypatch.setattr(module, "REACH_EDGES", 8)


def exports(folder: Path) -> list[Export]:
    """Write versions with a diff from the one before, and each sixth also with one from the first."""
    exported = [export(folder, 0, None)]
    for version in range(1, VERSIONS):
        one = export(folder, version, exported[-1])
        if version % ANCHOR_EVERY == 0:
            payload = folder / f"{version}-anchor.edge"
            encode(Snapshot(Path(exported[0].snapshot)), Snapshot(Path(one.snapshot)), payload)
            one.edges.append(ExportedEdge(base=0, base_root=exported[0].root, payload=str(payload)))
        exported.append(one)
    return exported


async def published(publisher: Publisher, exported: list[Export]) -> None:
    for one in exported:
        await publisher.publish(1, one.version, one)


async def test_documents_and_payloads_of_old_versions_are_dropped(tmp_path: Path) -> None:
    exported = exports(tmp_path)
    with publishing(tmp_path) as (publisher, store):
        await published(publisher, exported)
        await publisher.retain((1, VERSIONS - 2), ROOMY, ROOMY)
        counts = {kind: len(store.documents(kind)) for kind in ("version", "edgeindex", "published")}
        assert max(counts.values()) <= WINDOW + 1, f"{counts} after {VERSIONS} versions"
        assert len(publisher.versions) <= WINDOW + 1
        assert len(store.payloads()) <= 2 * WINDOW + 4
        assert len(store.documents("edge")) <= 2 * WINDOW + 4


async def test_a_node_that_joins_finds_a_path_and_the_scorer_reaches_every_version_kept(tmp_path: Path) -> None:
    exported = exports(tmp_path)
    with publishing(tmp_path) as (publisher, store):
        await published(publisher, exported)
        await publisher.retain((1, VERSIONS - 2), ROOMY, ROOMY)
        latest = publisher.latest
        index = store.document(latest.index_hash)
        assert index is not None
        edges = [publisher.edges[digest] for digest in EdgeIndex.from_bytes(index).edges]
        assert path_to(edges, [], latest.root), "a node that holds nothing"
        assert path_to(edges, [exported[1].root], latest.root), "a node that was away for long"
        assert all(store.document(digest) for digest in EdgeIndex.from_bytes(index).edges)
        for one in publisher.versions:
            assert path_to(publisher.stored.payloads(), publisher.stored.snapshots(), one.root) is not None


FULL_EVERY = 10


def exports_with_later_full_edges(folder: Path, jump: int) -> list[Export]:
    """Write versions with a diff from the one before; each tenth has a full edge, and a diff from the tenth before, as
    the learner writes them. `jump`: share of the elements, in percent, that such a diff changes."""
    random, exported = np.random.default_rng(0), list[Export]()
    bits = random.integers(0, 1 << 16, 20_000).astype(np.uint16)
    for version in range(VERSIONS):
        path = folder / f"{version}.safetensors"
        share = jump / 100 / FULL_EVERY
        bits = np.where(random.random(bits.size) < share, random.integers(0, 1 << 16, bits.size), bits).astype(
            np.uint16
        )
        with writing_snapshot(path, [TensorEntry(name="w", dtype="BF16", shape=(bits.size,))], {}) as writer:
            writer.write(bits)
            writer.finish()
        new, edges = Snapshot(path), list[ExportedEdge]()
        bases = [exported[number] for number in {version - 1, version // FULL_EVERY * FULL_EVERY - FULL_EVERY}
                 if 0 <= number < version and (number == version - 1 or version % FULL_EVERY == 0)]  # fmt: skip
        for base in bases:
            payload = folder / f"{base.version}-{version}.edge"
            encode(Snapshot(Path(base.snapshot)), new, payload)
            edges.append(ExportedEdge(base=base.version, base_root=base.root, payload=str(payload)))
        if version % FULL_EVERY == 0:
            encode_full(new, folder / f"{version}-full.edge")
            edges.append(ExportedEdge(base=None, base_root=None, payload=str(folder / f"{version}-full.edge")))
        exported.append(Export(version=version, root=new.root, snapshot=str(path), edges=edges, seconds=0.0))
    return exported


@pytest.mark.parametrize(("jump", "linked"), [(10, True), (90, False)])
async def test_version_0_leads_to_the_newest_as_long_as_that_has_fewer_bytes_than_the_whole(
    tmp_path: Path, jump: int, linked: bool
) -> None:
    """For a node with a copy of the base. On e6c7481c its edges are gone once the second full edge is 8 edges old."""
    exported = exports_with_later_full_edges(tmp_path, jump)
    with publishing(tmp_path) as (publisher, store):
        for one in exported:
            await published(publisher, [one])
            await publisher.retain((1, max(0, one.version - 1)), ROOMY, 0)
        again = publisher_over(store, tmp_path)
        assert publisher.edges.items() <= again.edges.items()
        latest = again.latest
        assert latest is not None
        edges = [
            publisher.edges[digest] for digest in EdgeIndex.from_bytes(store.document(latest.index_hash) or b"").edges
        ]
        whole, rest = path_to(edges, [], latest.root), path_to(edges, [exported[0].root], latest.root)
        assert whole is not None
        assert (rest[0].base == 0) == linked
        assert all(publisher.payload(edge) is not None for edge in rest)
        assert (sum(edge.length for edge in rest) < sum(edge.length for edge in whole) / 2) == linked
        links = [edge for edge in publisher.edges.values() if edge.version <= 20 and edge.base is not None]
        assert [(edge.base, edge.version) for edge in links] == ([(0, 10), (10, 20)] if linked else [])


async def test_versions_in_use_stay_at_any_age(tmp_path: Path) -> None:
    exported = exports(tmp_path)
    with publishing(tmp_path) as (publisher, _):
        await published(publisher, exported)
        await publisher.retain((1, 10), ROOMY, ROOMY)
        assert [one.version for one in publisher.versions] == [0, *range(10, VERSIONS)]
        assert path_to(publisher.stored.payloads(), publisher.stored.snapshots(), exported[10].root) is not None
        await publisher.retain((1, VERSIONS), ROOMY, ROOMY)
        assert [one.version for one in publisher.versions] == [0, *range(VERSIONS - WINDOW, VERSIONS)]


async def test_a_start_restores_the_kept_versions_and_publishes_the_next(tmp_path: Path, monkeypatch: Any) -> None:
    exported = exports(tmp_path)
    with publishing(tmp_path) as (publisher, store):
        await published(publisher, exported[:-1])
        await publisher.retain((1, VERSIONS - 2), ROOMY, ROOMY)
        again = publisher_over(store, tmp_path)
        assert again.versions == publisher.versions
        assert again.edges == publisher.edges
        await published(again, exported[-1:])
        assert again.latest.version == VERSIONS - 1


async def test_a_start_over_a_store_with_more_versions_reads_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = exports(tmp_path)
    with publishing(tmp_path) as (publisher, store):
        await published(publisher, exported)
        monkeypatch.setattr(module, "MOST_RESTORED_VERSIONS", 2 * WINDOW)
        monkeypatch.setattr(module, "MOST_EARLIER_EDGES", 3)
        again = publisher_over(store, tmp_path)
        assert [one.version for one in again.versions] == [0, *range(VERSIONS - 2 * WINDOW, VERSIONS)]
        await again.retain((1, VERSIONS - 2), ROOMY, ROOMY)
        assert [one.version for one in store.documents("version")] == [0, *range(VERSIONS - WINDOW, VERSIONS)]
        for one in again.versions:
            assert path_to(again.stored.payloads(), again.stored.snapshots(), one.root) is not None
