"""Validity of receipts after rotations and revocations of the ledger's keys."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.p2p.envelope import seal
from echo2.p2p.errors import BadSignature, Malformed
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import RoleKeys, Root, Unproven, open_kept
from echo2.protocol.leases import Receipt, Received

RUN = b"r" * 32
FIRST, SECOND, THIRD = (generate_key() for _ in range(3))


def root(serial: int, ledger: Ed25519PrivateKey, issued: int, **revoked: int) -> Root:
    names = {"first": FIRST, "second": SECOND}
    return Root(
        run=RUN, serial=serial, roles={"ledger": RoleKeys(keys=[public_bytes(ledger)], threshold=1)}, expires=1000,
        issued=issued, revoked={public_bytes(names[name]): since for name, since in revoked.items()},
    )  # fmt: skip


def receipt(key: Ed25519PrivateKey, at: int) -> bytes:
    document = Receipt(
        run=RUN, node=b"n" * 32, lease=b"l" * 16, era=1, version=1, submission_hash=b"s" * 32, verdict="accepted",
        code="ok", reason="", trainable=True, weight=1, entry=0, entry_hash=bytes(32), at=at,
    )  # fmt: skip
    return seal("receipt", RUN, encode(document), key)


ROTATED = [root(1, FIRST, 0), root(2, SECOND, 100), root(3, THIRD, 200)]
REVOKED = [root(1, FIRST, 0), root(2, SECOND, 100, first=50), root(3, SECOND, 200)]
HOLD: dict[str, tuple[list[Root], bytes, int | None]] = {
    "today's key, whatever the time": (ROTATED, receipt(THIRD, 0), None),
    "a key that was rotated later": (ROTATED, receipt(FIRST, 99), None),
    "the second key, between the Roots": (ROTATED, receipt(SECOND, 199), None),
    "a revoked key, stored under the Root before, from before the theft": (REVOKED, receipt(FIRST, 49), 1),
    "a revoked key, stored before the first Root of the chain": (REVOKED, receipt(FIRST, 49), 0),
}
FALL: dict[str, tuple[list[Root], bytes, int | None]] = {
    "a rotated key, from the moment of the next Root": (ROTATED, receipt(FIRST, 100), None),
    "a rotated key, from that moment, whenever it was stored": (ROTATED, receipt(FIRST, 100), 1),
    "a revoked key, for a node that stores it now": (REVOKED, receipt(FIRST, 49), None),
    "a revoked key, stored under the Root that revokes it": (REVOKED, receipt(FIRST, 49), 2),
    "a revoked key, stored before, from after the theft": (REVOKED, receipt(FIRST, 50), 1),
}


@pytest.mark.parametrize("what", HOLD)
def test_a_receipt_is_valid_if_it_is_of(what: str) -> None:
    chain, sealed, stored = HOLD[what]
    assert decode(open_kept(sealed, "receipt", chain, stored=stored), Receipt).weight == 1


@pytest.mark.parametrize("what", FALL)
def test_a_receipt_is_unproven_if_it_is_of(what: str) -> None:
    chain, sealed, stored = FALL[what]
    with pytest.raises(Unproven):
        open_kept(sealed, "receipt", chain, stored=stored)


def test_a_document_signed_by_no_key_of_the_run_is_valid_under_no_root() -> None:
    for chain in (ROTATED, []):
        with pytest.raises(BadSignature) as fault:
            open_kept(receipt(generate_key(), 1), "receipt", chain)
        assert not isinstance(fault.value, Unproven)
    with pytest.raises(Malformed):
        open_kept(b"\xc1", "receipt", ROTATED)


def test_a_received_is_verified_by_the_same_rules() -> None:
    acknowledgement = encode(Received(lease=b"l" * 16, submission_hash=b"s" * 32, at=100))
    with pytest.raises(Unproven):
        open_kept(seal("received", RUN, acknowledgement, FIRST), "received", ROTATED)
    assert open_kept(seal("received", RUN, acknowledgement, SECOND), "received", ROTATED) == acknowledgement


def test_a_later_root_cannot_undo_a_revocation() -> None:
    again = [*REVOKED, root(4, FIRST, 300)]
    with pytest.raises(Unproven, match="revoked"):
        open_kept(receipt(FIRST, 350), "receipt", again)
