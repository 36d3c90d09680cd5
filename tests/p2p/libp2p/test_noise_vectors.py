"""The vectors of cacophony and snow: upstream's handshake, and then the messages of our own transport phase."""

import json
from typing import Any

import pytest

from echo2._libp2p.noise.connection import Keypair, NoiseConnection
from echo2.p2p.libp2p.noise import Decryptor, Encryptor
from tests.support.paths import VECTORS

KNOWN = json.loads((VECTORS / "noise.json").read_text())["vectors"]
HANDSHAKE = 3
"""Messages of the pattern XX."""


def side(vector: dict[str, Any], name: str) -> NoiseConnection:
    noise = NoiseConnection.from_name(vector["protocol_name"].encode())
    noise.set_as_initiator() if name == "init" else noise.set_as_responder()
    noise.set_prologue(bytes.fromhex(vector[f"{name}_prologue"]))
    noise.set_keypair_from_private_bytes(Keypair.STATIC, bytes.fromhex(vector[f"{name}_static"]))
    noise.set_keypair_from_private_bytes(Keypair.EPHEMERAL, bytes.fromhex(vector[f"{name}_ephemeral"]))
    noise.start_handshake()
    return noise


@pytest.mark.filterwarnings("ignore:One of ephemeral keypairs is already set")
@pytest.mark.parametrize("vector", KNOWN, ids=lambda vector: vector["from"])
def test_a_handshake_and_what_follows_have_the_published_bytes(vector: dict[str, Any]) -> None:
    sides = [side(vector, "init"), side(vector, "resp")]
    messages = [tuple(bytes.fromhex(one[name]) for name in ("payload", "ciphertext")) for one in vector["messages"]]
    for number, (payload, wire) in enumerate(messages[:HANDSHAKE]):
        one, other = sides if number % 2 == 0 else sides[::-1]
        assert one.write_message(payload) == wire
        assert other.read_message(wire) == payload
    if "handshake_hash" in vector:
        assert sides[0].get_handshake_hash().hex() == vector["handshake_hash"]
    states = [each.noise_protocol for each in sides]
    senders = [Encryptor(state.cipher_state_encrypt.k) for state in states]
    receivers = [Decryptor(state.cipher_state_decrypt.k) for state in states]
    for number, (payload, wire) in enumerate(messages[HANDSHAKE:], HANDSHAKE):
        framed = len(wire).to_bytes(2, "big") + wire
        assert senders[number % 2].encrypt(payload) == framed
        assert receivers[1 - number % 2].decrypt(framed) == [payload]
