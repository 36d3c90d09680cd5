"""The outcome of an attack: for itself, for honest nodes, and for the operator. Pure.

1. Broken: the attack got what it wants, or tried nothing; an honest node had a group refused; or the accepted groups of
   honest nodes fell below `FLOOR` of calm, during the attack or after it.
2. Degraded: they fell below the attack's bar, and not below `FLOOR`.
3. Held: anything else. Where the attack lasts long enough, the shares of calm during it and after it stand beside the
   word.
"""

from typing import Final, Literal

import msgspec

from benchmarks.attacks.attack import Attack

FLOOR: Final = 0.4
"""Least share of the calm run's accepted groups of honest nodes, for any attack."""
Word = Literal["held", "degraded", "broken"]


class AttackRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table. `prevented`: whether the attack was kept from its end. `share`: accepted groups of honest
    nodes per second, by calm; None: too short to tell. `after`: the same once the flood has ended. `named`: groups
    until the key was refused. `harmed`: honest nodes with a refused group. `attacker_cpu`, `operator_cpu`: seconds, the
    operator's beyond a calm run of the same time. `sent`, `received`: the attacker's bytes. `seconds`: by the
    clock."""

    attack: str
    family: str
    tried: int
    outcome: Word
    prevented: bool
    share: float | None
    after: float | None
    named: int | None
    harmed: int
    attacker_cpu: float
    operator_cpu: float
    sent: int
    received: int
    seconds: float
    note: str

    @property
    def text(self) -> str:
        """The outcome for people."""
        if self.share is None:
            return self.outcome
        after = "" if self.after is None else f", after {self.after:.2f}"
        if self.outcome == "degraded":
            return f"degraded to {self.share:.2f} of calm{after}"
        return f"{self.outcome} ({self.share:.2f}{after})"


def outcome_of(attack: Attack, prevented: bool, share: float | None, after: float | None, harmed: int) -> Word:
    """Return the outcome by rules 1 to 3."""
    shares = [one for one in (share, after) if one is not None]
    if not prevented or harmed or min(shares, default=1.0) < FLOOR:
        return "broken"
    if share is not None and attack.bar is not None and share < attack.bar:
        return "degraded"
    return "held"
