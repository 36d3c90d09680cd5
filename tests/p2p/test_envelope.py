"""Sealed documents: golden bytes, and every kind of signature that must not count."""

import json

import blake3
import msgpack
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from echo2.p2p.envelope import (
    ENVELOPE_LIMIT,
    ROLES,
    Envelope,
    Signature,
    Verified,
    decode_unverified,
    document_hash,
    seal,
    signed_bytes,
    verify,
    verify_envelope,
    verify_named,
)
from echo2.p2p.errors import BadSignature, Malformed, PeerFault
from echo2.p2p.identity import public_bytes
from tests.support.paths import VECTORS

VECTOR = json.loads((VECTORS / "envelope.json").read_text())
RUN, OTHER_RUN = bytes(range(32)), bytes(32)
PAYLOAD = b"\x81\xa3eraa"
FIRST, SECOND, THIRD = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2, 3))
KEYS = [public_bytes(key) for key in (FIRST, SECOND, THIRD)]
HEAD = seal("head", RUN, PAYLOAD, FIRST)


def changed(data: bytes = HEAD, **fields: object) -> bytes:
    """A sealed document with other fields under the same signatures."""
    return msgspec.msgpack.encode(msgspec.structs.replace(decode_unverified(data), **fields))


def test_an_envelope_has_the_bytes_of_the_golden_vector() -> None:
    keys = [Ed25519PrivateKey.from_private_bytes(bytes.fromhex(key)) for key in VECTOR["private_keys"]]
    run, payload = bytes.fromhex(VECTOR["run"]), bytes.fromhex(VECTOR["payload"])
    assert signed_bytes(VECTOR["kind"], run, payload).hex() == VECTOR["signed_bytes"]
    sealed = seal(VECTOR["kind"], run, payload, *keys)
    assert sealed.hex() == VECTOR["sealed"]
    assert document_hash(sealed).hex() == VECTOR["document_hash"]
    assert verify_envelope(sealed, VECTOR["kind"], run, [public_bytes(key) for key in keys], 2) == payload


def test_the_signed_bytes_bind_protocol_kind_run_and_length() -> None:
    assert signed_bytes("head", RUN, b"abc") == b"echo2/1/head" + RUN + bytes(7) + b"\x03abc"


def test_the_payload_comes_back() -> None:
    assert verify_envelope(HEAD, "head", RUN, KEYS) == PAYLOAD
    assert decode_unverified(HEAD).payload == PAYLOAD


@pytest.mark.parametrize("kind", ROLES)
def test_a_document_passes_for_one_of_its_own_kind_only(kind: str) -> None:
    sealed = seal(kind, RUN, PAYLOAD, FIRST)
    for other in ROLES:
        if other == kind:
            assert verify_envelope(sealed, other, RUN, KEYS) == PAYLOAD
            continue
        with pytest.raises(BadSignature, match=f"got a {kind}, expected a {other}"):
            verify_envelope(sealed, other, RUN, KEYS)
        with pytest.raises(BadSignature, match="0 of 1"):
            verify_envelope(changed(sealed, kind=other), other, RUN, KEYS)


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def signature_of(data: bytes) -> Signature:
    return decode_unverified(data).signatures[0]


