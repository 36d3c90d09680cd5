"""Signed peer records, and every kind of false one."""

import json
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from echo2.p2p.discovery.messages import PeerRecord
from echo2.p2p.discovery.peer_records import (
    MOST_RECORD_ADDRESSES,
    MOST_RECORD_BYTES,
    MOST_RECORDS,
    RECORD_LIFE_MS,
    RECORD_RENEWAL_MS,
    RECORD_SKEW_MS,
    RecordBook,
    RecordIssuer,
    is_dialable,
    is_dialable_of_operator,
    verify,
)
from echo2.p2p.envelope import seal
from echo2.p2p.errors import BadSignature, Malformed, P2PError, Stale
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.wire_types import encode
from tests.support.paths import VECTORS

VECTOR = json.loads((VECTORS / "records.json").read_text())
NOW, RUN = 1_700_000_000_000, bytes(range(32))


def key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def name(number: int) -> str:
    return peer_id(public_bytes(key(number)))


ALICE, BOB = name(1), name(2)
WHERE = f"/ip4/192.0.2.7/tcp/4310/p2p/{ALICE}"


def record(addresses: list[str], issued: int = NOW, signer: int = 1, kind: str = "peer", run: bytes = RUN) -> bytes:
    return seal(kind, run, encode(PeerRecord(addresses=addresses, issued=issued)), key(signer))


def test_a_record_has_the_bytes_of_the_golden_vector() -> None:
    own = RecordIssuer(
        Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTOR["private_key"])), bytes.fromhex(VECTOR["run"])
    )
    sealed = own.issue(VECTOR["addresses"], VECTOR["issued"])
    assert sealed.hex() == VECTOR["sealed"]
    known = verify(sealed, bytes.fromhex(VECTOR["run"]), VECTOR["issued"])
    assert (known.peer, list(known.addresses), known.issued) == (VECTOR["peer"], VECTOR["addresses"], VECTOR["issued"])


