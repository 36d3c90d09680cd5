"""A key's successor: its standing, what is refused, the entry's known bytes, and the ledger against the table."""

import json
from pathlib import Path

import pytest

from echo2.coordinator.accounts import key_successor
from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.accounts.key_successor import SUCCESSION_PAUSE_MS
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.nodes.nodes_report import describe_key
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.ledger.ledger_entries import canonical, chain_hash
from echo2.ledger.ledger_facts import REPLACED_PREFIX
from echo2.ledger.standing import NEW_KEY, standing
from echo2.p2p.identity import peer_id
from echo2.protocol.succession import Succession
from tests.support.group_world import ALICE, BOB, World, group

OLD, NEW, THIRD, STRANGER = (bytes([n]) * 32 for n in (1, 2, 3, 4))
NOW = 1_800_000_000_000


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    database = Database.open(tmp_path / "run.sqlite")
    return Accounts(database, Ledger(database))


def accept(accounts: Accounts, node: bytes, groups: int) -> None:
    for _ in range(groups):
        lease = accounts._ledger.tip().entries.to_bytes(16, "big")
        end = LeaseOutcome(
            node=peer_id(node), lease=lease, era=1, version=0, sent=0, expires=0, received=None, code="ok", rollouts=0,
            tokens_in=0, tokens_out=0, weight=0, trainable=False, submission_hash=None,
        )  # fmt: skip
        with accounts.database.transaction():
            accounts.take(accounts._ledger.append(NOW, "lease.accepted", f"lease:{lease.hex()}", end))


def succeed(accounts: Accounts, statement: Succession, now: int, *, waits: bool = False) -> str:
    return key_successor.succeed(accounts, statement, now, waits=lambda node: waits and node == statement.old)


def succession(old: bytes, new: bytes) -> Succession:
    return Succession(old=old, new=new, at=NOW)


def test_the_whole_standing_passes_on_and_the_old_key_is_out_for_good(accounts: Accounts) -> None:
    accept(accounts, OLD, 31)
    before = accounts.account(OLD)
    assert succeed(accounts, succession(OLD, NEW), NOW) == "The standing of the old key has passed to this one: proven."
    assert accounts.account(NEW) == before
    assert accounts.of(OLD, NOW).why == REPLACED_PREFIX + peer_id(NEW)
    assert accounts.of(OLD, NOW).suspended_until is not None
    entries = accounts._ledger.tip().entries
    assert succeed(accounts, succession(OLD, NEW), NOW + 1) == "The standing of the old key has passed to this one."
    assert "by another one before" in succeed(accounts, succession(OLD, THIRD), NOW + 1)
    assert accounts._ledger.tip().entries == entries
    accept(accounts, NEW, 1)
    for key in (OLD, NEW):
        assert standing(accounts._ledger.entries(), NOW)[peer_id(key)] == accounts.of(key, NOW)
    assert accounts.account(NEW).accepted == 32


def test_a_ban_and_a_suspension_pass_on(accounts: Accounts) -> None:
    accept(accounts, OLD, 3)
    accounts.suspend(OLD, "drift", b"h" * 32, NOW, NOW + 1000)
    accounts.remark(OLD, "node.banned", "spam", NOW)
    succeed(accounts, succession(OLD, NEW), NOW)
    assert accounts.of(NEW, NOW).why == "spam"
    accounts.remark(NEW, "node.unbanned", "", NOW)
    assert accounts.of(NEW, NOW).suspended_until is None


REFUSED: dict[str, tuple[bytes, bytes, str]] = {
    "a key without standing": (STRANGER, NEW, "has no standing to pass on"),
    "a key with two accepted groups": (NEW, STRANGER, "fewer than 3 of its groups were accepted"),
    "a successor with groups of its own": (OLD, NEW, "keeps its own standing"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_no_entry_is_written_for(what: str, accounts: Accounts) -> None:
    old, new, sentence = REFUSED[what]
    accept(accounts, OLD, 3)
    accept(accounts, NEW, 2)
    entries = accounts._ledger.tip().entries
    assert sentence in succeed(accounts, succession(old, new), NOW)
    assert accounts._ledger.tip().entries == entries
    assert accounts.of(STRANGER, NOW) == NEW_KEY


def test_no_key_leaves_behind_what_is_not_decided_or_speaks_against_it(accounts: Accounts) -> None:
    """A proven key handed in groups that were not generated, changed keys, and stayed proven: each day anew."""
    accept(accounts, OLD, 31)
    entries = accounts._ledger.tip().entries
    assert "waits for its verdict" in succeed(accounts, succession(OLD, NEW), NOW, waits=True)
    accounts._put(peer_id(OLD), accounts.account(OLD)._replace(doubted=1))
    assert "evidence against the old key" in succeed(accounts, succession(OLD, NEW), NOW)
    assert accounts._ledger.tip().entries == entries
    accounts._put(peer_id(OLD), accounts.account(OLD)._replace(doubted=0))
    assert "has passed" in succeed(accounts, succession(OLD, NEW), NOW)


def test_a_group_waits_from_its_receipt_to_its_verdict(tmp_path: Path) -> None:
    world = World(tmp_path)
    lease, leases = world.lease(ALICE), world.group_service.leases
    assert not leases.has_undecided(ALICE)
    world.submit(group(lease), ALICE)
    assert leases.has_undecided(ALICE)
    assert not leases.has_undecided(BOB)
    world.decide_all()
    assert not leases.has_undecided(ALICE)


def test_a_standing_passes_on_once_a_day(accounts: Accounts) -> None:
    accept(accounts, OLD, 3)
    succeed(accounts, succession(OLD, NEW), NOW)
    assert "within a day" in succeed(accounts, succession(NEW, THIRD), NOW + SUCCESSION_PAUSE_MS - 1)
    assert "has passed" in succeed(accounts, succession(NEW, THIRD), NOW + SUCCESSION_PAUSE_MS)
    assert accounts.of(THIRD, NOW).rank == "known"


def test_a_key_that_the_operator_vouched_for_passes_that_on(accounts: Accounts) -> None:
    accounts.remark(OLD, "node.vouched", "mine", NOW)
    assert "has passed" in succeed(accounts, succession(OLD, NEW), NOW)
    assert accounts.of(NEW, NOW).rank == "known"


def test_the_entry_has_the_known_bytes_and_the_report_names_the_old_key(accounts: Accounts, repository: Path) -> None:
    accounts.remark(OLD, "node.vouched", "mine", NOW)
    succeed(accounts, succession(OLD, NEW), NOW)
    entry = accounts.entries(NEW)[-1]
    known = json.loads((repository / "tests/vectors/key_rotated.json").read_text())
    assert (entry.kind, canonical(*entry[:6]).hex(), entry.hash.hex()) == (
        known["kind"], known["canonical"], known["hash"]
    )  # fmt: skip
    assert chain_hash(bytes.fromhex(known["before"]), canonical(*entry[:6])) == entry.hash
    report = describe_key(accounts.database.path, peer_id(NEW), NOW)
    assert any(f"took the standing of {peer_id(OLD)}" in one for one in report.entries)
