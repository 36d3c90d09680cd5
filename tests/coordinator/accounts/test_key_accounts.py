"""The standing of keys: each rule, and the table against the ledger."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.strikes import HOUR, STRIKE_MEMORY_MS, suspended_until
from echo2.coordinator.database.database import Database
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.ledger import standing as rules
from echo2.ledger.audited_work import ONE, decay_count
from echo2.ledger.ledger_facts import KeyAccount, LeaseCounts, LeasesEnded
from echo2.ledger.standing import FOREVER_MS, NEW_KEY, Standing, describe, standing
from echo2.p2p.identity import peer_id
from tests.support.group_world import ALICE, BOB
from tests.support.sqlite_cost import instructions

NOW = 1_000_000


class Register:
    """A ledger about keys, its table of accounts, and the plain list of the events of one key."""

    def __init__(self, path: Path) -> None:
        self.database = Database.open(path)
        self.database.do("PRAGMA synchronous = OFF")
        self.ledger = Ledger(self.database)
        self.accounts = Accounts(self.database, self.ledger)
        self.now = NOW
        self.groups: dict[bytes, list[str]] = {ALICE: [], BOB: []}
        """Codes of decided groups, oldest first."""

    def end(self, node: bytes, code: str, rules: int = 1, audited: str = "") -> None:
        lease = self.ledger.tip().entries.to_bytes(16, "big")
        end = LeaseOutcome(
            node=peer_id(node), lease=lease, era=1, version=0, sent=0, expires=0, received=None, code=code, rollouts=0,
            tokens_in=0, tokens_out=0, weight=0, trainable=False, submission_hash=None,
            rules=rules, audited=audited,
        )  # fmt: skip
        kind = "accepted" if code in ("ok", "task-score") else "expired" if code == "expired" else "refused"
        with self.database.transaction():
            self.accounts.take(self.ledger.append(self.now, f"lease.{kind}", f"lease:{lease.hex()}", end))
        if kind != "expired":
            self.groups[node].append(code)

    def ended(self, node: bytes, refused: int, wrong: int) -> None:
        count = LeaseCounts(node=peer_id(node), without_group=2, refused=refused, wrong=wrong)
        facts = LeasesEnded(ends=refused + 2, root=bytes(32), counts=[count])
        with self.database.transaction():
            self.accounts.take(self.ledger.append(self.now, "leases.ended", f"ends:{self.ledger.tip().entries}", facts))
        self.groups[node] += ["tokens"] * (refused - wrong) + ["seeded-choice"] * wrong


@pytest.fixture
def register(tmp_path: Path) -> Register:
    return Register(tmp_path / "run.sqlite")


def expected_rank(codes: list[str], vouched: bool) -> str:
    """Return the rank by rule 1, computed from the whole list."""
    accepted = sum(code in ("ok", "task-score") for code in codes)
    if accepted >= 30 and not {"seeded-choice", "drift", "not-generated"} & set(codes[-300:]):
        return "proven"
    return "known" if accepted >= 3 or vouched else "new"


def test_a_key_is_new_then_known_then_proven(register: Register) -> None:
    ranks = []
    for _ in range(31):
        ranks.append(register.accounts.of(ALICE, NOW).rank)
        register.end(ALICE, "ok")
    assert ranks == ["new"] * 3 + ["known"] * 27 + ["proven"]
    assert register.accounts.of(BOB, NOW) == NEW_KEY


def test_a_wrong_token_costs_the_rank_for_300_groups(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "CLEAN_GROUPS", 40)
    for _ in range(40):
        register.end(ALICE, "ok")
    register.end(ALICE, "drift")
    ranks = []
    for _ in range(41):
        ranks.append(register.accounts.of(ALICE, NOW).rank)
        register.end(ALICE, "ok")
    assert ranks == ["known"] * 40 + ["proven"]


def test_expiries_and_late_groups_change_no_rank(register: Register) -> None:
    for code in ("ok", "expired", "tokens", "ok", "expired", "ok"):
        register.end(ALICE, code)
    assert register.accounts.account(ALICE) == KeyAccount(accepted=3, groups=4, audited=3 * ONE)


def test_a_key_that_the_operator_vouches_for_is_known(register: Register) -> None:
    register.accounts.remark(ALICE, "node.vouched", "my own machine", NOW)
    register.accounts.remark(BOB, "node.noted", "asked for help in the forum", NOW)
    assert (register.accounts.of(ALICE, NOW).rank, register.accounts.of(BOB, NOW).rank) == ("known", "new")


def test_a_suspension_ends_by_itself_and_a_ban_does_not(register: Register) -> None:
    accounts = register.accounts
    accounts.suspend(ALICE, "not-generated", b"h" * 32, NOW, NOW + 10)
    assert accounts.of(ALICE, NOW + 9) == Standing("new", NOW + 10, "not-generated")
    assert accounts.of(ALICE, NOW + 10) == NEW_KEY
    accounts.remark(ALICE, "node.banned", "spam", NOW + 20)
    assert accounts.of(ALICE, FOREVER_MS - 1) == Standing("new", FOREVER_MS, "banned", "spam")
    accounts.remark(ALICE, "node.unbanned", "", NOW + 30)
    assert accounts.of(ALICE, NOW + 30) == NEW_KEY
    accounts.suspend(BOB, "drift", b"h" * 32, NOW, NOW + 10)
    accounts.remark(BOB, "node.unbanned", "its memory was changed", NOW + 5)
    assert accounts.of(BOB, NOW + 5) == NEW_KEY
    assert [entry.kind for entry in accounts.entries(ALICE)] == ["node.suspended", "node.banned", "node.unbanned"]
    assert (
        describe(Standing("known", 1_700_003_600_000, "drift")) == "known, suspended until 2023-11-14 23:13 UTC (drift)"
    )
    assert describe(Standing("new", FOREVER_MS, "banned", "spam")) == "new, banned: spam"


HAPPENINGS = st.one_of(
    st.tuples(st.just("end"), st.sampled_from(["ok", "ok", "ok", "task-score", "expired", "tokens", "drift"])),
    st.tuples(st.just("many"), st.integers(1, 330)),
    st.tuples(st.just("ended"), st.tuples(st.integers(0, 5), st.integers(0, 5))),
    st.tuples(st.sampled_from(["node.vouched", "node.banned", "node.unbanned", "node.noted"]), st.just("words")),
    st.tuples(st.just("suspend"), st.integers(1, 50)),
    st.tuples(st.just("time"), st.integers(1, 50)),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=st.lists(st.tuples(st.sampled_from([ALICE, BOB]), HAPPENINGS), max_size=25))
@pytest.mark.slow
def test_the_table_agrees_with_the_entries(
    story: list[tuple[bytes, tuple[str, object]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    register = Register(tmp_path_factory.mktemp("standing") / "run.sqlite")
    suspended, banned, vouched = dict[bytes, int](), set[bytes](), set[bytes]()
    for node, (what, given_) in story:
        match what, given_:
            case "end", str(code):
                register.end(node, code)
            case "many", int(many):
                for _ in range(many):
                    register.end(node, "ok")
            case "ended", (int(refused), int(wrong)):
                register.ended(node, max(refused, wrong), wrong)
            case "suspend", int(term):
                register.accounts.suspend(node, "not-generated", bytes(32), register.now, register.now + term)
                suspended[node] = register.now + term
            case "time", int(passed):
                register.now += passed
            case "node.vouched", _:
                register.accounts.remark(node, "node.vouched", "words", register.now)
                vouched.add(node)
            case "node.banned", _:
                register.accounts.remark(node, "node.banned", "words", register.now)
                banned.add(node)
            case "node.unbanned", _:
                register.accounts.remark(node, "node.unbanned", "words", register.now)
                banned.discard(node)
                suspended.pop(node, None)
            case "node.noted", _:
                register.accounts.remark(node, "node.noted", "words", register.now)
    entries = list(register.ledger.entries())
    for now in (register.now, register.now + 49):
        told = standing(entries, now)
        for node in (ALICE, BOB):
            account = register.accounts.of(node, now)
            assert account == told.get(peer_id(node), NEW_KEY)
            assert account.rank == expected_rank(register.groups[node], node in vouched)
            until = FOREVER_MS if node in banned else suspended.get(node, 0)
            assert account.suspended_until == (until if until > now else None)
    register.database.close()


def test_the_cost_of_a_standing_does_not_grow_with_the_ledger(register: Register) -> None:
    def steps() -> int:
        return instructions(register.database, lambda: register.accounts.of(ALICE, NOW), every=1)

    register.end(ALICE, "ok")
    few = steps()
    for number in range(2_000):
        register.end((ALICE, BOB)[number % 2], "ok")
    assert steps() == few < 50


def test_soft_findings_suspend_for_an_hour_then_six_then_a_day_and_a_proof_for_good() -> None:
    account, terms, now = KeyAccount(), [], NOW
    for _ in range(5):
        until = suspended_until(account, now)
        terms.append((until - now) // HOUR)
        account, now = account._replace(since=now, until=until), until + 1
    assert terms == [1, 6, 24, 24, 24]
    assert suspended_until(account, account.until + STRIKE_MEMORY_MS) == account.until + STRIKE_MEMORY_MS + HOUR
    assert suspended_until(account, now, "not-generated") == FOREVER_MS
    assert describe(Standing("new", FOREVER_MS, "not-generated")).startswith("new, suspended until an appeal")


def test_audited_work_alone_makes_a_key_known_and_proven(register: Register) -> None:
    for _ in range(100):
        register.end(ALICE, "ok", rules=3)
    assert register.accounts.of(ALICE, NOW).rank == "new"
    ranks = []
    for how in ("exact", "evidence", "canary") * 11:
        register.end(ALICE, "ok", 3, how)
        ranks.append(register.accounts.of(ALICE, NOW).rank)
    assert ranks == ["new"] * 2 + ["known"] * 27 + ["proven"] * 4


def test_entries_of_earlier_rules_are_never_judged_anew(register: Register) -> None:
    for _ in range(30):
        register.end(ALICE, "ok")
    register.now += 365 * 24 * HOUR
    assert register.accounts.of(ALICE, register.now).rank == "proven"
    register.end(ALICE, "ok", 3, "exact")  # starts the clock
    assert register.accounts.account(ALICE).audited == 31 << 32


def ranks_after(register: Register, *days: float) -> list[str]:
    """Return the rank of a key, so many days from now each."""
    return [register.accounts.of(ALICE, register.now + int(24 * HOUR * one)).rank for one in days]


def test_audited_work_halves_in_a_week_and_is_gone_after_a_month_without_a_group(register: Register) -> None:
    for _ in range(70):
        register.end(ALICE, "ok", 3, "exact")
    assert ranks_after(register, 0, 7, 10, 29.9, 30, 365) == ["proven", "proven", "known", "known", "new", "new"]
    told = standing(register.ledger.entries(), register.now + 30 * 24 * HOUR)
    assert told[peer_id(ALICE)].rank == "new"
    register.now += 7 * 24 * HOUR
    register.end(ALICE, "ok", 3, "exact")
    assert register.accounts.account(ALICE).audited == 36 << 32
    register.now -= 7 * 24 * HOUR  # a clock that was set back takes nothing
    register.end(ALICE, "ok", 3, "exact")
    assert register.accounts.account(ALICE).audited == 37 << 32
    register.now += 365 * 24 * HOUR
    register.end(ALICE, "ok", 3, "exact")
    assert register.accounts.account(ALICE).audited == 1 << 32
    assert ranks_after(register, 0) == ["new"]


def test_an_unplugged_week_leaves_a_key_known_and_one_group_ends_the_count_of_days(register: Register) -> None:
    for _ in range(3):
        register.end(ALICE, "ok", 3, "exact")
    for _ in range(10):
        register.now += 29 * 24 * HOUR
        assert ranks_after(register, -22, 0) == ["known", "known"]
        register.end(ALICE, "ok", 3, "")  # also one that is no audited work
    assert register.accounts.account(ALICE).audited == 3 << 32


def test_a_refused_group_is_no_work_that_keeps_standing(register: Register) -> None:
    for _ in range(3):
        register.end(ALICE, "ok", 3, "exact")
    register.now += 29 * 24 * HOUR
    register.end(ALICE, "tokens", 3)
    assert ranks_after(register, 0, 1) == ["known", "new"]


def test_the_word_of_the_operator_needs_no_work(register: Register) -> None:
    register.accounts.remark(ALICE, "node.vouched", "a friend's", register.now)
    assert ranks_after(register, 0, 365) == ["known", "known"]


def test_an_honest_node_with_twenty_groups_a_day_is_proven_in_three_days_and_stays_so(register: Register) -> None:
    ranks = []
    for _ in range(20 * 60):
        register.end(ALICE, "ok", 3, "exact")
        register.now += 24 * HOUR // 20
        ranks.append(register.accounts.of(ALICE, register.now).rank)
    assert ranks.index("known") == 2
    assert ranks.index("proven") < 20 * 3
    assert set(ranks[20 * 3 :]) == {"proven"}


def test_the_decay_is_that_of_exact_powers() -> None:
    for hours in range(0, 500):
        count, aged = decay_count(1000 * ONE, 5, 5 + hours * HOUR + 1)
        assert aged == 5 + hours * HOUR
        assert count / ONE == pytest.approx(1000 * 0.5 ** (hours / 168), abs=1e-5)
    assert decay_count(2 * ONE, 0, 10**15) == (2 * ONE, 10**15), "it never decayed, and begins to"
    assert decay_count(2 * ONE, 5, 5 + 719 * HOUR)[0] == 2 * ONE
    assert decay_count(1000 * ONE, 5, 5 + 720 * HOUR)[0] == 0
