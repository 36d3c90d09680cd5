"""Learning curves: what is read, and what is drawn from it."""

from pathlib import Path

import pytest

from benchmarks.curves import __main__ as curves
from benchmarks.curves.drawn import FIGURES, means, table
from benchmarks.curves.plans import CURVES
from benchmarks.curves.series import Point, Series, read_all, write


def series(seed: int, *points: Point) -> Series:
    return Series(
        curve="kuhn", seed=seed, commit="abc", seconds=60.0, accepted=1_200, refused=0, idle=0.1, points=list(points),
        rewards=[0.0] * 10 + [0.5] * 10,
    )  # fmt: skip


def point(version: int, sampled: float, exploitability: float | None = None) -> Point:
    return Point(version=version, sampled=sampled, greedy=0.75, exploitability=exploitability, legal=exploitability)


def test_a_series_is_read_as_it_was_written(tmp_path: Path) -> None:
    one, other = series(1, point(0, 0.1)), series(2, point(0, 0.2, 0.4))
    for some in (other, one):
        write(tmp_path / "new" / f"kuhn-seed{some.seed}.json", some)
    assert read_all(tmp_path / "new") == [one, other]


def test_means_are_over_all_seeds_as_far_as_all_go() -> None:
    one, other = series(1, point(0, 0.1, 0.5), point(10, 0.3)), series(2, point(0, 0.3, 0.4), point(20, 0.9))
    assert means([one, other], FIGURES["sampled"]) == [(0, pytest.approx(0.2)), (10, pytest.approx(0.45))]
    assert means([one], FIGURES["exploitability"]) == [(0, 0.5)]
    assert means([one, series(3)], FIGURES["sampled"]) == []


def test_a_table_has_the_first_and_the_last_version_of_each_seed() -> None:
    rows = table("kuhn", [series(3, point(0, 0.1), point(120, 0.5))], ["sampled", "exploitability"]).splitlines()
    assert rows[-1] == "| 3 | 0 to 120 | 0.100 → 0.500 | – | 0.000 → 0.500 | 1,200 | 0 |"


def test_drawing_writes_a_picture_per_curve_and_the_tables(tmp_path: Path) -> None:
    for seed in (1, 2):
        write(tmp_path / f"kuhn-seed{seed}.json", series(seed, point(0, 0.1, 0.5), point(120, 0.5, 0.25)))
    assert curves.main(["draw", "--out", str(tmp_path)]) == 0
    picture = (tmp_path / "kuhn.svg").read_text()
    assert picture.count("<polyline") == 3 * 3  # two seeds and their mean, of three figures
    assert CURVES["kuhn"].heading in picture
    assert "kuhn: `poker:kuhn,opponent=blind`" in (tmp_path / "tables.md").read_text()
