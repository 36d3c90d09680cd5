"""The outbox: states of a submission, false answers, damage."""

from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.node.errors import BadConfig
from echo2.node.rollouts.outbox import ASKED_DAYS, Outbox
from echo2.node.trust.trusted_set import Mismatch
from echo2.p2p.envelope import document_hash, seal, verify_envelope
from echo2.p2p.errors import BadSignature
from echo2.p2p.identity import generate_key, public_bytes
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Receipt, Received
from echo2.protocol.requests import Refusal
from echo2.runtime.units import DAY

RUN, LEASE, BODY, NODE = b"r" * 32, b"l" * 16, b"a submission", b"n" * 32


def opener(ledger: Ed25519PrivateKey):  # type: ignore[no-untyped-def]
    return lambda sealed, kind: verify_envelope(sealed, kind, RUN, {public_bytes(ledger)})


def receipt(key: Ed25519PrivateKey, **changes: object) -> bytes:
    fields: dict[str, object] = {
        "run": RUN, "node": NODE, "lease": LEASE, "era": 1, "version": 1, "submission_hash": document_hash(BODY),
        "verdict": "accepted", "code": "ok", "reason": "", "trainable": True, "weight": 1, "entry": 0,
        "entry_hash": bytes(32), "at": 5,
    }  # fmt: skip
    return seal("receipt", RUN, encode(Receipt(**{**fields, **changes})), key)  # type: ignore[arg-type]


def received(key: Ed25519PrivateKey, **changes: object) -> bytes:
    fields: dict[str, object] = {"lease": LEASE, "submission_hash": document_hash(BODY), "at": 5}
    return seal("received", RUN, encode(Received(**{**fields, **changes})), key)  # type: ignore[arg-type]


def test_a_lease_is_known_over_a_restart_until_it_is_submitted_or_given_back(tmp_path: Path) -> None:
    path, other = tmp_path / "outbox.sqlite", b"o" * 16
    with closing(Outbox(path, node=NODE, limit=2)) as outbox:
        outbox.open_lease(LEASE)
        outbox.open_lease(other)
    with closing(Outbox(path, node=NODE, limit=2)) as outbox:
        assert set(outbox.open_leases()) == {LEASE, other}
        outbox.put(LEASE, BODY, 1)
        assert outbox.open_leases() == [other]
        outbox.close_leases([other])
    with closing(Outbox(path, node=NODE, limit=2)) as outbox:
        assert outbox.open_leases() == []


def test_a_submission_lives_from_queued_to_confirmed_over_every_restart(tmp_path: Path) -> None:
    ledger, path = generate_key(), tmp_path / "outbox.sqlite"

    def opened() -> Outbox:
        return Outbox(path, node=NODE, limit=2)

    with closing(opened()) as outbox:
        outbox.put(LEASE, BODY, 1)
        outbox.put(LEASE, b"other bytes", 2)
    with closing(opened()) as outbox:
        assert outbox.next_queued() == (LEASE, BODY)
        outbox.take_received(LEASE, received(ledger), opener(ledger))
    with closing(opened()) as outbox:
        assert (outbox.next_queued(), outbox.list_undecided(9), outbox.waiting()) == (None, [LEASE], 1)
        outbox.requeue([LEASE])
        assert outbox.next_queued() == (LEASE, BODY)
        outbox.take_received(LEASE, received(ledger), opener(ledger))
        outbox.take_receipt(LEASE, receipt(ledger), opener(ledger), 9)
    with closing(opened()) as outbox:
        assert (outbox.waiting(), outbox.unconfirmed_leases(9), outbox.counts()) == (0, [LEASE], {"accepted": 1})
        outbox.mark_confirmed([LEASE])
        outbox.put(LEASE, BODY, 10)
    with closing(opened()) as outbox:
        assert (outbox.next_queued(), outbox.unconfirmed_leases(9)) == (None, [])
        (row,) = outbox.rows()
        assert (row.state, row.decided, row.receipt) == ("accepted", 9, receipt(ledger))


LEDGER = generate_key()


