"""The outcome of an attack, and its line in the table."""

import pytest

from benchmarks.attacks.attack import Attack
from benchmarks.attacks.command import table_of
from benchmarks.attacks.outcome import FLOOR, AttackRow, outcome_of
from benchmarks.attacks.page_attacks import Rebinding

FLOOD = Attack("floods", Rebinding, 5.0, 0.8)
SHORT = Attack("forgeries", Rebinding, bar=None)


@pytest.mark.parametrize(
    ("attack", "prevented", "share", "after", "harmed", "outcome"),
    [
        (FLOOD, True, 1.1, 1.0, 0, "held"),
        (FLOOD, True, 0.8, 1.0, 0, "held"),
        (FLOOD, True, 0.79, 1.0, 0, "degraded"),
        (FLOOD, True, FLOOR, 1.0, 0, "degraded"),
        (FLOOD, True, FLOOR - 0.01, 1.0, 0, "broken"),
        (FLOOD, False, 1.0, 1.0, 0, "broken"),
        (FLOOD, True, 1.0, 1.0, 1, "broken"),
        (FLOOD, True, 1.0, FLOOR - 0.01, 0, "broken"),
        (FLOOD, True, 1.0, FLOOR, 0, "held"),
        (SHORT, True, None, None, 0, "held"),
        (SHORT, False, None, None, 0, "broken"),
    ],
)
def test_the_outcome_follows_the_rules(
    attack: Attack, prevented: bool, share: float | None, after: float | None, harmed: int, outcome: str
) -> None:
    assert outcome_of(attack, prevented, share, after, harmed) == outcome


def test_the_table_has_a_line_a_row_and_says_the_share_of_calm() -> None:
    row = AttackRow(
        attack="a flood", family="floods", tried=3, outcome="degraded", prevented=True, share=0.62, after=0.98,
        named=None, harmed=0, attacker_cpu=1.0, operator_cpu=0.5, sent=2000, received=1000, seconds=5.0,
        note="3 leases",
    )  # fmt: skip
    head, line = table_of([row])
    assert head.split()[0] == "outcome"
    assert line.startswith("degraded to 0.62 of calm, after 0.98")
    assert line.endswith("a flood: 3 leases")
