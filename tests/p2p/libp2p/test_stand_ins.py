"""The small modules that the bundled libp2p imports in place of libraries: known values, foreign keys, bad bytes."""

import hashlib
from io import BytesIO

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from google.protobuf.descriptor_pool import Default

from echo2._libp2p.crypto.exceptions import MissingDeserializerError
from echo2._libp2p.crypto.keys import KeyType
from echo2._libp2p.crypto.pb import crypto_pb2
from echo2._libp2p.crypto.serialization import deserialize_public_key
from echo2._libp2p.multiaddr import Multiaddr
from echo2._libp2p.peer.id import ID
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.libp2p import descriptor_pool, multicodec, multihash, varint
from echo2.p2p.libp2p.identity_keys import RSAPublicKey, Secp256k1PublicKey, create_new_key_pair
from tests.support import rsa_identity

CERTIFICATE = (
    "/ip4/192.0.2.1/udp/4001/quic-v1/webtransport/certhash/u" + "EiAkCAnYQ7Sto9dKE2BxPZrNxR6jKO8HJuMKvWqYYYYYYQ"
)


@pytest.mark.parametrize(("number", "packed"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (421, "a503")])
def test_a_number_has_the_bytes_of_unsigned_leb128(number: int, packed: str) -> None:
    assert varint.encode(number).hex() == packed
    assert varint.decode_stream(BytesIO(bytes.fromhex(packed) + b"rest")) == number


@pytest.mark.parametrize("packed", [b"", b"\x80", b"\xff" * 8, b"\x80" * 9 + b"\x01"])
def test_a_number_that_is_cut_off_or_too_long_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="number"):
        varint.decode_stream(BytesIO(packed))


def test_a_multihash_is_a_code_a_length_and_the_digest() -> None:
    digest = hashlib.sha256(b"abc").digest()
    packed = multihash.encode(digest, "sha2-256")
    assert packed == b"\x12\x20" + digest
    assert multihash.decode(packed) == (0x12, digest)
    for wrong in (packed[:-1], packed + b"x", b"\x12", b""):
        with pytest.raises(ValueError, match=r"multihash|number"):
            multihash.decode(wrong)


def test_an_ed25519_identity_is_that_of_our_own_keys() -> None:
    key = generate_key()
    pair = create_new_key_pair(key.private_bytes_raw())
    assert str(ID.from_pubkey(pair.public_key)) == peer_id(public_bytes(key))
    signature = pair.private_key.sign(b"text")
    assert signature == key.sign(b"text")
    assert pair.public_key.verify(b"text", signature)
    assert not pair.public_key.verify(b"other", signature)
    assert not pair.public_key.verify(b"text", signature[:-1])
    assert ID.from_pubkey(pair.public_key).extract_public_key() == pair.public_key
    assert create_new_key_pair().public_key != create_new_key_pair().public_key


def test_the_key_of_a_foreign_rsa_peer_is_read_and_its_signature_checked() -> None:
    pair = rsa_identity.create_new_key_pair()
    known = deserialize_public_key(pair.public_key.serialize())
    assert isinstance(known, RSAPublicKey)
    assert known == pair.public_key
    assert known.verify(b"text", pair.private_key.sign(b"text"))
    assert not known.verify(b"text", pair.private_key.sign(b"other"))
    assert str(ID.from_pubkey(known)).startswith("Qm")


def test_the_key_of_a_foreign_secp256k1_peer_is_read_and_its_signature_checked() -> None:
    private = ec.generate_private_key(ec.SECP256K1())
    point = private.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    known = deserialize_public_key(
        crypto_pb2.PublicKey(key_type=KeyType.Secp256k1.value, data=point).SerializeToString()
    )
    assert isinstance(known, Secp256k1PublicKey)
    assert known.to_bytes() == point
    signature = private.sign(b"text", ec.ECDSA(SHA256()))
    assert known.verify(b"text", signature)
    assert not known.verify(b"text", b"no signature")


@pytest.mark.parametrize("kind", [KeyType.Ed25519, KeyType.RSA, KeyType.Secp256k1])
def test_bytes_that_are_no_key_are_a_value_error(kind: KeyType) -> None:
    with pytest.raises(ValueError, match=r"."):
        deserialize_public_key(crypto_pb2.PublicKey(key_type=kind.value, data=b"no key").SerializeToString())


@pytest.mark.slow
def test_an_rsa_key_that_would_take_long_and_a_kind_without_reader_are_refused() -> None:
    long = rsa.generate_private_key(65537, 4608).public_key()
    with pytest.raises(ValueError, match="at most 4096 bits"):
        RSAPublicKey.from_bytes(long.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(MissingDeserializerError):
        deserialize_public_key(crypto_pb2.PublicKey(key_type=KeyType.ECDSA.value, data=b"").SerializeToString())


def test_the_messages_of_the_bundle_are_not_in_the_pool_of_another_libp2p() -> None:
    assert crypto_pb2.DESCRIPTOR.pool is descriptor_pool.Default()
    with pytest.raises(KeyError):
        Default().FindFileByName("libp2p/crypto/pb/crypto.proto")


def test_only_the_format_of_peer_records_is_known() -> None:
    assert multicodec.LIBP2P_PEER_RECORD == 0x0301
    with pytest.raises(ValueError, match="not a known format"):
        multicodec.get_prefix("sha2-256")


def test_the_hash_of_a_certificate_in_an_address_keeps_its_text() -> None:
    assert str(Multiaddr(Multiaddr(CERTIFICATE).to_bytes())) == CERTIFICATE
    for wrong in ("uEiA", "zEiA", "u!"):
        with pytest.raises(ValueError, match=r"."):
            Multiaddr(f"/ip4/192.0.2.1/udp/4001/quic-v1/webtransport/certhash/{wrong}").to_bytes()


def test_a_peer_id_as_a_cid_is_no_peer_id_here() -> None:
    with pytest.raises(ValueError, match="Invalid CID"):
        Multiaddr("/p2p/bafzaajaiaejcda3djnhxfqyqyhh7nnkgmxlqvjm6mcbtmbuquxczjfzzy7xhg2sq").to_bytes()
