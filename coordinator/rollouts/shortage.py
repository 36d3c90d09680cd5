"""What stands between the learner and its next batch, as the books know it."""

from collections.abc import Mapping
from typing import NamedTuple


class Shortage(NamedTuple):
    """The facts of a wait, in groups. `flat`: kept out since all their rewards are equal. `asked`: answers to asks for
    leases since the last draw, by refusal code; "": a lease was given. `refused`: of the last `decided`, by code."""

    batch: int
    ready: int
    undecided: int
    running: int
    flat: int = 0
    asked: Mapping[str, int] = {}
    decided: int = 0
    refused: Mapping[str, int] = {}
