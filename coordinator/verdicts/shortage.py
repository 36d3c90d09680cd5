"""The shortage of groups for the learner's next batch; coordinator/training/wait_reason.py puts it into words."""

from collections.abc import Mapping
from typing import NamedTuple


class Shortage(NamedTuple):
    """The groups that a batch needs, and those that are on their way to it.

    `batch`: groups of a batch. `ready`: groups that may be drawn. `undecided`: groups that wait for a verdict.
    `running`: open leases. `flat`: groups left out because all their rewards are equal. `asked`: number of answers to
    lease requests since the last draw, by refusal code; "": a lease was given. `decided`: number of groups decided
    last. `refused`: the refused ones among them, by code."""

    batch: int
    ready: int
    undecided: int
    running: int
    flat: int = 0
    asked: Mapping[str, int] = {}
    decided: int = 0
    refused: Mapping[str, int] = {}
