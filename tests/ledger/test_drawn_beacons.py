"""Beacons of lotteries: each is that of the head over all entries before it, and another one is named by its entry."""

import hashlib

import msgspec
import pytest

from echo2.coordinator.market.entries import EpochDrawn
from echo2.ledger.drawn_beacons import DrawnBeacons
from echo2.ledger.ledger_entries import Entry, Tampered
from echo2.protocol.ledger_heads import LedgerHead

RUN = bytes(range(32))


def head(size: int) -> tuple[LedgerHead, bytes]:
    one = LedgerHead(log=RUN, number=size, size=size, root=bytes(32), tip=bytes(32), issued=size)
    return one, b"sealed %d" % size


def entry(seq: int, beacon: bytes | None) -> Entry:
    facts = b"" if beacon is None else msgspec.msgpack.encode(EpochDrawn(epoch=1, beacon=beacon))
    kind = "ask.sealed" if beacon is None else "epoch.drawn"
    return Entry(seq, 1, kind, str(seq), (), facts, b"hash %d" % seq)


def taken(beacon: bytes, heads: list[tuple[LedgerHead, bytes]]) -> int:
    """Check a draw behind two entries; return the number of entries taken."""
    check = DrawnBeacons(RUN, heads)
    entries = (entry(1, None), entry(2, None), entry(3, beacon))
    for one in entries:
        check.take(one)
    return len(entries)


def test_the_beacon_is_the_hash_of_the_head_over_all_entries_before_it() -> None:
    assert taken(hashlib.sha256(b"sealed 2").digest(), [head(1), head(2)]) == 3


@pytest.mark.parametrize("beacon", [bytes(32), hashlib.sha256(b"sealed 1").digest(), b""])
def test_another_beacon_is_named_by_its_entry(beacon: bytes) -> None:
    with pytest.raises(Tampered, match="LedgerHead up to the entry before") as caught:
        taken(beacon, [head(1), head(2)])
    assert caught.value.seq == 3


def test_without_a_head_it_is_that_of_the_run_and_the_entry_before() -> None:
    follows = hashlib.sha256(RUN + b"hash 2").digest()
    assert taken(follows, [head(1)]) == 3
    with pytest.raises(Tampered, match="the log's id and the hash"):
        taken(hashlib.sha256(b"sealed 1").digest(), [head(1)])
    with pytest.raises(Tampered):
        taken(follows, [head(1), head(2)])


def test_facts_that_do_not_decode_are_named() -> None:
    broken = entry(1, bytes(32))._replace(facts=b"\xc1")
    with pytest.raises(Tampered, match="do not decode"):
        DrawnBeacons(RUN, []).take(broken)
