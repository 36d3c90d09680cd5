"""Documents of versions and edges: canonical bytes, and false ones that are refused."""

import json
from typing import Any

import msgspec
import pytest

from echo2.weights.documents import MAX_DOCUMENT, Document, Edge, EdgeIndex, TensorEntry, Version
from echo2.weights.errors import BadPayload
from tests.support import paths

VECTORS = paths.VECTORS / "weights_documents.json"

VERSION = Version(
    era=1_700_000_000,
    version=42,
    root=bytes(range(32)),
    tensors=[
        TensorEntry(name="model.embed_tokens.weight", dtype="BF16", shape=(49152, 576)),
        TensorEntry(name="model.norm.weight", dtype="F32", shape=(576,)),
    ],
    aliases={"lm_head.weight": "model.embed_tokens.weight", "a.tied": "model.norm.weight"},
)
EDGE = Edge(
    era=1_700_000_000,
    base=41,
    base_root=b"b" * 32,
    version=42,
    root=bytes(range(32)),
    codec="gaps-zstd/1",
    payload_hash=b"p" * 32,
    length=1_000_003,
    chunk_size=16384,
    chunk_root=b"c" * 32,
)
FULL = msgspec.structs.replace(EDGE, base=None, base_root=None)
HASHED = msgspec.structs.replace(FULL, tensor_hashes=b"t" * 64)
INDEX = EdgeIndex(era=1_700_000_000, version=42, edges=[b"1" * 32, b"2" * 32])
DOCUMENTS: dict[str, Document] = {
    "version": VERSION,
    "edge": EDGE,
    "full_edge": FULL,
    "full_edge_of_hashed_tensors": HASHED,
    "edge_index": INDEX,
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_have_the_bytes_of_the_golden_vectors(name: str) -> None:
    golden = bytes.fromhex(json.loads(VECTORS.read_text())[name])
    assert DOCUMENTS[name].to_bytes() == golden
    assert type(DOCUMENTS[name]).from_bytes(golden) == DOCUMENTS[name]


def test_the_order_in_which_aliases_were_added_does_not_show() -> None:
    other = msgspec.structs.replace(VERSION, aliases=dict(reversed(VERSION.aliases.items())))
    assert other.to_bytes() == VERSION.to_bytes()


def test_a_field_of_a_later_program_is_ignored() -> None:
    fields = msgspec.msgpack.decode(EDGE.to_bytes()) | {"invented_later": [1, 2]}
    assert Edge.from_bytes(msgspec.msgpack.encode(fields)) == EDGE


ENTRY = {"name": "t", "dtype": "BF16", "shape": [2]}
LIES: dict[str, tuple[Document, dict[str, Any]]] = {
    "a root of 31 bytes": (VERSION, {"root": b"r" * 31}),
    "a negative version": (VERSION, {"version": -1}),
    "a version beyond 63 bits": (VERSION, {"version": 1 << 63}),
    "tensors out of order": (VERSION, {"tensors": [ENTRY | {"name": "b"}, ENTRY | {"name": "a"}], "aliases": {}}),
    "a tensor twice": (VERSION, {"tensors": [ENTRY, ENTRY], "aliases": {}}),
    "an unknown dtype": (VERSION, {"tensors": [ENTRY | {"dtype": "BF17"}], "aliases": {}}),
    "a negative dimension": (VERSION, {"tensors": [ENTRY | {"shape": [-1]}], "aliases": {}}),
    "nine dimensions": (VERSION, {"tensors": [ENTRY | {"shape": [1] * 9}], "aliases": {}}),
    "dimensions whose product is a bomb": (VERSION, {"tensors": [ENTRY | {"shape": [1 << 40] * 8}], "aliases": {}}),
    "a nameless tensor": (VERSION, {"tensors": [ENTRY | {"name": ""}], "aliases": {}}),
    "an endless name": (VERSION, {"tensors": [ENTRY | {"name": "x" * 513}], "aliases": {}}),
    "an alias of nothing": (VERSION, {"aliases": {"a": "nowhere"}}),
    "an alias of an alias": (VERSION, {"aliases": {"a": "b", "b": "model.norm.weight"}}),
    "an alias that is a tensor": (VERSION, {"aliases": {"model.norm.weight": "model.embed_tokens.weight"}}),
    "a base without its root": (EDGE, {"base_root": None}),
    "a root without its base": (EDGE, {"base": None}),
    "an edge that leads back": (EDGE, {"base": 43}),
    "an edge to itself": (EDGE, {"base": 42}),
    "an empty payload": (EDGE, {"length": 0}),
    "chunks of no bytes": (EDGE, {"chunk_size": 0}),
    "a codec that is a path": (EDGE, {"codec": "../\n"}),
    "a short chunk root": (EDGE, {"chunk_root": b""}),
    "hashes of tensors of a diff": (EDGE, {"tensor_hashes": b"t" * 32}),
    "half a hash of a tensor": (FULL, {"tensor_hashes": b"t" * 48}),
    "an index that names an edge twice": (INDEX, {"edges": [b"1" * 32] * 2}),
    "an index of too many edges": (INDEX, {"edges": [bytes([i]) * 32 for i in range(256)] + [bytes(31) + b"1"]}),
    "text for a number": (INDEX, {"era": "1"}),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_false_document_is_refused(lie: str) -> None:
    document, fields = LIES[lie]
    data = msgspec.msgpack.encode(msgspec.msgpack.decode(document.to_bytes()) | fields)
    with pytest.raises(BadPayload):
        type(document).from_bytes(data)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_cut_anywhere_is_refused(name: str) -> None:
    data = DOCUMENTS[name].to_bytes()
    for length in range(len(data)):
        with pytest.raises(BadPayload):
            type(DOCUMENTS[name]).from_bytes(data[:length])


def test_a_document_without_end_is_refused_unread() -> None:
    with pytest.raises(BadPayload, match="at most"):
        Version.from_bytes(bytes(MAX_DOCUMENT + 1))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(BadPayload):
        Version.from_bytes(b"\x81\xa1x" + b"\x91" * 100_000 + b"\x00")