FALSE_RECEIPTS = {
    "signed by a stranger": (lambda: receipt(generate_key()), BadSignature),
    "for another node": (lambda: receipt(LEDGER, node=b"x" * 32), Mismatch),
    "for another lease": (lambda: receipt(LEDGER, lease=b"x" * 16), Mismatch),
    "for other bytes": (lambda: receipt(LEDGER, submission_hash=b"x" * 32), Mismatch),
    "a Received in its place": (lambda: received(LEDGER), BadSignature),
}


@pytest.mark.parametrize("lie", FALSE_RECEIPTS)
def test_a_false_receipt_changes_nothing(tmp_path: Path, lie: str) -> None:
    make, error = FALSE_RECEIPTS[lie]
    with closing(Outbox(tmp_path / "outbox.sqlite", node=NODE, limit=2)) as outbox:
        outbox.put(LEASE, BODY, 1)
        with pytest.raises(error):
            outbox.take_receipt(LEASE, make(), opener(LEDGER), 2)
        assert (outbox.next_queued(), outbox.counts()) == ((LEASE, BODY), {"queued": 1})


def test_an_acknowledgement_of_other_bytes_changes_nothing(tmp_path: Path) -> None:
    with closing(Outbox(tmp_path / "outbox.sqlite", node=NODE, limit=2)) as outbox:
        outbox.put(LEASE, BODY, 1)
        with pytest.raises(Mismatch):
            outbox.take_received(LEASE, received(LEDGER, submission_hash=b"x" * 32), opener(LEDGER))
        assert outbox.next_queued() == (LEASE, BODY)


def test_a_final_refusal_is_final_and_keeps_its_reason(tmp_path: Path) -> None:
    with closing(Outbox(tmp_path / "outbox.sqlite", node=NODE, limit=1)) as outbox:
        outbox.put(LEASE, BODY, 1)
        assert outbox.full
        outbox.take_refusal(LEASE, Refusal(code="unknown-lease", sentence="There is no such lease."), 2)
        assert not outbox.full
        (row,) = outbox.rows()
        assert (row.state, row.code, row.reason) == ("refused", "unknown-lease", "There is no such lease.")


def test_a_damaged_outbox_is_one_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "outbox.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(BadConfig, match="move it away"):
        Outbox(tmp_path / "outbox.sqlite", node=NODE, limit=1)


def test_the_end_of_a_quarantine_is_asked_for_from_the_next_day_on_until_it_is_known(tmp_path: Path) -> None:
    ledger, lease = generate_key(), bytes(16)
    with closing(Outbox(tmp_path / "outbox.sqlite", node=NODE, limit=9)) as outbox:
        outbox.put(lease, BODY, 5)
        kept = receipt(ledger, lease=lease, code="quarantine", weight=10, at=5)
        outbox.take_receipt(lease, kept, opener(ledger), 5)
        assert outbox.quarantine_ended(DAY - 1, 9) == []
        assert outbox.quarantine_ended(DAY, 9) == [lease]
        assert outbox.quarantine_ended((ASKED_DAYS + 1) * DAY, 9) == []
        ended = receipt(ledger, lease=lease, code="quarantine-paid", reason="paid", weight=10, at=DAY)
        outbox.take_receipt(lease, ended, opener(ledger), DAY)
        assert outbox.quarantine_ended(DAY, 9) == []
        (row,) = outbox.rows()
        assert (row.state, row.code, row.reason, row.decided) == ("accepted", "quarantine-paid", "paid", 5)
        assert outbox.quarantine_by_day(5) == {}


def test_groups_in_quarantine_are_listed_until_their_day_has_ended(tmp_path: Path) -> None:
    ledger = generate_key()
    with closing(Outbox(tmp_path / "outbox.sqlite", node=NODE, limit=9)) as outbox:
        for number, at in enumerate((DAY - 5, DAY + 5, DAY + 6, DAY + 7)):
            lease, code = bytes([number]) * 16, "quarantine" if number < 3 else "ok"
            outbox.put(lease, BODY, at)
            outbox.take_receipt(lease, receipt(ledger, lease=lease, code=code, weight=10, at=at), opener(ledger), at)
        assert outbox.quarantine_by_day(DAY - 1) == {DAY: (1, 10), 2 * DAY: (2, 20)}
        assert outbox.quarantine_by_day(DAY) == {2 * DAY: (2, 20)}
        assert outbox.quarantine_by_day(2 * DAY) == {}
