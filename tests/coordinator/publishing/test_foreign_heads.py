"""Heads that nodes hold and the ledger lacks: claims are asked for, a signature alone is evidence, and none is signed
meanwhile."""

import asyncio
import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest

from echo2.coordinator.accounts.fork_evidence import evidence
from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.nodes.trusted_parties import works
from echo2.coordinator.publishing import foreign_heads
from echo2.coordinator.publishing.foreign_heads import (
    ASK_EVERY,
    MOST_WAITING_CLAIMS,
    RESTORED_FACT,
    RESTORED_QUIET_MS,
    START_SETTLE_MS,
    ForeignHeads,
)
from echo2.coordinator.run.sealing import Sealer
from echo2.coordinator.run.setup import Run
from echo2.ledger.ledger_entries import ESCROW, FUND, transfer
from echo2.ledger.ledger_facts import KeyAccount
from echo2.p2p.envelope import decode_unverified, join, seal
from echo2.p2p.errors import BadSignature, Unreachable
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import encode
from echo2.protocol.ledger_heads import GrownHead, HeadReference, LedgerHead, LedgerResponse
from echo2.protocol.methods import LEDGER
from tests.support.clock import run_fake
from tests.support.run_folders import NOW, make_run, write_model

STRANGERS = [peer_id(number.to_bytes(32)) for number in range(10, 2 * MOST_WAITING_CLAIMS + 9)]
WORKER = peer_id(bytes([254]) * 32)
PARTY = "192.0.2.0/24"


class Fact(msgspec.Struct, frozen=True):
    number: int


class Place:
    """A coordinator's ledger with one head, and nodes that show what `shown` has. `asked`: the nodes asked."""

    def __init__(self, folder: Path, *, published: bool = True, heads: int = 1) -> None:
        self.run: Run = make_run(folder / "run", write_model(folder / "model"))
        if published:
            self.run.folder.head.touch()
        self.database = Database.open(self.run.folder.database)
        self.ledger, sealer = Ledger(self.database), Sealer(self.run)
        self.heads = LedgerHeads(self.database, self.ledger, self.run.id, sealer, sealer.note, every=1)
        self.sealer = sealer
        for _ in range(heads):
            self.grow()
            self.heads.sign(NOW)
        self.now, self.paused = NOW, list[str]()
        self.shown, self.asked = dict[str, bytes](), list[str]()
        self.foreign = self.start_time_of()

    def start_time_of(self) -> ForeignHeads:
        """Begin as after a start, now."""
        new = ForeignHeads(
            self.run, self.database, self, self.paused.append, lambda: self.now,
            works=lambda origin: works(self.database, origin, ()),
        )  # fmt: skip
        self.heads.holds = new.holds
        return new

    def grow(self) -> None:
        number = self.ledger.tip().entries
        self.ledger.append(NOW, "work", f"work:{number}", Fact(number), transfer(FUND, ESCROW, 1))

    def later(self, number: int = 9) -> bytes:
        """Return a head that the ledger's key signed, and that is not in the file."""
        head = LedgerHead(log=self.run.id, number=number, size=99, root=bytes(32), tip=bytes(32), issued=NOW)
        return self.sealer("ledgerhead", encode(head))

    async def request(self, peer: str, method: str, payload: bytes, *, timeout: float) -> bytes:
        self.asked.append(peer)
        if peer not in self.shown:
            raise Unreachable(peer)
        return LEDGER.answer.encode(LedgerResponse(heads=[GrownHead(sealed=self.shown[peer])]))

    async def ask(self, seconds: float) -> None:
        """Let the claims be looked at for so long."""
        task = asyncio.create_task(self.foreign.run())
        await anyio.sleep(seconds)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    new_place = Place(tmp_path)
    yield new_place
    new_place.database.close()


def reference(sealed: bytes, number: int = 9) -> HeadReference:
    return HeadReference(number, hashlib.sha256(sealed).digest())


def test_a_head_of_this_ledger_is_no_news(place: Place) -> None:
    newest = place.heads.newest()
    place.foreign.on_claim(Origin(STRANGERS[0], PARTY), reference(newest.sealed, 1))
    run_fake(lambda: place.ask(60))
    assert place.asked == []


def test_a_claim_without_a_signature_is_asked_for_once_and_is_no_evidence(place: Place) -> None:
    forged = seal("ledgerhead", place.run.id, b"\x80", generate_key())
    place.shown = {STRANGERS[0]: forged, STRANGERS[1]: b"no envelope"}
    for stranger in STRANGERS[:3]:
        place.foreign.on_claim(Origin(stranger, PARTY), reference(forged))
    run_fake(lambda: place.ask(60))
    assert place.asked == STRANGERS[:3]
    assert (evidence(place.database), place.paused) == ("", [])
    place.now += START_SETTLE_MS
    place.grow()
    assert place.heads.sign(place.now) is not None


