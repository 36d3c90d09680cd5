"""Edges: round trips of whole snapshots, and payloads that are damaged, misplaced or malicious."""

import base64
import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from blake3 import blake3

from echo2.weights.codec import frames
from echo2.weights.codec.frames import Bits
from echo2.weights.diff import apply, encode, encode_full
from echo2.weights.documents import DType, TensorEntry, Version
from echo2.weights.errors import BadPayload, BadSnapshot, WrongBase
from echo2.weights.payload_format import MAGIC
from echo2.weights.snapshot import Snapshot
from tests.support import paths
from tests.support.diff_changes import changed

Step = tuple[Snapshot, Snapshot]
VECTORS = paths.VECTORS / "weights_payload.json"


@pytest.mark.parametrize("kind", ["diff", "full"])
def test_a_payload_of_the_golden_vectors_still_leads_to_its_root(step: Step, tmp_path: Path, kind: str) -> None:
    """The bytes of a payload depend on the version of zstd; their meaning never changes."""
    (tmp_path / "p").write_bytes(base64.b64decode(json.loads(VECTORS.read_text())[kind]))
    base = step[0] if kind == "diff" else None
    assert apply(base, tmp_path / "p", tmp_path / "out", step[1].root).root == step[1].root


def test_a_diff_makes_the_new_snapshot_byte_for_byte(step: Step, tmp_path: Path) -> None:
    old, new = step
    payload = encode(old, new, tmp_path / "p")
    assert (payload.base_root, payload.root) == (old.root, new.root)
    applied = apply(old, payload.path, tmp_path / "out", new.root)
    assert applied.root == Snapshot(tmp_path / "out").root == new.root
    assert (tmp_path / "out").read_bytes() == new.path.read_bytes()


def test_a_full_payload_needs_no_base(step: Step, tmp_path: Path) -> None:
    payload = encode_full(step[1], tmp_path / "p")
    apply(None, payload.path, tmp_path / "out", step[1].root)
    assert (tmp_path / "out").read_bytes() == step[1].path.read_bytes()


def test_a_payload_is_what_its_edge_will_say(step: Step, tmp_path: Path) -> None:
    payload = encode(*step, tmp_path / "p")
    data = payload.path.read_bytes()
    assert (payload.length, payload.hash, payload.codec) == (len(data), blake3(data).digest(), frames.NAME)
    assert encode(*step, tmp_path / "again").hash == payload.hash


def test_an_unchanged_model_is_a_diff_of_a_hundred_bytes(step: Step, tmp_path: Path) -> None:
    payload = encode(step[0], step[0], tmp_path / "p")
    assert payload.length < 150
    assert list(changed(step[0], payload.path)) == []
    assert apply(step[0], payload.path, tmp_path / "out", step[0].root).root == step[0].root


def test_changes_by_tensor_are_the_bits_that_differ(step: Step, tmp_path: Path) -> None:
    old, new = step
    seen: dict[str, dict[int, int]] = {}
    for change in changed(old, encode(old, new, tmp_path / "p").path):
        seen.setdefault(change.tensor.name, {}).update(zip(change.index.tolist(), change.bits.tolist(), strict=True))
    expected = {
        entry.name: {
            i: int(new.bits(entry.name)[i]) for i in np.flatnonzero(old.bits(entry.name) != new.bits(entry.name))
        }
        for entry in old.tensors
    }
    assert seen == {name: bits for name, bits in expected.items() if bits}


