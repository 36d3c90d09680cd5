"""Shares of calm on a machine whose other work changes: of two tries of a flood the worse one counts."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.attacks.attack import AttackFinding
from benchmarks.attacks.attack_worker import AttackTried, Try
from benchmarks.attacks.campaign import CALM, QUICK_AFTER, Campaign
from benchmarks.attacks.catalogue import HOARD

SECONDS = 5.0
KEY = b"n" * 32


class Ground:
    """A run whose honest nodes have so many accepted groups per second. `calm`, `floods`: in each measurement and in
    each try; the last of each holds on. `refused_in`: the try in which an honest group is refused. `tried`: what the
    attack says that it tried."""

    def __init__(self, calm: Sequence[float], floods: Sequence[float], refused_in: int = -1, tried: int = 1) -> None:
        self._calm, self._floods, self._refused_in = list(calm), list(floods), refused_in
        self._tried = tried
        self.now, self._done, self._tries, self._measured = 0.0, 10.0, 0, 0
        self.honest = SimpleNamespace(figures=lambda: SimpleNamespace(keys=[KEY]))
        self.attackers = self.flooders = SimpleNamespace(attack=self._attack)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        rate = self._calm[min(self._measured, len(self._calm) - 1)]
        self._measured += seconds in (CALM, QUICK_AFTER)
        self._pass(seconds, rate)

    def ready(self) -> None:
        return

    def accepted(self) -> dict[bytes, int]:
        return {KEY: round(self._done)}

    def refused(self) -> dict[bytes, int]:
        return {KEY: int(0 <= self._refused_in < self._tries)}

    def cpu(self) -> float:
        return self.now / 2

    def _attack(self, command: Try) -> AttackTried:
        self._pass(SECONDS, self._floods[min(self._tries, len(self._floods) - 1)])
        self._tries += 1
        return AttackTried(finding=AttackFinding(tried=self._tried), cpu=0.0, sent=0, received=0, seconds=SECONDS)

    def _pass(self, seconds: float, rate: float) -> None:
        self.now += seconds
        self._done += seconds * rate


CASES: dict[str, tuple[Ground, dict[str, Any]]] = {
    "no harm": (Ground([4.0], [4.0]), {"outcome": "held", "share": 1.0, "after": 1.0, "note": ""}),
    "other work began and goes on": (
        Ground([4.0, 4.0, 3.2], [2.6, 3.2]),
        {"outcome": "held", "share": 0.8125, "note": "two tries: 0.81 and 1.00 of 3.20 groups per second"},
    ),
    "a flood that slows the run in one of two tries": (
        Ground([4.0], [2.0, 4.0]),
        {"outcome": "degraded", "share": 0.5, "note": "two tries: 0.50 and 1.00 of 4.00 groups per second"},
    ),
    "a flood that breaks the run in one of two tries": (Ground([4.0], [1.2, 4.0]), {"outcome": "broken", "share": 0.3}),
    "a flood that slows the run each time": (Ground([4.0], [2.8, 2.0]), {"outcome": "degraded", "share": 0.5}),
    "a flood that leaves a slow run behind": (
        Ground([4.0, 1.2], [4.0, 4.0]),
        {"outcome": "broken", "share": 1.25, "after": 0.3125},
    ),
    "an attack that tried nothing": (Ground([4.0], [4.0], tried=0), {"outcome": "broken", "prevented": False}),
    "an honest group refused in the first try": (
        Ground([4.0], [2.0, 4.0], refused_in=0),
        {"outcome": "broken", "harmed": 1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_flood_below_its_bar_is_tried_once_more_and_the_worse_try_counts(case: str) -> None:
    ground, wanted = CASES[case]
    campaign = Campaign(ground, quick=True, clock=ground.clock, sleep=ground.sleep)  # type: ignore[arg-type]
    campaign.begin()
    assert campaign.calm == 4.0
    (row,) = campaign.rows([HOARD])
    assert {name: getattr(row, name) for name in wanted} == {
        name: pytest.approx(value) if isinstance(value, float) else value for name, value in wanted.items()
    }