PAYLOAD = encode(PeerRecord(addresses=[], issued=NOW))
LIES: dict[str, tuple[type[P2PError], Callable[[], bytes]]] = {
    "signed by another key than the one it speaks of": (Malformed, lambda: record([WHERE], signer=2)),
    "an address was changed": (BadSignature, lambda: record([WHERE]).replace(b"192.0.2.7", b"192.0.2.8")),
    "the time was changed": (BadSignature, lambda: record([WHERE]).replace(NOW.to_bytes(8), (NOW + 1).to_bytes(8))),
    "of another run": (BadSignature, lambda: record([WHERE], run=bytes(32))),
    "a request, signed by the same key": (BadSignature, lambda: record([WHERE], kind="request")),
    "signed by two": (BadSignature, lambda: seal("peer", RUN, PAYLOAD, key(1), key(2))),
    "without a signature": (BadSignature, lambda: seal("peer", RUN, PAYLOAD)),
    "its life is over": (Stale, lambda: record([WHERE], NOW - RECORD_LIFE_MS)),
    "from the day after tomorrow": (Stale, lambda: record([WHERE], NOW + RECORD_SKEW_MS + 1)),
    "too many addresses": (Malformed, lambda: record([WHERE] * (MOST_RECORD_ADDRESSES + 1))),
    "too many bytes": (Malformed, lambda: record([WHERE]) + bytes(MOST_RECORD_BYTES)),
    "no record inside": (Malformed, lambda: seal("peer", RUN, b"\xc1", key(1))),
    "nothing": (Malformed, lambda: b""),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_record_is_refused(lie: str) -> None:
    error, sealed = LIES[lie]
    records = RecordBook(RUN)
    with pytest.raises(error):
        records.take(sealed(), NOW)
    assert records.newest(9) == []


def test_a_record_may_contain_the_address_of_another_peer() -> None:
    assert RecordBook(RUN).take(record([f"/ip4/8.8.8.8/tcp/443/p2p/{ALICE}"]), NOW).peer == ALICE


ADDRESSES = {
    f"/ip4/192.0.2.7/tcp/4310/p2p/{ALICE}": True,
    f"/ip6/2001:db8::1/tcp/443/p2p/{ALICE}": True,
    f"/ip4/127.0.0.1/tcp/4310/p2p/{ALICE}": True,
    f"/ip4/192.0.2.1/tcp/4310/p2p/{BOB}/p2p-circuit/p2p/{ALICE}": True,
    f"/dns4/coord.example/tcp/4310/p2p/{BOB}/p2p-circuit/p2p/{ALICE}": False,
    f"/dns4/victim.example/tcp/4310/p2p/{ALICE}": False,
    f"/ip4/192.0.2.7/tcp/4310/p2p/{BOB}": False,
    f"/ip4/192.0.2.7/tcp/4310/p2p/{ALICE}/p2p-circuit/p2p/{BOB}": False,
    f"/ip4/192.0.2.7/tcp/4310/p2p/{ALICE}/p2p-circuit/p2p/{ALICE}": False,
    f"/ip4/192.0.2.7/tcp/4310/p2p//p2p-circuit/p2p/{ALICE}": False,
    f"/ip4/192.0.2.7/tcp/25/p2p/{ALICE}": False,
    f"/ip4/192.0.2.7/tcp/0/p2p/{ALICE}": False,
    f"/ip4/192.0.2.7/tcp/65536/p2p/{ALICE}": False,
    f"/ip4/192.0.2.7/tcp/-4310/p2p/{ALICE}": False,
    f"/ip4/192.0.2.7/tcp/٤٣١٠/p2p/{ALICE}": False,
    f"/ip4/192.0.2.7/udp/4310/p2p/{ALICE}": False,
    f"/ip4/192.0.2.7/tcp/4310/https/p2p/{ALICE}": False,
    f"/ip4/0.0.0.0/tcp/4310/p2p/{ALICE}": False,
    f"/ip4/224.0.0.1/tcp/4310/p2p/{ALICE}": False,
    f"/ip4/255.255.255.255/tcp/4310/p2p/{ALICE}": False,
    f"/ip4/169.254.169.254/tcp/4310/p2p/{ALICE}": False,
    f"/ip6/fe80::1%eth0/tcp/4310/p2p/{ALICE}": False,
    f"/ip6/192.0.2.7/tcp/4310/p2p/{ALICE}": False,
    f"/ip4/victim.example/tcp/4310/p2p/{ALICE}": False,
    "/ip4/192.0.2.7/tcp/4310": False,
    "": False,
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_only_dialable_addresses_are_accepted_and_signed(address: str) -> None:
    good = ADDRESSES[address]
    assert is_dialable(address, ALICE) is good
    assert verify(RecordIssuer(key(1), RUN).issue([address], NOW), RUN, NOW).addresses == ((address,) if good else ())
    if not good:
        with pytest.raises(Malformed):
            verify(record([address]), RUN, NOW)


OPERATORS = {
    f"/ip4/192.0.2.7/tcp/4310/p2p/{ALICE}": True,
    f"/dns4/coord.example/tcp/443/p2p/{ALICE}": True,
    f"/dns4/coord.example/tcp/4311/https/p2p/{ALICE}": True,
    "/dns4/coord.example/tcp/443/https": True,
    f"/dns4/relay.example/tcp/4310/p2p/{BOB}/p2p-circuit/p2p/{ALICE}": True,
    f"/memory/0/p2p/{ALICE}": True,
    f"/ip4/192.0.2.7/tcp/25/p2p/{ALICE}": False,
    f"/dns4/victim.example/tcp/22/p2p/{ALICE}": False,
    "/dns4/victim.example/tcp/80/https": False,
    f"/ip4/192.0.2.7/tcp/25/p2p/{BOB}/p2p-circuit/p2p/{ALICE}": False,
    f"/ip4/192.0.2.7/udp/4310/tcp/25/p2p/{ALICE}": False,
    f"/ip4/192.0.2.7/tcp/4310/tcp/25/p2p/{ALICE}": False,
    f"/ip4/169.254.169.254/tcp/4310/p2p/{ALICE}": False,
    f"/ip4/victim.example/tcp/4310/p2p/{ALICE}": False,
    "/ip4/192.0.2.7/tcp/4310": False,
    "": False,
}  # fmt: skip


@pytest.mark.parametrize("address", OPERATORS)
def test_the_operators_addresses_may_have_names_and_lead_to_https_and_to_no_system_service(address: str) -> None:
    assert is_dialable_of_operator(address) is OPERATORS[address]


@given(st.text(alphabet="/ip46dnstcp2-circuthtp0123456789.:%" + ALICE, max_size=200))
def test_any_text_is_an_address_without_an_error(text: str) -> None:
    assert is_dialable(text, ALICE) in (True, False)
    assert is_dialable_of_operator(text) in (True, False)


def test_the_record_issued_last_counts_in_any_order_of_arrival() -> None:
    records, old, new = RecordBook(RUN), record([WHERE], NOW), record([], NOW + 1)
    for sealed, expected in ((old, old), (new, new), (old, new), (record([], NOW + 1, signer=2), None), (new, new)):
        assert expected is None or records.take(sealed, NOW + 1).sealed == expected
    same_time = record([f"/ip4/8.8.8.8/tcp/4310/p2p/{ALICE}"], NOW + 1)
    assert records.take(same_time, NOW + 1).sealed == new, "of two of one time the first"


def test_a_record_is_renewed_when_addresses_change_or_it_ages_and_issue_times_ascend() -> None:
    own = RecordIssuer(key(1), RUN)
    first = own.issue([WHERE], NOW)
    assert own.issue([WHERE], NOW + RECORD_RENEWAL_MS - 1) == first
    assert not own.due(NOW + RECORD_RENEWAL_MS - 1)
    assert own.due(NOW + RECORD_RENEWAL_MS)
    issued = [verify(own.issue(where, NOW), RUN, NOW).issued for where in ([], [WHERE], [])]
    assert issued == [NOW + 1, NOW + 2, NOW + 3], "also within a millisecond"
    assert (
        verify(own.issue([], NOW + RECORD_RENEWAL_MS + 3), RUN, NOW + RECORD_RENEWAL_MS + 3).issued
        == NOW + RECORD_RENEWAL_MS + 3
    )


def test_a_peer_that_learns_that_its_clock_was_days_ahead_starts_from_the_true_time() -> None:
    own = RecordIssuer(key(1), RUN)
    own.issue([WHERE], NOW + RECORD_LIFE_MS)
    assert own.due(NOW)
    assert verify(own.issue([WHERE], NOW), RUN, NOW).issued == NOW
    own.issue([], NOW + RECORD_SKEW_MS)
    assert not own.due(NOW + RECORD_SKEW_MS)
    assert verify(own.issue([WHERE], NOW + 1), RUN, NOW + 1).issued == NOW + RECORD_SKEW_MS + 1, (
        "this one others may have taken"
    )


def test_a_full_record_book_drops_the_record_received_longest_ago() -> None:
    records, known = RecordBook(RUN), verify(record([WHERE]), RUN, NOW)
    for number in range(MOST_RECORDS):
        records.hold(known._replace(peer=f"peer {number}"))
    records.hold(known._replace(peer="peer 0"))
    records.hold(known)
    assert records.of("peer 1") is None
    assert [one.peer for one in records.newest(2)] == [ALICE, "peer 0"]
