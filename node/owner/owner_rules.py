"""Whether the owner wants this machine for something else: the one rule that blocks work now. Pure.

Rules
1. A node rests outside its hours (work_hours.py), and while a probe (owner_probes.py) sees one of the owner's
   occasions. Of several that block, the first in the order of `ORDER` is named.
2. After an occasion has ended the node rests until none was seen for `quiet` seconds. Hours begin at once.
3. `echo2-node resume` overrides all that block then, each until it has been false once. A pause by hand is above all of
   this (node/run_state.py).
"""

import math
from datetime import datetime
from typing import Final, Literal, NamedTuple

from echo2.node.owner.work_hours import WorkHours
from echo2.runtime.figures import figure

Occasion = Literal["gpu", "fullscreen", "keyboard", "battery", "metered"]
OwnerRule = Literal["hours", "program", "gpu", "fullscreen", "keyboard", "battery", "metered"]
ORDER: Final[tuple[OwnerRule, ...]] = ("hours", "program", "gpu", "fullscreen", "keyboard", "battery", "metered")
BY_HAND: Final = "or at `echo2-node resume`"


class Block(NamedTuple):
    """The rule that blocks. `why`: one sentence. `seconds`: seconds at least until work may go on."""

    rule: OwnerRule
    why: str
    seconds: float


class OwnerRules:
    """The state of the owner as it was last seen. `now`: a clock that never goes back, seconds."""

    def __init__(self, hours: WorkHours, quiet: float) -> None:
        """`quiet`: see rule 2."""
        self.hours, self._quiet = hours, quiet
        self._seen: dict[OwnerRule, str] = {}
        """By rule that holds now: what was seen, a sentence."""
        self._ended: tuple[float, OwnerRule, str] | None = None
        """When an occasion was last seen, and which: it has ended since."""
        self._overridden: set[OwnerRule] = set()

    def note(self, rule: OwnerRule, seen: str, now: float) -> None:
        """Note what a probe saw: a sentence, empty where the occasion is not there."""
        if seen:
            self._seen[rule] = seen
        elif (before := self._seen.pop(rule, None)) is not None:
            if rule not in self._overridden:
                self._ended = now, rule, before
            self._overridden.discard(rule)

    def block(self, now: float, local: datetime) -> Block | None:
        """Return the rule that blocks now; None: the node works. `local`: local time of this machine."""
        if self.hours.are_open(local):
            self._overridden.discard("hours")
        elif "hours" not in self._overridden:
            opening = self.hours.opening(local)
            why = f"it is outside the hours of this node (setting hours); work begins {opening:%a %H:%M}, {BY_HAND}"
            return Block("hours", why, max(0.0, opening.timestamp() - local.timestamp()))
        for rule in ORDER:
            if self.blocks(rule):
                why = f"{self._seen[rule]}; work goes on {figure(self._quiet)} s after that ends, {BY_HAND}"
                return Block(rule, why, self._quiet)
        if self._ended is None or (left := self._ended[0] + self._quiet - now) <= 0.0:
            return None
        _, rule, seen = self._ended
        why = f"the node waits {math.ceil(left)} s more, {BY_HAND}, since this ended: {seen}"
        return Block(rule, why, left)

    def blocks(self, rule: OwnerRule) -> bool:
        """Tell whether an occasion is there, and not overridden."""
        return rule in self._seen and rule not in self._overridden

    def override(self, local: datetime) -> None:
        """Override all that block now (rule 3)."""
        self._overridden |= self._seen.keys()
        self._ended = None
        if not self.hours.are_open(local):
            self._overridden.add("hours")
