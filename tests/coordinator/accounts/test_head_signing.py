"""Signed heads of the ledger: when they are made, what they prove, and that none contradicts another."""

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.accounts import head_signing
from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import ESCROW, FUND, Tampered, transfer
from echo2.p2p.envelope import seal, verify_envelope
from echo2.p2p.identity import public_bytes
from echo2.p2p.swarm import merkle
from echo2.p2p.swarm.merkle_log import verify_consistency
from echo2.p2p.wire_types import decode
from echo2.protocol.ledger_heads import LedgerHead, key_id, log_name, names, signed_note
from tests.support.sqlite_cost import statements

RUN = bytes([7]) * 32
KEY = Ed25519PrivateKey.from_private_bytes(bytes([3]) * 32)
MINUTE = 60_000


class Fact(msgspec.Struct, frozen=True):
    number: int


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "run.sqlite") as opened:
        yield opened


@pytest.fixture
def heads(database: Database) -> LedgerHeads:
    return heads_of(database)


def heads_of(database: Database) -> LedgerHeads:
    def sealed(kind: str, payload: bytes) -> bytes:
        return seal(kind, RUN, payload, KEY)

    def note(head: LedgerHead, text: str) -> str:
        return signed_note(text, log_name(head.log), public_bytes(KEY), KEY.sign)

    return LedgerHeads(database, Ledger(database), RUN, sealed, note, every=15 * MINUTE)


def grow(database: Database, first: int, count: int) -> None:
    ledger = Ledger(database)
    for number in range(first, first + count):
        ledger.append(number, "work", f"work:{number}", Fact(number), transfer(FUND, ESCROW, 1))


def opened(sealed: bytes) -> LedgerHead:
    return decode(verify_envelope(sealed, "ledgerhead", RUN, [public_bytes(KEY)]), LedgerHead)


def test_a_head_is_signed_once_the_ledger_has_grown_and_it_is_time(database: Database, heads: LedgerHeads) -> None:
    assert heads.tick(0) is None
    grow(database, 0, 3)
    first = heads.tick(1_000)
    assert (first.number, first.size, first.before) == (1, 3, None)
    grow(database, 3, 1)
    assert heads.tick(1_000 + 14 * MINUTE) is None
    second = heads.tick(1_000 + 15 * MINUTE)
    assert (second.number, second.size) == (2, 4)
    assert heads.tick(1_000 + 60 * MINUTE) is None


def test_a_head_of_a_finished_run_waits_for_nothing_but_a_new_entry(database: Database, heads: LedgerHeads) -> None:
    grow(database, 0, 3)
    heads.tick(1_000)
    assert heads.tick(2_000, at_once=True) is None
    grow(database, 3, 1)
    second = heads.tick(3_000, at_once=True)
    assert second.size == 4


def test_a_clock_that_goes_back_delays_no_head_and_issues_none_earlier(database: Database, heads: LedgerHeads) -> None:
    grow(database, 0, 1)
    heads.tick(1_000_000)
    grow(database, 1, 1)
    second = heads.tick(10)
    assert second.issued == 1_000_001


def test_each_head_names_the_one_before_and_is_proved_to_continue_it(database: Database, heads: LedgerHeads) -> None:
    for number in range(40):
        grow(database, number * 3, 3)
        heads.sign(number)
    got, after = [], 0
    while answer := heads.heads_after(after):
        got += answer
        after = opened(answer[-1].sealed).number
    assert len(got) == 40
    size, root, before = 0, sha256(b""), None
    for one in got:
        head = opened(one.sealed)
        if size == 0:
            assert one.consistency == []
        else:
            assert verify_consistency(size, root, head.size, head.root, one.consistency, sha256)
        assert names(head, before)
        size, root, before = head.size, head.root, one.sealed
    assert heads.heads_after(40) == []
    (newest,) = heads.heads_after(None)
    assert (newest.sealed, newest.consistency) == (got[-1].sealed, [])


def test_an_entry_is_proved_in_the_tree_of_a_head_and_in_the_chain(database: Database, heads: LedgerHeads) -> None:
    grow(database, 0, 21)
    head = heads.sign(0)
    assert head is not None
    grow(database, 21, 9)
    proofs = heads.proofs([1, 13, 21, 22, 0, 400], head.size)
    assert [proof.entry for proof in proofs] == [1, 13, 21]
    for proof in proofs:
        assert merkle.verify(head.root, proof.canonical, proof.entry - 1, head.size, proof.path, sha256)
        entry = Ledger(database).entry(proof.entry)
        assert sha256(proof.previous + proof.canonical) == entry.hash


def test_entries_beyond_an_answer_are_not_read(
    database: Database, heads: LedgerHeads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may ask for 32 closes of epochs, each of megabytes."""
    monkeypatch.setattr(head_signing, "MOST_BYTES", 1)
    grow(database, 0, 32)
    with statements(database) as seen:
        assert len(heads.proofs(range(1, 33), 32)) == 1
    assert sum("kind, key, postings, facts FROM entries" in one for one in seen) == 1
    assert not any("SELECT * FROM entries" in one for one in seen)


def test_no_proof_is_made_in_a_tree_that_is_not_there_yet(database: Database, heads: LedgerHeads) -> None:
    grow(database, 0, 4)
    assert heads.proofs([1], 5) == heads.proofs([1], 1 << 52) == []
    assert heads.heads_after(None) == heads.heads_after(0) == heads.heads_after(1 << 52) == []


def test_a_head_as_text_is_a_checkpoint_that_a_witness_reads(database: Database, heads: LedgerHeads) -> None:
    grow(database, 0, 2)
    heads.sign(0)
    stored = heads.newest()
    assert stored is not None
    text, _, line = database.value("SELECT note FROM ledger_heads").rpartition("\n\n")
    origin, size, root = text.split("\n")
    assert (origin, size, base64.b64decode(root)) == (log_name(RUN), "2", stored.head.root)
    dash, name, signature = line.strip().split(" ")
    raw = base64.b64decode(signature)
    assert (dash, name, raw[:4]) == ("—", origin, key_id(origin, public_bytes(KEY)))
    KEY.public_key().verify(raw[4:], f"{text}\n".encode())


REWRITTEN = {
    "an entry at the end is gone": "DELETE FROM entries WHERE seq = 5; DELETE FROM tree WHERE leaf = 4",
    "the tree is another": "UPDATE tree SET digests = zeroblob(length(digests)) WHERE leaf = 4",
}


@pytest.mark.parametrize("how", REWRITTEN)
def test_no_head_is_signed_that_contradicts_an_earlier_one(database: Database, heads: LedgerHeads, how: str) -> None:
    grow(database, 0, 5)
    heads.sign(0)
    database.connection.executescript(f"DROP TRIGGER entries_are_never_removed; {REWRITTEN[how]};")
    if "gone" not in how:
        grow(database, 5, 1)
    with pytest.raises(Tampered):
        heads.sign(1)
    assert opened(heads.heads_after(None)[0].sealed).number == 1


def test_a_changed_digest_of_the_tree_is_found(database: Database) -> None:
    grow(database, 0, 9)
    database.do("UPDATE tree SET digests = ? WHERE leaf = 3", (bytes(96),))
    with pytest.raises(Tampered) as caught:
        Ledger(database).verify()
    assert caught.value.seq == 4
