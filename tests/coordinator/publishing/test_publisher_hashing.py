"""The publisher hashes a payload once if the learner has not hashed it, else never."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from echo2.coordinator.learner.messages import Export
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.swarm import manifest as chunks
from echo2.p2p.swarm import open_files
from echo2.p2p.swarm.manifest import HashedManifest
from echo2.p2p.swarm.payload_file import PayloadFile
from tests.support.publishing import NoPeers, export, publishing


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[PayloadFile]:
    """Return the payloads shared with peers, opened as the network opens them."""
    offered: list[PayloadFile] = []

    async def share(self: Any, manifest: Manifest, path: Path) -> None:
        offered.append(PayloadFile.open(manifest, path))

    monkeypatch.setattr(NoPeers, "share", share)
    return offered


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the bytes of each file that was read to be hashed."""
    nbytes: list[int] = []
    scan = chunks.scan

    def counted(file: Any, size: int) -> tuple[list[bytes], bytes, int]:
        manifest = scan(file, size)
        nbytes.append(manifest[2])
        return manifest

    for module in (chunks, open_files):
        monkeypatch.setattr(module, "scan", counted)
    return nbytes


def as_written(one: Export) -> Export:
    """Return the export with hashes, as the process that wrote its files returns it."""
    edges = [structs.replace(edge, hashed=chunks.hash_payload(Path(edge.payload))) for edge in one.edges]
    return structs.replace(one, edges=edges)


async def test_a_payload_that_the_learner_has_hashed_is_not_read(
    tmp_path: Path, shared: list[PayloadFile], read: list[int]
) -> None:
    exported = as_written(export(tmp_path, 0, None))
    read.clear()
    with publishing(tmp_path) as (publisher, _):
        await publisher.publish(1, 0, exported)
        assert read == []
        (edge,) = publisher.stored.payloads()
    manifest = chunks.manifest_of(Path(exported.edges[0].payload))
    assert (edge.payload_hash, edge.length, edge.chunk_root) == (manifest.hash, manifest.length, manifest.chunk_root)
    assert [payload.read(0) for payload in shared] != [None]


async def test_a_payload_without_hashes_is_read_once_before_it_is_signed(
    tmp_path: Path, shared: list[PayloadFile], read: list[int]
) -> None:
    exported = export(tmp_path, 0, None)
    with publishing(tmp_path) as (publisher, _):
        await publisher.publish(1, 0, exported)
        assert read == [edge.length for edge in publisher.stored.payloads()]
        assert [payload.read(0) is not None for payload in shared] == [True]


async def test_a_file_that_the_store_already_had_is_read_before_it_is_shared(
    tmp_path: Path, shared: list[PayloadFile], read: list[int]
) -> None:
    """This happens after a crash between the file and its version's record: the file is not the one just written."""
    exported = as_written(export(tmp_path, 0, None))
    manifest = exported.edges[0].hashed
    assert isinstance(manifest, HashedManifest)
    with publishing(tmp_path) as (publisher, store):
        shutil.copy(exported.edges[0].payload, store.scratch("earlier"))
        store.put_payload(1, 0, manifest.hash, store.scratch("earlier"))
        read.clear()
        await publisher.publish(1, 0, exported)
    assert read == [manifest.length]
    assert len(shared) == 1
