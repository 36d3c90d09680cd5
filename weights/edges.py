"""Rebuild, list and check edges: an edge leads to a version, from another one or from nothing, by a payload. No state.

The codec is deterministic, so any holder of both snapshots can rebuild a dropped payload. The result is valid if it has
the hash in the signed Edge: then the bytes are the same.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from blake3 import blake3

from echo2.weights.codec import frames
from echo2.weights.diff import Payload, bodies, encode
from echo2.weights.documents import Edge, TensorEntry, Version
from echo2.weights.errors import BadPayload, WeightsError, WrongBase
from echo2.weights.payload_format import PayloadReader, read_header
from echo2.weights.snapshot import Snapshot, WeightsSource
from echo2.weights.store import StoreReader


class EdgeLine(msgspec.Struct, frozen=True, kw_only=True):
    """One edge in a list. `rho`: share of elements with changed bits; None for a full edge, and where only decoding
    would show it. `stored`: the payload is on this disk."""

    era: int
    base: int | None
    version: int
    nbytes: int
    rho: float | None
    stored: bool


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the store, hashed again. `fault`: None where all is well."""

    path: Path
    era: int
    version: int
    fault: str | None


def rebuild(
    edge: Edge, base: WeightsSource | None, new: WeightsSource, path: Path, *, threads: int | None = None
) -> Payload:
    """Write the payload of `edge` anew to `path`, from the weights at its two ends (`base`: None for a full edge).
    Raises `WrongBase` when they are not its ends. Raises `BadPayload` when this program cannot produce its bytes:
    another codec, or another version of zstd, made them; `path` is then absent. Raises `DiskFull`."""
    if (base.root if base else None) != edge.base_root or new.root != edge.root:
        raise WrongBase("these weights are not the two ends of the edge")
    if edge.codec != frames.NAME:
        raise BadPayload(f"edge is of codec {edge.codec}, this program encodes {frames.NAME}")
    payload = encode(base, new, path, threads=threads)
    if (payload.hash, payload.length) != (edge.payload_hash, edge.length):
        path.unlink()
        raise BadPayload(f"rebuilt payload hashes to {payload.hash.hex()[:16]}, not to {edge.payload_hash.hex()[:16]}")
    return payload


def changes(payload: Path, tensors: list[TensorEntry]) -> int | None:
    """Return the number of elements that a diff changes; None where only decoding shows it. `tensors`: tensors of its
    base. Raises `BadPayload`."""
    reader = PayloadReader(payload)
    if read_header(reader).base_root is None:
        return None
    counts = [frames.changes(frame.dtype, kind, body, frame.elements) for frame, kind, body in bodies(reader, tensors)]
    return None if None in counts else sum(one for one in counts if one is not None)


def lines(store: StoreReader, edges: Iterable[Edge], versions: Iterable[Version]) -> list[EdgeLine]:
    """Describe edges in the order given, by their payloads. `versions`: those known, for their tensor tables."""
    tables = {version.root: version.tensors for version in versions}
    return [_edge_line(edge, store.payload(edge.payload_hash), tables.get(edge.root)) for edge in edges]


def verify(store: StoreReader) -> Iterator[Finding]:
    """Hash every payload of a store again, then every snapshot, the oldest first. This reads all bytes of the store.
    Files that a daemon drops in the meantime are left out."""
    for file in [*store.payloads(), *store.snapshots()]:
        fault = (_payload_fault if file.path.parent.name == "payloads" else _fault)(file.path, file.hash)
        # A row is deleted before its file: where both are gone, a daemon dropped them in the meantime.
        if fault is None or file in (*store.payloads(), *store.snapshots()):
            yield Finding(path=file.path, era=file.era, version=file.version, fault=fault)


def _edge_line(edge: Edge, payload: Path | None, tensors: list[TensorEntry] | None) -> EdgeLine:
    changed = elements = None
    if payload is not None and tensors is not None:
        # A daemon dropped the file just now, or it is corrupt, which `verify` would show.
        with contextlib.suppress(FileNotFoundError, BadPayload):
            changed = changes(payload, tensors)
        elements = sum(entry.elements for entry in tensors)
    return EdgeLine(
        era=edge.era, base=edge.base, version=edge.version, nbytes=edge.length, stored=payload is not None,
        rho=changed / elements if changed is not None and elements else None,
    )  # fmt: skip


def _payload_fault(path: Path, digest: bytes) -> str | None:
    hasher = blake3()
    try:
        hasher.update_mmap(path)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None if hasher.digest() == digest else f"hashes to {hasher.hexdigest()[:16]}"


def _fault(path: Path, root: bytes) -> str | None:
    try:
        root_found = Snapshot(path).root
    except (WeightsError, OSError) as error:
        return str(error)
    return None if root_found == root else f"has content root {root_found.hex()[:16]}"
