"""Noise messages after the handshake: framing, authentication, and upstream's wire."""

import contextlib
import itertools
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo2.p2p.errors import Malformed
from echo2.p2p.libp2p.noise import MESSAGE_MAX, Decryptor, Encryptor

KEY = bytes(range(32))


@pytest.mark.parametrize("length", [0, 1, MESSAGE_MAX, MESSAGE_MAX + 1, 300_000])
def test_bytes_arrive_however_they_are_split(length):
    random = Random(length)
    data = random.randbytes(length)
    sealed, opener = bytes(Encryptor(KEY).encrypt(data)), Decryptor(KEY)
    plaintexts, at = [], 0
    while at < len(sealed):
        size = random.choice([1, 2, 3, 17, 500, 70_000])
        plaintexts += opener.decrypt(sealed[at : at + size])
        at += size
    assert b"".join(plaintexts) == data


@pytest.mark.parametrize(
    "lengths",
    {
        "nothing": (),
        "empty pieces": (0, 0, 1, 0),
        "frames with their headers": (4, 9, MESSAGE_MAX - 9, 9, MESSAGE_MAX - 9, 9, 100),
        "a frame after control frames": (9, 9, 9, MESSAGE_MAX - 9, 9, MESSAGE_MAX - 9),
        "neighbours that do not fit together": (1, MESSAGE_MAX, 1, MESSAGE_MAX, 1, MESSAGE_MAX),
        "longer than a message": (5, 3 * MESSAGE_MAX + 7, 5, 2 * MESSAGE_MAX),
        "many small ones": (100,) * 5000,
    }.values(),
)
def test_pieces_are_joined_into_as_few_messages_as_possible(lengths):
    pieces = [Random(number).randbytes(length) for number, length in enumerate(lengths)]
    opened = Decryptor(KEY).decrypt(Encryptor(KEY).encrypt(*pieces))
    assert b"".join(opened) == b"".join(pieces)
    assert all(len(one) + len(other) > MESSAGE_MAX for one, other in itertools.pairwise(opened))


def test_the_wire_is_that_of_upstream():
    from echo2._libp2p.noise.connection import NoiseConnection

    one, other = (NoiseConnection.from_name(b"Noise_NN_25519_ChaChaPoly_SHA256") for _ in range(2))
    one.set_as_initiator()
    other.set_as_responder()
    for side in (one, other):
        side.start_handshake()
    other.read_message(one.write_message())
    one.read_message(other.write_message())
    state = one.noise_protocol.cipher_state_encrypt
    sealed = bytes(Encryptor(state.k, state.n).encrypt(b"first")) + bytes(Encryptor(state.k, 1).encrypt(b"second"))
    length = int.from_bytes(sealed[:2], "big")
    assert other.decrypt(sealed[2 : 2 + length]) == b"first"
    assert other.decrypt(sealed[4 + length :]) == b"second"
    state = other.noise_protocol.cipher_state_encrypt
    answer = other.encrypt(b"answer")
    assert Decryptor(state.k).decrypt(len(answer).to_bytes(2, "big") + answer) == [b"answer"]


def changed(sealed: bytes) -> bytes:
    return sealed[:5] + bytes([sealed[5] ^ 1]) + sealed[6:]


sealer = Encryptor(KEY)
FIRST, SECOND = bytes(sealer.encrypt(b"first")), bytes(sealer.encrypt(b"second"))
FAULTS = {
    "a changed byte": changed(FIRST),
    "a message twice": FIRST + FIRST,
    "out of order": SECOND,
    "one left out": FIRST + SECOND[:-1] + b"x",
    "no tag": b"\x00\x0f" + bytes(15),
    "no length": b"\x00\x00",
    "another key": bytes(Encryptor(bytes(32)).encrypt(b"x")),
}


def fed(opener: Decryptor, wire: bytes, step: int) -> None:
    for at in range(0, len(wire), step):
        opener.decrypt(wire[at : at + step])


@pytest.mark.parametrize("wire", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("step", [1, 1000])
def test_a_message_that_fails_authentication_is_malformed(wire, step):
    with pytest.raises(Malformed):
        fed(Decryptor(KEY), wire, step)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_incomplete_or_malformed(data):
    with contextlib.suppress(Malformed):
        assert Decryptor(KEY).decrypt(data) == []
