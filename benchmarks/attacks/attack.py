"""The form of an attack, and of what came of it.

1. An attack is tried against a real coordinator while honest nodes work. It ends by itself, or after its seconds.
2. Its finding says whether what it wants was kept from it. Whether honest nodes lost by it is measured from outside
   (benchmarks/attacks/outcome.py).
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from benchmarks.attacks.engine_place import EnginePlace


class AttackFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of an attack. `tried`: groups, requests or connections. `prevented`: whether it was kept from its end.
    `named`: groups that were judged until the key was refused; None: the attack hands none in. `note`: figures."""

    tried: int
    prevented: bool = True
    named: int | None = None
    note: str = ""

    @property
    def is_held(self) -> bool:
        """Tell whether the attack was kept from its end. One that tried nothing shows nothing."""
        return self.prevented and self.tried > 0


class Action(Protocol):
    """One attempt of an attack."""

    async def run(self, place: EnginePlace) -> None:
        """Attack until done or cancelled."""

    def finding(self, place: EnginePlace) -> AttackFinding:
        """Tell what came of it."""


class Attack(NamedTuple):
    """A row of the catalogue. `make`: a new attempt. `seconds`: after which it is ended; None: it ends by itself.
    `bar`: least share of the calm run's accepted groups of honest nodes for "held"; None: too short to measure.
    `quick`: part of `--quick`. `market`: it is tried against a run that pays by a market. `generates`: it is a flood
    that needs an engine."""

    family: str
    make: Callable[[], Action]
    seconds: float | None = None
    bar: float | None = 0.8
    quick: bool = True
    market: bool = False
    generates: bool = False

    def lasting(self, quick: bool) -> float | None:
        """Return the seconds after which an attempt is ended."""
        return None if self.seconds is None else self.seconds if not quick else min(self.seconds, QUICK)


QUICK = 5.0
"""Seconds of a flood with `--quick`."""
