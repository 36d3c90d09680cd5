"""The rule of signatures: the cases of ed25519-speccheck, keys that are refused, and PyNaCl as the oracle."""

import hashlib
import json
import random

import nacl.signing
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.exceptions import BadSignatureError

from echo2.p2p import identity
from echo2.p2p.errors import Malformed
from echo2.p2p.libp2p.identity_keys import Ed25519PublicKey
from echo2.p2p.signatures import REFUSED_KEYS, check_key, verifies
from tests.support.paths import VECTORS

KNOWN = json.loads((VECTORS / "signatures.json").read_text())
L = (1 << 252) + 27742317777372353535851937790883648493
SECRET = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def libsodium_verifies(key: bytes, signature: bytes, data: bytes) -> bool:
    try:
        nacl.signing.VerifyKey(key).verify(data, signature)
    except (BadSignatureError, ValueError):
        return False
    return True


def agreed(key: bytes, signature: bytes, data: bytes) -> bool:
    """Tell whether a signature holds, by the product's judgement and by libsodium's."""
    ours = verifies(key, signature, data)
    assert libsodium_verifies(key, signature, data) == ours
    return ours


@pytest.mark.parametrize("case", KNOWN["signatures"], ids=lambda case: case["name"])
def test_the_cases_of_speccheck_are_judged_as_libsodium_does(case: dict[str, str]) -> None:
    assert agreed(*(bytes.fromhex(case[name]) for name in ("key", "signature", "data"))) == case["holds"]


def test_the_keys_that_are_refused_are_the_published_ones() -> None:
    assert {key.hex() for key in REFUSED_KEYS} == set(KNOWN["refused"])
    assert len(KNOWN["refused"]) == 48


@pytest.mark.parametrize("key", [bytes.fromhex(key) for key in KNOWN["refused"]], ids=lambda key: key.hex()[:8])
def test_under_a_refused_key_no_signature_holds_and_nobody_may_name_it(key: bytes) -> None:
    for first in sorted(REFUSED_KEYS):
        for data in (b"one", b"two", b"three", b"four"):
            assert not agreed(key, first + bytes(32), data)
    assert not Ed25519PublicKey.from_bytes(key).verify(b"data", key + bytes(32))
    with pytest.raises(Malformed, match="anybody could sign under it"):
        check_key(key)
    with pytest.raises(Malformed):
        identity.public_key(identity.peer_id(key))


def test_openssl_alone_takes_signatures_under_such_keys() -> None:
    """What the rule adds to the equation: under the neutral element S = 0 signs anything."""
    neutral = (1).to_bytes(32, "little")
    assert Ed25519PublicKey.from_bytes(neutral)._key.verify(neutral + bytes(32), b"anything") is None
    assert not verifies(neutral, neutral + bytes(32), b"anything")


def test_a_signature_holds_for_its_own_bytes_alone() -> None:
    key, chance = identity.public_bytes(SECRET), random.Random(7)
    for number in range(60):
        data = hashlib.sha256(b"%d" % number).digest() * (number % 4)
        signature = SECRET.sign(data)
        assert agreed(key, signature, data)
        at, bit = chance.randrange(64), 1 << chance.randrange(8)
        changed = signature[:at] + bytes([signature[at] ^ bit]) + signature[at + 1 :]
        assert not agreed(key, changed, data)
        assert not agreed(key, signature, data + b"\x00")
        beyond = int.from_bytes(signature[32:], "little") + L
        assert not agreed(key, signature[:32] + beyond.to_bytes(32, "little"), data)


def test_a_key_or_a_signature_of_another_length_is_none() -> None:
    data, signature = b"data", SECRET.sign(b"data")
    for key, signed in ((b"", signature), (bytes(33), signature), (identity.public_bytes(SECRET), signature[:-1])):
        assert not verifies(key, signed, data)
    with pytest.raises(Malformed, match="32 bytes"):
        check_key(bytes(31))
