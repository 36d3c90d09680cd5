"""An attack on one limit of docs/reference/limits.md, and what it has to leave to others."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from echo2.p2p.limits.least_rate import RATE_SECONDS

SLACK: Final = 0.5
"""Seconds that a sweep or the last message may take beyond those of an attack."""


class Taken(NamedTuple):
    """The outcome of an attack. `before`, `during`, `after`: what the attackers occupy of the limit before they begin,
    when they have stopped, and `Attack.seconds` later. `refused`: what a party with accepted work asked for meanwhile
    and did not get, a sentence each.

    Of a rate they are the seconds that the attackers have to wait. Of a store: its bound, what they put into it, and
    what it keeps."""

    before: float
    during: float
    after: float
    refused: list[str]


class Attack(NamedTuple):
    """An attack, by attackers that stop halfway where there is a half. `run`: attacks with an empty folder and the
    clock put forward by that many seconds at the end. `seconds`: seconds within which all has to be back. `why`: the
    reason where these are more than `RATE_SECONDS`."""

    run: Callable[[Path, float], Taken]
    seconds: float = RATE_SECONDS
    why: str = ""


def check(attack: Attack, folder: Path) -> None:
    """Run an attack. Raises `AssertionError` unless it takes something, nothing that a party with accepted work needs,
    and gives all of it back."""
    taken = attack.run(folder, attack.seconds)
    assert taken.during > taken.before, f"the attack takes nothing: {taken}"
    assert not taken.refused, f"refused to a party with accepted work: {', '.join(taken.refused)}"
    assert taken.after <= taken.before, f"not back after {attack.seconds:g} s: {taken}"


def lacking(served: bool, need: str) -> list[str]:
    """Return `need` as the one thing that was refused, unless it was served."""
    return [] if served else [need]
