"""The rows of second passes: one per key, each verdict's product on it, and gone when they say nothing more."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2.coordinator.database.database import Database
from echo2.coordinator.verification.evidence import IDLE_DAYS
from echo2.coordinator.verification.version_pair_table import VersionPairTable
from echo2.coordinator.verification.version_pairs import FIRST_PAIR_EVIDENCE, VersionCount, is_doubted
from echo2.runtime.units import DAY
from tests.support.group_world import ALICE, BOB

STALE = VersionCount(2, 20)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[VersionPairTable]:
    with Database.open(tmp_path / "run.sqlite") as database:
        yield VersionPairTable(database)


def test_a_stale_key_is_refused_once_its_groups_suffice_and_no_other(table: VersionPairTable) -> None:
    groups = 0
    while not table.refuses(ALICE, STALE, 1):
        table.put(ALICE, STALE, 1)
        groups += 1
    assert 1 <= groups <= 4
    table.put(ALICE, STALE, 1)
    assert is_doubted(table.of(ALICE))
    assert not table.refuses(BOB, STALE, 1)


def test_asking_changes_nothing(table: VersionPairTable) -> None:
    table.refuses(ALICE, STALE, 1)
    assert table.of(ALICE) == FIRST_PAIR_EVIDENCE


def test_rows_that_lapsed_go_and_those_in_doubt_stay(table: VersionPairTable) -> None:
    for _ in range(2):
        table.put(ALICE, STALE, 1)
    table.put(BOB, VersionCount(20, 2), 1)
    assert table.forget(IDLE_DAYS * DAY - 1) == 0
    assert table.forget(IDLE_DAYS * DAY) == 1
    assert (is_doubted(table.of(ALICE)), table.of(BOB)) == (True, FIRST_PAIR_EVIDENCE)