FORGERIES: dict[str, bytes] = {
    "another run's document": seal("head", OTHER_RUN, PAYLOAD, FIRST),
    "another run's document under this run's name": changed(seal("head", OTHER_RUN, PAYLOAD, FIRST), run=RUN),
    "a changed payload": changed(payload=flipped(PAYLOAD, 0)),
    "a shorter payload": changed(payload=PAYLOAD[:-1]),
    "a longer payload": changed(payload=PAYLOAD + b"\x00"),
    "no payload": changed(payload=b""),
    "no signature": changed(signatures=[]),
    "an unknown key": seal("head", RUN, PAYLOAD, Ed25519PrivateKey.from_private_bytes(bytes([9]) * 32)),
    "a signature under another key's name": changed(signatures=[Signature(KEYS[1], signature_of(HEAD).signature)]),
    "a changed signature": changed(signatures=[Signature(KEYS[0], flipped(signature_of(HEAD).signature, 5))]),
    "an empty signature": changed(signatures=[Signature(KEYS[0], b"")]),
    "an empty key": changed(signatures=[Signature(b"", signature_of(HEAD).signature)]),
    "a signature over the payload alone": changed(signatures=[Signature(KEYS[0], FIRST.sign(PAYLOAD))]),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forgery_is_no_signature(forgery: str) -> None:
    with pytest.raises(BadSignature):
        verify_envelope(FORGERIES[forgery], "head", RUN, KEYS)


def test_a_key_that_is_no_point_of_the_curve_signs_nothing() -> None:
    strange = b"\xff" * 32
    with pytest.raises(BadSignature, match="0 of 1"):
        verify_envelope(changed(signatures=[Signature(strange, bytes(64))]), "head", RUN, [strange])


def test_the_same_key_twice_is_one_signature() -> None:
    twice = seal("root", RUN, PAYLOAD, FIRST, FIRST, FIRST)
    assert len(decode_unverified(twice).signatures) == 3
    with pytest.raises(BadSignature, match="1 of 2"):
        verify_envelope(twice, "root", RUN, KEYS, 2)


def test_a_threshold_takes_that_many_different_keys() -> None:
    two = seal("root", RUN, PAYLOAD, FIRST, THIRD)
    assert verify_envelope(two, "root", RUN, KEYS, 2) == PAYLOAD
    with pytest.raises(BadSignature, match="2 of 3"):
        verify_envelope(two, "root", RUN, KEYS, 3)
    with pytest.raises(BadSignature, match="1 of 2"):
        verify_envelope(two, "root", RUN, KEYS[:2], 2)


def test_a_bad_signature_beside_enough_good_ones_does_no_harm() -> None:
    good = decode_unverified(seal("root", RUN, PAYLOAD, FIRST, SECOND)).signatures
    mixed = changed(seal("root", RUN, PAYLOAD), signatures=[Signature(KEYS[2], bytes(64)), *good])
    assert verify_envelope(mixed, "root", RUN, KEYS, 2) == PAYLOAD


def test_a_threshold_below_one_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        verify_envelope(changed(signatures=[]), "head", RUN, KEYS, 0)


@pytest.mark.parametrize(("kind", "run"), [("treaty", RUN), ("", RUN), ("head", RUN[:31]), ("head", b"")])
def test_only_kinds_and_runs_of_this_protocol_are_sealed(kind: str, run: bytes) -> None:
    with pytest.raises(ValueError, match="cannot seal kind"):
        seal(kind, run, PAYLOAD, FIRST)


def raw(**fields: object) -> bytes:
    """An envelope built by hand."""
    return msgspec.msgpack.encode(msgspec.structs.replace(Envelope("head", RUN, PAYLOAD, []), **fields))


NO_ENVELOPES: dict[str, bytes] = {
    "nothing": b"",
    "a map": msgspec.msgpack.encode({"kind": "head", "run": RUN, "payload": PAYLOAD, "signatures": []}),
    "three fields": msgspec.msgpack.encode(["head", RUN, PAYLOAD]),
    "bytes that follow": HEAD + b"\x00",
    "a kind of no role": raw(kind="treaty"),
    "a run id of 31 bytes": raw(run=RUN[:31]),
    "a payload that is text": raw(payload="payload"),
    "33 signatures": raw(signatures=[Signature(KEYS[0], bytes(64))] * 33),
    "a signature of one part": raw(signatures=[[KEYS[0]]]),
    "larger than the limit": bytes(ENVELOPE_LIMIT + 1),
}


@pytest.mark.parametrize("what", NO_ENVELOPES)
def test_bytes_that_are_no_envelope_are_malformed(what: str) -> None:
    with pytest.raises(Malformed):
        decode_unverified(NO_ENVELOPES[what])
    with pytest.raises(Malformed):
        verify_envelope(NO_ENVELOPES[what], "head", RUN, KEYS)


def test_a_document_of_32_signatures_is_read() -> None:
    keys = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(32)]
    sealed = seal("root", RUN, PAYLOAD, *keys)
    assert verify_envelope(sealed, "root", RUN, [public_bytes(key) for key in keys], 32) == PAYLOAD


