"""The catalogue: each attack of the design is tried, or names the test that holds it, or the reason there is none."""

import re

import pytest

from benchmarks.attacks.attack import QUICK
from benchmarks.attacks.catalogue import ATTACKS, SENTENCES, TRIED
from benchmarks.attacks.command import chosen, notes_on
from benchmarks.attacks.floods import LastSecond, Turncoats
from benchmarks.attacks.forgeries import FORGERIES
from benchmarks.attacks.held_elsewhere import HELD_ELSEWHERE
from benchmarks.attacks.operator_frauds import FRAUDS
from benchmarks.attacks.pay_rows import COMPUTED
from echo2.runtime.settings import SettingsFault
from tests.support.paths import ROOT

ROWS = 44
"""Attacks of the design's catalogue."""


def test_the_whole_catalogue_of_the_design_is_covered() -> None:
    assert len({*TRIED, *HELD_ELSEWHERE}) == ROWS
    assert not TRIED.keys() & HELD_ELSEWHERE.keys()


@pytest.mark.parametrize("attack", TRIED)
def test_an_attack_that_is_tried_names_a_row(attack: str) -> None:
    assert TRIED[attack] in SENTENCES


@pytest.mark.parametrize("attack", HELD_ELSEWHERE)
def test_an_attack_that_is_not_tried_names_a_test_that_is_there_or_a_reason(attack: str) -> None:
    where = HELD_ELSEWHERE[attack]
    if where.startswith("no test: "):
        return
    path, _, name = where.partition("::")
    source = (ROOT / path).read_text()
    assert "/fuzz_" in path or re.search(rf"^(async )?def {name}\(", source, re.MULTILINE)


def test_the_documents_have_a_row_of_every_attack_and_the_count_of_those_with_a_test() -> None:
    page = (ROOT / "docs/results/redteam.md").read_text()
    tested = len(TRIED) + sum(not where.startswith("no test: ") for where in HELD_ELSEWHERE.values())
    assert f"{tested} of the {ROWS} attacks" in page
    assert [sentence for sentence in SENTENCES if sentence not in page] == []
    assert [attack for attack in HELD_ELSEWHERE if f"  {attack}: " not in page] == []


def test_every_forgery_is_an_attack_of_every_run() -> None:
    assert all(ATTACKS[sentence].quick for sentence in FORGERIES)


def test_a_flood_has_an_engine_where_its_crowd_works_honestly_for_a_while() -> None:
    crowds = {one: getattr(attack.make(), "crowd", None) for one, attack in ATTACKS.items() if attack.seconds}
    assert len(crowds) >= 12
    working = {one for one, crowd in crowds.items() if isinstance(crowd, Turncoats | LastSecond)}
    assert {one for one, attack in ATTACKS.items() if attack.generates} == working


def test_a_quick_run_is_a_part_of_the_whole_and_its_floods_are_short() -> None:
    quick = chosen([], True)
    assert set(quick) < set(chosen([], False)) == set(SENTENCES)
    assert all((ATTACKS[one].lasting(True) or 0.0) <= QUICK for one in quick if one in ATTACKS)


@pytest.mark.parametrize(
    ("name", "least"), [("forgeries", 25), ("selection", 5), ("empty maps", 1), ("best-of-N", 1), ("pay", 14)]
)
def test_an_attack_is_named_by_its_family_a_part_of_its_sentence_or_the_design(name: str, least: int) -> None:
    assert len(chosen([name], True)) >= least


@pytest.mark.parametrize("name", ["alchemy", "", " "])
def test_an_unknown_attack_is_refused_with_the_families(name: str) -> None:
    with pytest.raises(SettingsFault, match="forgeries, page, selection, floods, connections, pay"):
        chosen([name], True)


def test_pay_is_a_family_of_its_own_whose_quick_rows_take_no_time() -> None:
    asked = chosen(["pay"], True)
    assert {sentence for sentence, one in COMPUTED.items() if one.family == "pay"} < set(asked)
    assert {one for one in asked if one in ATTACKS} == {one for one, attack in ATTACKS.items() if attack.market}
    assert set(FRAUDS) < set(COMPUTED)
    assert set(FRAUDS) < set(chosen([], True)), "two tenths of a CPU second each"
    assert set(COMPUTED) - set(chosen([], True)) == {sentence for sentence, one in COMPUTED.items() if not one.quick}
    assert notes_on(["pay"]) == []
