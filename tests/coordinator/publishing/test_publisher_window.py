"""In a run of many versions unneeded ones leave disk and memory, and a new node still finds a path."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echo2.coordinator.learner.messages import Export, ExportedEdge
from echo2.coordinator.publishing import publisher as module
from echo2.coordinator.publishing.publisher import Publisher
from echo2.weights.diff import encode
from echo2.weights.documents import EdgeIndex
from echo2.weights.snapshot import Snapshot
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
        assert latest is not None
        index = store.document(latest.index_hash)
        assert index is not None
        edges = [publisher.edges[digest] for digest in EdgeIndex.from_bytes(index).edges]
        assert path_to(edges, [], latest.root), "a node that holds nothing"
        assert path_to(edges, [exported[1].root], latest.root), "a node that was away for long"
        assert all(store.document(digest) for digest in EdgeIndex.from_bytes(index).edges)
        for one in publisher.versions:
            assert path_to(publisher.payloads(), publisher.snapshots(), one.root) is not None


async def test_versions_in_use_stay_at_any_age(tmp_path: Path) -> None:
    exported = exports(tmp_path)
    with publishing(tmp_path) as (publisher, _):
        await published(publisher, exported)
        await publisher.retain((1, 10), ROOMY, ROOMY)
        assert [one.version for one in publisher.versions] == [0, *range(10, VERSIONS)]
        assert path_to(publisher.payloads(), publisher.snapshots(), exported[10].root) is not None
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
        assert again.latest is not None
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
            assert path_to(again.payloads(), again.snapshots(), one.root) is not None