def test_a_later_signed_head_pauses_the_run_and_none_is_signed_also_after_a_restart(place: Place) -> None:
    place.shown = {WORKER: place.later()}
    place.foreign.on_claim(Origin(WORKER, PARTY), reference(place.later()))
    run_fake(lambda: place.ask(1))
    assert place.paused == [evidence(place.database)]
    assert "run.sqlite ends with head 1: it is an older copy" in place.paused[0]
    place.grow()
    place.foreign = place.start_time_of()
    place.now += RESTORED_QUIET_MS
    assert place.heads.sign(place.now) is None


def test_another_head_of_a_number_that_was_signed_is_said_and_pauses_nothing(place: Place) -> None:
    place.shown = {WORKER: place.later(1)}
    place.foreign.on_claim(Origin(WORKER, PARTY), reference(place.later(1), 1))
    run_fake(lambda: place.ask(1))
    assert "two histories are signed" in evidence(place.database)
    assert place.paused == []


def test_evidence_that_is_shown_unasked_counts_by_its_signature_alone_and_is_kept_once(place: Place) -> None:
    newest = place.heads.newest()
    forged = seal("ledgerhead", place.run.id, encode(newest.head), generate_key())
    place.foreign.on_evidence(STRANGERS[0], [forged, b"no envelope"])
    place.foreign.on_evidence(STRANGERS[0], [newest.sealed, newest.sealed])
    assert evidence(place.database) == ""
    place.foreign.on_evidence(STRANGERS[1], [newest.sealed, place.later(1)])
    told = evidence(place.database)
    assert "two histories are signed" in told
    assert place.paused == []
    place.foreign.on_evidence(STRANGERS[2], [place.later(7), place.later(8)])
    assert evidence(place.database) == told
    assert place.asked == []


def test_a_copy_of_a_head_with_another_signature_is_no_evidence_and_counts_as_the_head(place: Place) -> None:
    newest = place.heads.newest()
    thief, payload = generate_key(), encode(newest.head)
    own = decode_unverified(newest.sealed).signatures[0].key
    other = seal("ledgerhead", place.run.id, payload, thief)
    copied = join([other, newest.sealed], [own, public_bytes(thief)])
    assert copied != newest.sealed
    place.shown = {WORKER: copied}
    place.foreign.on_claim(Origin(WORKER, PARTY), reference(copied, 1))
    assert place.foreign.witnesses.newest == 0
    run_fake(lambda: place.ask(1))
    assert place.asked == [WORKER]
    assert (evidence(place.database), place.paused) == ("", [])
    assert place.foreign.witnesses.newest == 1


def test_claims_of_strangers_are_bounded_and_do_not_crowd_out_a_worker(place: Place) -> None:
    Accounts(place.database, place.ledger)._put(WORKER, KeyAccount(accepted=1))
    place.shown = {WORKER: place.later()}
    for stranger in STRANGERS:
        place.foreign.on_claim(Origin(stranger, PARTY), reference(bytes(9)))
    place.foreign.on_claim(Origin(WORKER, PARTY), reference(place.later()))
    run_fake(lambda: place.ask(1))
    assert place.asked == [WORKER]
    run_fake(lambda: place.ask(3 * MOST_WAITING_CLAIMS * ASK_EVERY))
    assert place.asked == [WORKER, *STRANGERS[:MOST_WAITING_CLAIMS]]


def test_no_head_is_signed_for_a_while_after_a_start_also_where_run_sqlite_was_lost(tmp_path: Path) -> None:
    place = Place(tmp_path, heads=0)
    place.grow()
    assert place.heads.tick(place.now + START_SETTLE_MS - 1) is None
    assert place.heads.tick(place.now + START_SETTLE_MS) is not None
    place.database.close()


def test_a_new_run_signs_its_first_head_at_once(tmp_path: Path) -> None:
    place = Place(tmp_path, heads=0, published=False)
    place.grow()
    assert place.heads.tick(place.now) is not None
    place.database.close()


def test_after_a_restore_it_takes_longer_and_a_clock_set_back_begins_it_anew(place: Place) -> None:
    place.database.set_fact(RESTORED_FACT, 1)
    place.foreign = place.start_time_of()
    place.grow()
    assert place.heads.sign(place.now + RESTORED_QUIET_MS - 1) is None
    assert place.heads.sign(place.now - RESTORED_QUIET_MS) is None
    assert place.heads.sign(place.now - 1) is None
    assert place.heads.sign(place.now) is not None
    assert place.database.fact(RESTORED_FACT) is None


def test_evidence_whose_signature_no_longer_counts_is_dropped(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.shown = {WORKER: place.later()}
    place.foreign.on_claim(Origin(WORKER, PARTY), reference(place.later()))
    run_fake(lambda: place.ask(1))
    assert evidence(place.database)

    def revoked(*args: object) -> bytes:
        raise BadSignature("revoked")

    monkeypatch.setattr(foreign_heads, "open_kept", revoked)
    place.foreign = place.start_time_of()
    place.grow()
    assert place.heads.sign(place.now + START_SETTLE_MS) is not None
    assert evidence(place.database) == ""
