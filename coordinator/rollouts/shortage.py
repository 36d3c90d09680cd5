"""What the learner's next batch lacks, as data."""

from collections.abc import Mapping
from typing import NamedTuple


class Shortage(NamedTuple):
    """Why the learner waits, counted in groups.

    `batch`: groups of a batch. `ready`: groups that may be drawn. `undecided`: groups that wait for a verdict.
    `running`: open leases. `flat`: groups left out because all their rewards are equal. `asked`: answers to lease
    requests since the last draw, by refusal code; "": a lease was given. `refused`: of the last `decided` groups, by
    code."""

    batch: int
    ready: int
    undecided: int
    running: int
    flat: int = 0
    asked: Mapping[str, int] = {}
    decided: int = 0
    refused: Mapping[str, int] = {}
