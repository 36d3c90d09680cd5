"""How many rollouts a second keep the learner busy, and what to change where that cannot be had.

T: seconds of a learner's step. B: seconds from publishing a version to the verdict on a group made under it (p90:
broadcast, load, generate, submit, wait). R: rollouts a step consumes. S: staleness limit. kappa: steps between two
published versions. mu: rollouts a second. Formulas 1-6: the design's derivation from ECHO-2 (arXiv 2602.02192).
"""

import math
from collections.abc import Sequence

GAMMA = 1.1
"""Safety factor on the need (ECHO-2)."""


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
