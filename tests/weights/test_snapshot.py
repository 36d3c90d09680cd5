"""Snapshot files: reading, refusals, and the content root."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from blake3 import blake3

from echo2.weights import safetensors_header
from echo2.weights.documents import TensorEntry
from echo2.weights.errors import BadSnapshot
from echo2.weights.snapshot import Snapshot, writing_snapshot
from tests.support import paths

VECTORS = paths.VECTORS / "weights_content_root.json"


def test_the_content_root_is_that_of_the_golden_vector(step: tuple[Snapshot, Snapshot]) -> None:
    golden = json.loads(VECTORS.read_text())
    assert [snapshot.root.hex() for snapshot in step] == [golden["before"], golden["after"]]


def test_the_content_root_is_the_stated_hash_of_the_stated_fields(make_snapshot: Any) -> None:
    bits = np.array([1, 2, 3], np.uint16)
    snapshot = make_snapshot("one", {"w": ("BF16", bits)}, {"tied": "w"})

    def text(value: bytes) -> bytes:
        return struct.pack("<I", len(value)) + value

    expected = b"echo2/content-root/1\0" + struct.pack("<I", 1) + text(b"w") + text(b"BF16")
    expected += struct.pack("<IQ", 1, 3) + blake3(bits.tobytes()).digest()
    expected += struct.pack("<I", 1) + text(b"tied") + text(b"w")
    assert snapshot.root == blake3(expected).digest()


def test_each_of_name_dtype_shape_bits_and_aliases_changes_the_root(make_snapshot: Any) -> None:
    bits = np.arange(4, dtype=np.uint16)
    tensors = {"a": ("BF16", bits), "b": ("BF16", bits)}
    snapshots = [
        make_snapshot("0", tensors),
        make_snapshot("1", {"a": ("BF16", bits), "c": ("BF16", bits)}),
        make_snapshot("2", {"a": ("F16", bits), "b": ("BF16", bits)}),
        make_snapshot("3", {"a": ("BF16", bits.reshape(2, 2)), "b": ("BF16", bits)}),
        make_snapshot("4", {"a": ("BF16", bits ^ np.uint16(0x8000)), "b": ("BF16", bits)}),
        make_snapshot("5", tensors, {"c": "a"}),
        make_snapshot("6", tensors, {"c": "b"}),
    ]
    assert len({snapshot.root for snapshot in snapshots}) == len(snapshots)


def test_the_root_computed_while_writing_is_that_of_the_file(tmp_path: Path) -> None:
    table = [
        TensorEntry(name="a", dtype="U8", shape=(0,)),
        TensorEntry(name="b", dtype="BF16", shape=(5, 2)),
        TensorEntry(name="c", dtype="F32", shape=()),
        TensorEntry(name="d", dtype="U8", shape=(3, 0)),
    ]
    data = bytes(range(24))
    with writing_snapshot(tmp_path / "s", table, {}) as writer:
        for at in range(0, 24, 7):
            writer.write(data[at : at + 7])
        root = writer.finish()
    snapshot = Snapshot(tmp_path / "s")
    assert (snapshot.root, list(snapshot.tensors)) == (root, table)
    assert snapshot.bits("b").tobytes() + snapshot.bits("c").tobytes() == data


def test_other_libraries_read_the_file(step: tuple[Snapshot, Snapshot]) -> None:
    loaded = safetensors.safe_open(step[0].path, "numpy")
    with loaded as file:
        assert sorted(file.keys()) == [entry.name for entry in step[0].tensors]
        assert (file.get_tensor("c.norm").view(np.uint32) == step[0].bits("c.norm")).all()
        assert json.loads(file.metadata()["alias"]) == {"head.weight": "a.weight"}


def test_an_alias_gives_the_tensor_it_is_tied_to(step: tuple[Snapshot, Snapshot]) -> None:
    assert (step[0].bits("head.weight") == step[0].bits("a.weight")).all()
    with pytest.raises(BadSnapshot, match="no tensor"):
        step[0].bits("nowhere")


def test_the_bits_cannot_be_written_to(step: tuple[Snapshot, Snapshot]) -> None:
    with pytest.raises(ValueError, match="read-only"):
        step[0].bits("c.norm")[0] = 1


def test_a_tensor_at_an_odd_byte_is_read(make_snapshot: Any) -> None:
    bits = np.arange(9, dtype=np.uint32)
    snapshot = make_snapshot("odd", {"a": ("U8", np.ones(3, np.uint8)), "b": ("F32", bits)})
    assert (snapshot.bits("b") == bits).all()


def write(path: Path, table: list[TensorEntry], data: bytes) -> bytes:
    with writing_snapshot(path, table, {}) as writer:
        writer.write(data)
        return writer.finish()


@pytest.mark.parametrize("size", [7, 9])
def test_a_writer_given_too_few_or_too_many_bytes_leaves_nothing(tmp_path: Path, size: int) -> None:
    table = [TensorEntry(name="a", dtype="BF16", shape=(4,))]
    with pytest.raises(BadSnapshot):
        write(tmp_path / "s", table, bytes(size))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_older_file(step: tuple[Snapshot, Snapshot]) -> None:
    path, before = step[0].path, step[0].path.read_bytes()
    with pytest.raises(BadSnapshot):
        write(path, step[0].tensors, b"torn")
    assert path.read_bytes() == before
    assert len(list(path.parent.iterdir())) == 2


def test_a_table_out_of_order_is_not_written(tmp_path: Path) -> None:
    table = [TensorEntry(name=name, dtype="U8", shape=(1,)) for name in "ba"]
    with pytest.raises(BadSnapshot, match="after"), writing_snapshot(tmp_path / "s", table, {}):
        pass


def raw(text: bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensors(*entries: tuple[str, str, list[Any], list[Any]], **fields: Any) -> bytes:
    """Return the header JSON of (name, dtype, shape, offsets) entries."""
    stored = {name: {"dtype": dtype, "shape": shape, "data_offsets": at} for name, dtype, shape, at in entries}
    return json.dumps(stored | fields).encode()


ABUSES: dict[str, bytes] = {
    "an empty file": b"",
    "a file shorter than its length field": b"\x01\x00\x00",
    "a header longer than the file": raw(b"{}", length=3),
    "a header of 2^64 bytes": raw(b"{}", length=(1 << 64) - 1),
    "a header beyond the bound": raw(b" " * (safetensors_header.MAX_HEADER + 1)),
    "a header that is not JSON": raw(b"{]"),
    "a header that is not UTF-8": raw(b'{"\xff":1}'),
    "a header that is a list": raw(b"[]"),
    "a header nested without end": raw(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "a number of a million digits": raw(b'{"a":' + b"9" * 1_000_000 + b"}"),
    "a tensor that is not an object": raw(b'{"a":1}'),
    "a tensor without dtype": raw(b'{"a":{"shape":[1],"data_offsets":[0,1]}}', b"x"),
    "a field nobody knows": raw(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}', b"x"),
    "a name twice": raw(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}'),
    "a key twice within a tensor": raw(b'{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
    "a dtype nobody knows": raw(tensors(("a", "BF17", [1], [0, 2])), b"xx"),
    "a negative dimension": raw(tensors(("a", "U8", [-1], [0, 1])), b"x"),
    "two negative dimensions": raw(tensors(("a", "U8", [-1, -1], [0, 1])), b"x"),
    "a fraction as dimension": raw(tensors(("a", "U8", [1.5], [0, 1])), b"x"),
    "true as dimension": raw(tensors(("a", "U8", [True], [0, 1])), b"x"),
    "dimensions whose product overflows": raw(tensors(("a", "U8", [1 << 33, 1 << 31], [0, 0]))),
    "offsets that go backward": raw(tensors(("a", "U8", [1], [1, 0])), b"x"),
    "offsets before the data": raw(tensors(("a", "U8", [2], [-1, 1])), b"x"),
    "offsets after the data": raw(tensors(("a", "U8", [2], [0, 2])), b"x"),
    "offsets that span other bytes than the shape": raw(tensors(("a", "BF16", [2], [0, 2])), b"xx"),
    "three offsets": raw(tensors(("a", "U8", [1], [0, 1, 1])), b"x"),
    "tensors that overlap": raw(tensors(("a", "U8", [2], [0, 2]), ("b", "U8", [2], [1, 3])), b"xxx"),
    "the same bytes for two tensors": raw(tensors(("a", "U8", [2], [0, 2]), ("b", "U8", [2], [0, 2])), b"xx"),
    "a hole between tensors": raw(tensors(("a", "U8", [1], [0, 1]), ("b", "U8", [1], [2, 3])), b"xxx"),
    "bytes after the last tensor": raw(tensors(("a", "U8", [1], [0, 1])), b"xx"),
    "a nameless tensor": raw(tensors(("", "U8", [1], [0, 1])), b"x"),
    "half a surrogate pair as name": raw(b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    "metadata that is a list": raw(tensors(__metadata__=[])),
    "metadata that holds numbers": raw(tensors(__metadata__={"a": 1})),
    "an alias table that is not JSON": raw(tensors(__metadata__={"alias": "{"})),
    "an alias table that is a list": raw(tensors(__metadata__={"alias": "[]"})),
    "an alias of nothing": raw(tensors(__metadata__={"alias": '{"a":"b"}'})),
    "tensors not in order of names": raw(tensors(("b", "U8", [1], [0, 1]), ("a", "U8", [1], [1, 2])), b"xx"),
}


@pytest.mark.parametrize("abuse", ABUSES)
def test_a_file_that_abuses_the_format_is_refused(tmp_path: Path, abuse: str) -> None:
    path = tmp_path / "s.safetensors"
    path.write_bytes(ABUSES[abuse])
    with pytest.raises(BadSnapshot):
        Snapshot(path)


def test_a_snapshot_of_no_tensor_has_a_root(make_snapshot: Any) -> None:
    assert len(make_snapshot("none", {}).root) == 32