@given(st.integers(0, len(HEAD) - 1), st.integers(1, 255))
def test_every_changed_byte_is_detected(place: int, difference: int) -> None:
    data = HEAD[:place] + bytes([HEAD[place] ^ difference]) + HEAD[place + 1 :]
    with pytest.raises(PeerFault):
        verify_envelope(data, "head", RUN, KEYS)


def test_the_name_of_a_document_is_the_blake3_of_all_its_bytes() -> None:
    assert document_hash(HEAD) == blake3.blake3(HEAD).digest()
    assert document_hash(seal("head", RUN, PAYLOAD, FIRST, SECOND)) != document_hash(HEAD)


def test_a_verified_document_keeps_its_bytes_and_the_value_that_was_decoded_once() -> None:
    decoded = []
    verified = verify(HEAD, "head", RUN, KEYS, 1, lambda payload: decoded.append(payload) or "value")
    assert (verified.value, verified.sealed, decoded) == ("value", HEAD, [PAYLOAD])


def test_a_document_that_does_not_verify_is_not_decoded() -> None:
    with pytest.raises(BadSignature):
        verify(HEAD, "head", OTHER_RUN, KEYS, 1, lambda payload: pytest.fail("decoded"))
    with pytest.raises(BadSignature, match="not the one named"):
        verify_named(b"other", document_hash(b"named"), lambda data: pytest.fail("decoded"))
    digest = document_hash(b"named")
    with pytest.raises(BadSignature, match="not the one named"):
        verify_named(b"named", digest[:-1] + bytes([digest[-1] ^ 1]), lambda data: pytest.fail("decoded"))
    named = verify_named(b"named", digest, len)
    assert (named.value, named.sealed) == (5, b"named")


def _map_with_a_field_twice(fields: dict[str, object], name: str) -> bytes:
    pairs = [*fields.items(), (name, fields[name])]
    return msgpack.Packer().pack_map_pairs(pairs)


@pytest.mark.parametrize("name", ["head", "serial"])
def test_a_signed_document_in_which_a_field_stands_twice_is_malformed(name: str) -> None:
    fields = {"head": {"version": 3}, "serial": 4}
    sound = seal("head", RUN, msgpack.packb(fields), FIRST)
    assert msgpack.unpackb(verify_envelope(sound, "head", RUN, KEYS)) == fields
    inner = b"\x81\xa4head" + _map_with_a_field_twice({"version": 3}, "version")
    for payload in (_map_with_a_field_twice(fields, name), inner):
        with pytest.raises(Malformed, match=r"^a field stands twice in this head$"):
            verify_envelope(seal("head", RUN, payload, FIRST), "head", RUN, KEYS)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91" * 5000, b"\x81\xa1\xff\x01"])
def test_bytes_that_are_no_messagepack_are_malformed(payload: bytes) -> None:
    with pytest.raises(Malformed, match="cannot be read whole"):
        verify_envelope(seal("head", RUN, payload, FIRST), "head", RUN, KEYS)


@pytest.mark.parametrize("junk", [b"\x81\x90\x01", b"\xa1\xff", b"\xd7\xff" + b"\xff" * 8])
@pytest.mark.parametrize("first", [True, False])
def test_what_cannot_be_read_in_an_unknown_field_hides_no_second_field(junk: bytes, first: bool) -> None:
    unknown, twice = b"\xa1x" + junk, b"\xa7version\x01\xa7version\x02"
    payload = b"\x83" + (unknown + twice if first else twice + unknown)
    with pytest.raises(Malformed, match="cannot be read whole"):
        verify_envelope(seal("head", RUN, payload, FIRST), "head", RUN, KEYS)


def test_only_verification_creates_a_verified_document() -> None:
    with pytest.raises(TypeError, match="only verify and verify_named"):
        Verified("value", HEAD)
    with pytest.raises(TypeError, match="only verify and verify_named"):
        Verified("value", HEAD, "a check")
