"""Frames of the chunk protocol: golden bytes, and frames that must be refused."""

import json

import pytest

from echo2.p2p.errors import Malformed
from echo2.p2p.swarm import messages
from tests.support import paths

VECTORS = json.loads((paths.VECTORS / "chunks.json").read_text())


MESSAGES = {
    "ask": messages.PayloadRequest(bytes(range(32))),
    "want": messages.ChunkRequest((0, 7, 1048575)),
    "want nothing": messages.ChunkRequest(),
    "cancel": messages.Cancel((7, 300)),
    "have": messages.Have(b"\x05\x80"),
    "new": messages.HaveMore((3,)),
    "chunk": messages.Chunk(300, (bytes(32), bytes(range(32))), b"data"),
    "gone": messages.NotAvailable(9),
}


def decode(frame: bytes) -> object:
    try:
        return messages.decode_from_downloader(frame)
    except Malformed:
        return messages.decode_from_holder(frame)


@pytest.mark.parametrize("name", MESSAGES)
def test_frames_match_the_golden_vectors(name):
    assert messages.encode(MESSAGES[name]).hex() == VECTORS["frames"][name]
    assert decode(bytes.fromhex(VECTORS["frames"][name])) == MESSAGES[name]


MALFORMED = {
    "nothing": b"",
    "not MessagePack": b"\xc1",
    "an unknown message": b"\x92\xa1z\x00",
    "a short hash": b"\x92\xa1a\xc4\x1f" + bytes(31),
    "an index too large": b"\x92\xa1w\x91\xce\x00\x10\x00\x00",
    "a negative index": b"\x92\xa1g\xff",
    "too many indices": messages.encode(messages.ChunkRequest((1,) * (messages.INDICES_MAX + 1))),
    "a proof too long": messages.encode(messages.Chunk(0, (bytes(32),) * 21, b"")),
    "a chunk too long": messages.encode(messages.Chunk(0, (), bytes(messages.CHUNK_SIZE_MAX + 1))),
    "a frame cut short": messages.encode(messages.Have(b"abc"))[:-1],
    "a frame with a tail": messages.encode(messages.NotAvailable(1)) + b"x",
    "nested a thousand deep": b"\x91" * 1000,
}


@pytest.mark.parametrize("frame", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_frame_that_breaks_a_bound_is_malformed(frame):
    with pytest.raises(Malformed):
        decode(frame)


def test_the_longest_messages_fit_into_their_limits():
    most = (messages.CHUNKS_MAX - 1,) * messages.INDICES_MAX
    assert len(messages.encode(messages.ChunkRequest(most))) <= messages.DOWNLOADER_LIMIT
    for message in (
        messages.HaveMore(most),
        messages.Have(bytes(messages.CHUNKS_MAX // 8)),
        messages.Chunk(messages.CHUNKS_MAX - 1, (bytes(32),) * 20, bytes(messages.CHUNK_SIZE_MAX)),
    ):
        assert len(messages.encode(message)) <= messages.HOLDER_LIMIT


@pytest.mark.parametrize("length", [0, 1, 255, 256, 65535, 65536, messages.CHUNK_SIZE_MAX])
def test_a_chunk_in_pieces_is_the_same_frame(length):
    data, proof = memoryview(bytes(length)), (bytes(32), bytes(range(32)))
    assert b"".join(messages.encode_chunk(300, proof, data)) == messages.encode(messages.Chunk(300, proof, data))


def test_a_message_with_a_later_field_is_still_understood():
    assert messages.decode_from_holder(b"\x93\xa1g\x09\xa5later") == messages.NotAvailable(9)


@pytest.mark.parametrize("bitmap", [b"", b"\xff", b"\xff\xff\xff", b"\xff\x04"])
def test_a_bitmap_of_the_wrong_size_is_malformed(bitmap):
    assert messages.unpack_bitmap(b"\xff\x03", 10) == 0x3FF
    assert messages.pack_bitmap(0x3FF, 10) == b"\xff\x03"
    with pytest.raises(Malformed):
        messages.unpack_bitmap(bitmap, 10)
