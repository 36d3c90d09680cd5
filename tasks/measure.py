"""The measure by which a task's policy is told better or worse: the share of held-out answers with `Score.success`.

A task may state it by an attribute `measure`; a task without one has the default: more is better, and a policy that
knows nothing solves nothing. The floor matters where it solves some: of four choices it is 0.25.
"""

import math
from typing import Any, Literal, NamedTuple

Direction = Literal["up", "down"]


class Measure(NamedTuple):
    """`direction`: up, a higher share is better; down, a lower one (success then marks what the policy should not do).
    `floor`: the share of a policy that has learned nothing, or has lost all: the worst that counts, 0 to 1."""

    direction: Direction = "up"
    floor: float = 0.0


def measure_of(task: Any) -> Measure:
    """Return the measure that a task states, else the default. Raises `ValueError` for one that is none."""
    stated = getattr(task, "measure", None)
    if stated is None:
        return Measure()
    direction, floor = stated
    if direction not in ("up", "down") or not (math.isfinite(floor) and 0 <= floor <= 1):
        raise ValueError(f"the task's measure is {stated!r:.80}: state a direction, up or down, and a floor, 0 to 1")
    return Measure(direction, float(floor))
