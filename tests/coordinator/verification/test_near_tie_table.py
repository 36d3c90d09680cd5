"""The rows of near-ties: of a key and of its party, written with the verdict, and gone when they say nothing more."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2.coordinator.database.database import Database
from echo2.coordinator.verification.evidence import IDLE_DAYS
from echo2.coordinator.verification.near_tie_table import NearTieTable
from echo2.coordinator.verification.near_ties import FIRST_TIE_EVIDENCE, Blamed, NearTieCount
from echo2.p2p.identity import peer_id
from echo2.runtime.units import DAY
from tests.support.group_world import ALICE, BOB, name


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "run.sqlite") as database:
        yield database


class Verdicts:
    """Groups of 1,024 tokens that are good in themselves, in their order."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.table = NearTieTable(database)
        self.groups = 0

    def decide(self, node: bytes, party: str, ties: int, now: int = 1, sampled: int = 1024) -> Blamed:
        self.groups += 1
        return self.table.take(node, party, NearTieCount(sampled, ties), now)


@pytest.fixture
def verdicts(database: Database) -> Verdicts:
    return Verdicts(database)


def test_a_key_that_goes_on_is_refused_until_it_hands_in_a_group_without_near_ties(verdicts: Verdicts) -> None:
    codes = [verdicts.decide(ALICE, "", 1) for _ in range(20)]
    assert codes == sorted(codes)
    assert {*codes} == {"", "near-ties"}
    assert verdicts.decide(ALICE, "", 1) == "near-ties"
    assert verdicts.decide(ALICE, "", 0) == ""
    assert verdicts.decide(BOB, "", 1) == ""


def test_many_keys_of_one_party_count_as_one(verdicts: Verdicts) -> None:
    codes = [verdicts.decide(name("key", number, 32), "198.51.100.0/24", 1) for number in range(20)]
    assert codes == sorted(codes)
    assert {*codes} == {"", "party-near-ties"}
    assert verdicts.decide(name("key", 99, 32), "198.51.100.0/24", 0) == ""
    assert verdicts.decide(name("key", 100, 32), "203.0.113.0/24", 1) == ""


def test_a_neighbour_that_spends_the_partys_near_ties_takes_none_from_a_key_with_clean_groups(
    verdicts: Verdicts,
) -> None:
    for _ in range(4):
        verdicts.decide(ALICE, "198.51.100.0/24", 0, sampled=16 * 1024)
    while not (code := verdicts.decide(BOB, "198.51.100.0/24", 1)):
        pass
    assert code == "near-ties"
    while not (code := verdicts.decide(name("key", verdicts.groups, 32), "198.51.100.0/24", 1)):
        pass
    assert code == "party-near-ties"
    before = verdicts.table.of("party:198.51.100.0/24").lifelong.groups
    assert verdicts.decide(ALICE, "198.51.100.0/24", 1) == ""
    assert verdicts.table.of("party:198.51.100.0/24").lifelong.groups == before + 1
    assert verdicts.decide(BOB, "198.51.100.0/24", 1) == "near-ties"


def test_a_key_without_clean_groups_has_no_near_ties_to_spend_beside_such_a_neighbour(verdicts: Verdicts) -> None:
    while not verdicts.decide(name("key", verdicts.groups, 32), "198.51.100.0/24", 1):
        pass
    assert verdicts.decide(ALICE, "198.51.100.0/24", 1) == "party-near-ties"
    assert verdicts.decide(ALICE, "198.51.100.0/24", 0) == ""


def test_a_refused_group_leaves_no_row(verdicts: Verdicts, database: Database) -> None:
    for number in range(200):
        verdicts.decide(name("key", number, 32), "198.51.100.0/24", 6)
    assert database.value("SELECT count(*) FROM near_ties") < 10


def test_rows_that_lapsed_go(verdicts: Verdicts, database: Database) -> None:
    verdicts.decide(ALICE, "198.51.100.0/24", 0)
    while not verdicts.decide(BOB, "", 1):
        pass
    doubted = f"key:{peer_id(BOB)}"
    assert verdicts.table.forget(IDLE_DAYS * DAY - 1) == 0
    assert verdicts.table.forget(IDLE_DAYS * DAY) == 2
    assert database.all("SELECT holder, day FROM near_ties") == [(doubted, IDLE_DAYS)]
    assert verdicts.table.of(doubted) != FIRST_TIE_EVIDENCE
