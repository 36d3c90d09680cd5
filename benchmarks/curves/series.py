"""The figures of one run of a curve: a file per curve and seed."""

from pathlib import Path

import msgspec


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A version, evaluated or measured. `sampled`, `greedy`: shares of held-out prompts that were solved.
    `exploitability`, `legal`: see tasks.poker.model_policy.MeasuredPolicy. None: not known."""

    version: int
    sampled: float | None = None
    greedy: float | None = None
    exploitability: float | None = None
    legal: float | None = None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `accepted`, `refused`: groups. `rewards`: mean per step. `idle`: the learner's share."""

    curve: str
    seed: int
    commit: str
    seconds: float
    accepted: int
    refused: int
    idle: float | None
    points: list[Point]
    rewards: list[float]


def write(path: Path, one: Series) -> None:
    """Write a series as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(one), indent=1) + b"\n")


def read_all(folder: Path) -> list[Series]:
    """Return the series of a folder, by curve and seed."""
    found = (msgspec.json.decode(path.read_bytes(), type=Series) for path in folder.glob("*-seed*.json"))
    return sorted(found, key=lambda one: (one.curve, one.seed))