def test_tensors_longer_than_a_frame_come_back(
    make_snapshot: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FRAME_ELEMENTS", 1000)
    rng = np.random.default_rng(3)
    sizes: dict[str, tuple[DType, int]] = {
        "a": ("BF16", 999), "b": ("BF16", 2), "c": ("BF16", 4321), "d": ("F32", 1000), "e": ("BF16", 0),
        "f": ("BF16", 1000), "g": ("U8", 1), "h": ("BF16", 1),
    }  # fmt: skip
    widths = {"BF16": np.uint16, "F32": np.uint32, "U8": np.uint8}
    old: dict[str, tuple[DType, Bits]] = {
        name: (dtype, rng.integers(0, 200, count).astype(widths[dtype])) for name, (dtype, count) in sizes.items()
    }
    new = {
        name: (dtype, np.where(rng.random(len(bits)) < 0.02, bits + bits.dtype.type(1), bits))
        for name, (dtype, bits) in old.items()
    }
    first, second = make_snapshot("old", old), make_snapshot("new", new)
    payload = encode(first, second, tmp_path / "p")
    assert apply(first, payload.path, tmp_path / "out", second.root).root == second.root
    patched = {name: bits.copy() for name, (_, bits) in old.items()}
    for change in changed(first, payload.path):
        patched[change.tensor.name][change.index] = change.bits
    assert all((patched[name] == new[name][1]).all() for name in new)
    full = encode_full(second, tmp_path / "full")
    assert apply(None, full.path, tmp_path / "out2", second.root).root == second.root


def test_a_diff_may_change_what_is_tied(make_snapshot: Any, tmp_path: Path) -> None:
    tensors = {"a": ("BF16", np.arange(9, dtype=np.uint16)), "b": ("BF16", np.arange(9, dtype=np.uint16))}
    old, new = make_snapshot("old", tensors), make_snapshot("new", tensors, {"c": "b"})
    payload = encode(old, new, tmp_path / "p")
    assert apply(old, payload.path, tmp_path / "out", new.root).aliases == {"c": "b"}


def test_a_diff_between_models_is_not_made(make_snapshot: Any, tmp_path: Path) -> None:
    bits = np.zeros(4, np.uint16)
    old = make_snapshot("old", {"a": ("BF16", bits)})
    for name, tensors in {
        "renamed": {"b": ("BF16", bits)},
        "reshaped": {"a": ("BF16", bits.reshape(2, 2))},
        "recast": {"a": ("F16", bits)},
    }.items():
        with pytest.raises(BadSnapshot, match="full"):
            encode(old, make_snapshot(name, tensors), tmp_path / "p")
    assert not (tmp_path / "p").exists()


def assert_refused(
    error: type[Exception], base: Snapshot | None, payload: Path, out: Path, root: bytes, **expect: Any
) -> None:
    """Assert the error, an unchanged base and older `out`, and no new file in the folder."""
    out.write_bytes(b"older")
    before = {path: path.read_bytes() for path in out.parent.iterdir()}
    with pytest.raises(error):
        apply(base, payload, out, root, **expect)
    assert {path: path.read_bytes() for path in out.parent.iterdir()} == before


def test_a_diff_on_the_wrong_base_is_refused(step: Step, make_snapshot: Any, tmp_path: Path) -> None:
    old, new = step
    payload = encode(old, new, tmp_path / "p").path
    other = make_snapshot("other", {"a.weight": ("BF16", np.zeros(3, np.uint16))})
    assert_refused(WrongBase, other, payload, tmp_path / "out", new.root)
    assert_refused(WrongBase, None, payload, tmp_path / "out", new.root)
    with pytest.raises(WrongBase):
        list(changed(other, payload))


def test_a_diff_applied_twice_is_refused(step: Step, tmp_path: Path) -> None:
    payload = encode(*step, tmp_path / "p").path
    assert_refused(WrongBase, step[1], payload, tmp_path / "out", step[1].root)


def test_a_full_payload_on_a_base_is_refused(step: Step, tmp_path: Path) -> None:
    payload = encode_full(step[1], tmp_path / "p").path
    assert_refused(WrongBase, step[0], payload, tmp_path / "out", step[1].root)


def test_a_payload_to_another_root_is_refused(step: Step, tmp_path: Path) -> None:
    payload = encode(*step, tmp_path / "p").path
    assert_refused(BadPayload, step[0], payload, tmp_path / "out", step[0].root)


def test_a_base_that_rotted_on_disk_is_refused(step: Step, tmp_path: Path) -> None:
    payload = encode(*step, tmp_path / "p").path
    data = bytearray(step[0].path.read_bytes())
    data[-1] ^= 1
    (tmp_path / "rotten").write_bytes(data)
    assert_refused(WrongBase, Snapshot(tmp_path / "rotten"), payload, tmp_path / "out", step[1].root)


def test_a_table_other_than_the_versions_is_refused(step: Step, tmp_path: Path) -> None:
    new = step[1]
    version = Version(era=1, version=2, root=new.root, tensors=new.tensors, aliases=new.aliases)
    for payload, base in ((encode(*step, tmp_path / "p"), step[0]), (encode_full(new, tmp_path / "f"), None)):
        apply(base, payload.path, tmp_path / "good", new.root, expect=version)
        for lie in (
            msgspec.structs.replace(version, tensors=version.tensors[:-1]),
            msgspec.structs.replace(version, aliases={}),
        ):
            assert_refused(BadPayload, base, payload.path, tmp_path / "out", new.root, expect=lie)


def test_a_full_payload_larger_than_the_caller_allows_is_refused(step: Step, tmp_path: Path) -> None:
    payload = encode_full(step[1], tmp_path / "p").path
    assert_refused(BadPayload, None, payload, tmp_path / "out", step[1].root, max_bytes=step[1].nbytes - 1)


@pytest.mark.parametrize("full", [False, True])
def test_a_payload_cut_anywhere_is_refused(step: Step, tmp_path: Path, full: bool) -> None:
    base = None if full else step[0]
    data = encode(base, step[1], tmp_path / "p").path.read_bytes()
    for length in [*range(min(len(data), 200)), *range(200, len(data), 101), len(data) - 1]:
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(BadPayload):
            apply(base, tmp_path / "cut", tmp_path / "out", step[1].root)
    assert not (tmp_path / "out").exists()


def test_a_payload_with_any_byte_flipped_never_becomes_a_snapshot(step: Step, tmp_path: Path) -> None:
    old, new = step
    data = encode(old, new, tmp_path / "p").path.read_bytes()
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        (tmp_path / "bad").write_bytes(flipped)
        try:
            applied = apply(old, tmp_path / "bad", tmp_path / "out", new.root)
        except (BadPayload, WrongBase):
            assert not (tmp_path / "out").exists()
        else:
            # A bit of zstd's own header may carry no meaning; the weights are then the right ones.
            assert Snapshot(applied.path).root == new.root
            applied.path.unlink()


def head(step: Step, *, flags: int = 1, name: bytes = frames.NAME.encode(), table: bytes = b"") -> bytes:
    roots = (step[0].root if flags & 1 else b"") + step[1].root
    return MAGIC + bytes([len(name)]) + name + bytes([flags]) + roots + table


def table_of(tensors: list[TensorEntry], aliases: dict[str, str] | None = None) -> bytes:
    packed = zstandard.ZstdCompressor().compress(msgspec.msgpack.encode([tensors, aliases or {}]))
    return struct.pack("<I", len(packed)) + packed


def entry(name: str = "a", shape: tuple[int, ...] = (1,)) -> TensorEntry:
    return TensorEntry(name=name, dtype="BF16", shape=shape)


FORGED: dict[str, tuple[bool, Callable[[Step], bytes]]] = {
    "an empty file": (True, lambda step: b""),
    "another format": (True, lambda step: b"PK\x03\x04" * 30),
    "an unknown codec": (True, lambda step: head(step, name=b"classes/9")),
    "unknown flags": (True, lambda step: head(step, flags=5)),
    "a diff without frames": (True, lambda step: head(step)),
    "a frame of 4 GiB": (True, lambda step: head(step) + b"\x01\xff\xff\xff\xff"),
    "only unchanged frames under another root": (True, lambda step: head(step) + bytes(20)),
    "a diff that renames tensors": (True, lambda step: head(step, flags=3, table=table_of([entry()]))),
    "a table that is a bomb": (
        False,
        lambda step: head(step, flags=2, table=struct.pack("<I", 3000) + zstandard.compress(bytes(1 << 26))),
    ),
    "a table that is no table": (
        False,
        lambda step: head(step, flags=2, table=struct.pack("<I", 13) + zstandard.compress(b"{}{}")),
    ),
    "a table out of order": (False, lambda step: head(step, flags=2, table=table_of([entry("b"), entry("a")]))),
    "a table of 2^46 elements": (
        False,
        lambda step: head(step, flags=2, table=table_of([entry(shape=(1 << 44,))])) + b"\x03" + bytes(4),
    ),
    "a table of endless shape": (
        False,
        lambda step: head(step, flags=2, table=table_of([entry(shape=(1 << 45,) * 8)])),
    ),
    "an alias of nothing": (False, lambda step: head(step, flags=2, table=table_of([entry()], {"x": "y"}))),
    "unchanged frames of nothing": (False, lambda step: head(step, flags=2, table=table_of([entry()])) + b"\x00"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_payload_is_refused_without_much_memory(step: Step, tmp_path: Path, case: str) -> None:
    on_base, forge = FORGED[case]
    (tmp_path / "forged").write_bytes(forge(step))
    assert step[0].root
    tracemalloc.start()
    try:
        assert_refused(BadPayload, step[0] if on_base else None, tmp_path / "forged", tmp_path / "out", step[1].root)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
