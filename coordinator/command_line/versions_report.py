"""Reports of `echo2-coord policy`: the published versions in the run's store, also while the coordinator runs.

1. The report writes nothing and takes no lock: it reads the store beside the daemon.
2. Only documents that verify under a policy key of one of the run's Roots are shown.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.run import setup
from echo2.p2p.envelope import verify_envelope
from echo2.protocol.authority import Root
from echo2.runtime.errors import LocalFault
from echo2.weights import edges
from echo2.weights.documents import Edge, Version
from echo2.weights.edges import Finding
from echo2.weights.store import StoreReader

D = TypeVar("D", Version, Edge)


class EdgeRow(msgspec.Struct, frozen=True, kw_only=True):
    """An edge to a version. `base`: the version it starts from, None for a full edge. `nbytes`: bytes of its payload.
    `rho`: share of elements that it changes, None if unknown. `stored`: the payload is on this disk."""

    base: int | None
    nbytes: int
    rho: float | None
    stored: bool = msgspec.field(name="held")


class VersionReport(msgspec.Struct, frozen=True, kw_only=True):
    """A version and the edges that lead to it. `root`: content root, hex. `nbytes`: bytes of its weights, uncompressed.
    `stored`: its snapshot is on this disk."""

    era: int
    version: int
    root: str
    nbytes: int
    stored: bool = msgspec.field(name="held")
    edges: list[EdgeRow]


def versions(place: RunFolder) -> list[VersionReport]:
    """Return the published versions whose documents the store has, oldest first. Raises `Untrusted`, `BadSignature`,
    `LocalFault`."""
    _, chain, _, _ = setup.read_documents(place)
    with reading(place) as store:
        known = [version for version, _ in documents_of(store, chain, "version", Version)]
        ways = edges.lines(store, [edge for edge, _ in documents_of(store, chain, "edge", Edge)], known)
        snapshots = {file.hash for file in store.snapshots()}
    rows: dict[tuple[int, int], list[EdgeRow]] = {(one.era, one.version): [] for one in known}
    # An edge without its Version belongs to a publication in progress, or to an interrupted one.
    for edge_row in sorted(ways, key=lambda edge_row: -1 if edge_row.base is None else edge_row.base):
        if (edge_row.era, edge_row.version) in rows:
            row = EdgeRow(base=edge_row.base, nbytes=edge_row.nbytes, rho=edge_row.rho, stored=edge_row.stored)
            rows[edge_row.era, edge_row.version].append(row)
    return [
        VersionReport(
            era=one.era, version=one.version, root=one.root.hex(), nbytes=sum(entry.nbytes for entry in one.tensors),
            stored=one.root in snapshots, edges=rows[one.era, one.version],
        )
        for one in known
    ]  # fmt: skip


def lines(rows: list[VersionReport]) -> list[str]:
    """Return the versions as the lines of a table, one line per edge."""
    if not rows:
        return ["no version is published yet"]
    table: list[tuple[str, ...]] = [
        ("version", "from", "bytes", "of weights", "rho", "payload", "snapshot", "content root")
    ]
    for row in rows:
        ends = ("held" if row.stored else "-", row.root[:16])
        table += [(str(row.version), *_cells(edge, row.nbytes), *ends) for edge in row.edges]
        if not row.edges:
            table.append((str(row.version), "-", "-", "-", "-", "-", *ends))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) for cells in table]


def verify(place: RunFolder) -> list[Finding]:
    """Hash every payload and snapshot again; return a finding per file. Raises `LocalFault`, `StoreCorrupt`."""
    with reading(place) as store:
        return list(edges.verify(store))


@contextlib.contextmanager
def reading(place: RunFolder) -> Iterator[StoreReader]:
    """Open the run's store to read in it. Raises `LocalFault`."""
    try:
        with StoreReader(place.store) as store:
            yield store
    except FileNotFoundError as error:
        raise LocalFault(f"{place.path} has no store yet: `echo2-coord run` makes it") from error
    except PermissionError as error:
        raise LocalFault(str(error)) from error


def documents_of(store: StoreReader, chain: Sequence[Root], kind: str, document: type[D]) -> list[tuple[D, bytes]]:
    """Return the stored documents of a kind, each as it is sealed too. `chain`: the run's Roots. Raises
    `BadSignature`."""
    run, keys = chain[-1].run, {key for one in chain for key in one.roles["policy"].keys}
    stored = (one.sealed for one in store.documents(kind))
    return [(document.from_bytes(verify_envelope(sealed, kind, run, keys)), sealed) for sealed in stored]


def _cells(edge: EdgeRow, weights: int) -> tuple[str, ...]:
    base = "full" if edge.base is None else str(edge.base)
    rho = "-" if edge.rho is None else f"{edge.rho:.3%}"
    share = f"{edge.nbytes / weights:.2%}" if weights else "-"
    return base, f"{edge.nbytes:,}", share, rho, "held" if edge.stored else "dropped"
