"""Edges: payloads rebuilt from both ends, listed, and verified."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from echo2.weights.codec.frames import NAME
from echo2.weights.diff import Payload, encode, encode_full
from echo2.weights.documents import Edge, Version
from echo2.weights.edges import changes, lines, rebuild, verify
from echo2.weights.errors import BadPayload, WrongBase
from echo2.weights.snapshot import Snapshot
from echo2.weights.store import Store

Step = tuple[Snapshot, Snapshot]


def edge_of(payload: Payload, *, base: int | None = 1) -> Edge:
    return Edge(
        era=1, base=base, base_root=payload.base_root, version=2, root=payload.root, codec=payload.codec,
        payload_hash=payload.hash, length=payload.length, chunk_size=1 << 18, chunk_root=bytes(32),
    )  # fmt: skip


@pytest.mark.parametrize("full", [False, True])
def test_a_dropped_payload_is_made_again_byte_for_byte(step: Step, tmp_path: Path, full: bool) -> None:
    base = None if full else step[0]
    payload = encode(base, step[1], tmp_path / "first")
    edge = edge_of(payload, base=None if full else 1)
    data = payload.path.read_bytes()
    payload.path.unlink()
    again = rebuild(edge, base, Snapshot(step[1].path), tmp_path / "again", threads=2)
    assert again.path.read_bytes() == data
    with Store(tmp_path / "store") as store:
        store.put_payload(1, 2, edge.payload_hash, again.path)


def test_snapshots_that_do_not_make_the_edge_are_refused_and_leave_nothing(step: Step, tmp_path: Path) -> None:
    old, new = step
    edge = edge_of(encode(old, new, tmp_path / "p"))
    lie = msgspec.structs.replace(edge, payload_hash=bytes(32))
    other = msgspec.structs.replace(edge, codec="other/1")
    for error, wrong, base, end in (
        (WrongBase, edge, new, new),
        (WrongBase, edge, old, old),
        (WrongBase, edge, None, new),
        (BadPayload, lie, old, new),
        (BadPayload, other, old, new),
    ):
        with pytest.raises(error):
            rebuild(wrong, base, end, tmp_path / "again")
        assert not (tmp_path / "again").exists()


def test_changes_are_counted_without_the_base(step: Step, tmp_path: Path) -> None:
    old, new = step
    assert changes(encode(old, old, tmp_path / "same").path, old.tensors) == 0
    # The float32 tensor changes, too: only decoding tells how much.
    assert changes(encode(old, new, tmp_path / "p").path, old.tensors) is None
    assert changes(encode_full(new, tmp_path / "full").path, old.tensors) is None


def test_edges_are_listed_with_bytes_and_rho(make_snapshot: Any, tmp_path: Path) -> None:
    bits = np.arange(1000, dtype=np.uint16)
    old, new = make_snapshot("a", {"w": ("BF16", bits)}), make_snapshot("b", {"w": ("BF16", bits + (bits % 50 == 0))})
    payload = encode(old, new, tmp_path / "p")
    edge, full = edge_of(payload), edge_of(encode_full(new, tmp_path / "f"), base=None)
    version = Version(era=1, version=2, root=new.root, tensors=new.tensors)
    with Store(tmp_path / "store") as store:
        store.put_payload(1, 2, payload.hash, payload.path)
        rows = lines(store, [edge, full], [version])
        assert [(row.base, row.nbytes, row.rho, row.stored) for row in rows] == [
            (1, payload.length, 0.02, True),
            (None, full.length, None, False),
        ]
        assert edge.codec == NAME


def test_verify_finds_the_file_that_rotted(step: Step, tmp_path: Path) -> None:
    with Store(tmp_path / "store") as store:
        payload = encode(*step, store.scratch("p"))
        kept = store.put_payload(1, 2, payload.hash, payload.path)
        store.scratch("s").write_bytes(step[1].path.read_bytes())
        snapshot = store.put_snapshot(1, 2, step[1].root, store.scratch("s"))
        assert [finding.fault for finding in verify(store)] == [None, None]
        for path in (kept, snapshot):
            data = bytearray(path.read_bytes())
            data[-1] ^= 4
            path.write_bytes(data)
        faults = {finding.path: finding.fault for finding in verify(store)}
        assert "hashes to" in str(faults[kept])
        assert "content root" in str(faults[snapshot])
        snapshot.write_bytes(b"short")
        assert None not in [finding.fault for finding in verify(store)]
