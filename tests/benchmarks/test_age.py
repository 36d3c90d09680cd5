"""The shapes of benchmarks.age, and what it claims of their figures."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks import age
from benchmarks.age import AGE_BARS, AgeFigures, Shape, claims

WINDOW = AgeFigures(age=2.3, floor=2, idle=0.012, leases=1.05, period=2.1, busy=0.4, part=0.95)


def test_the_batch_of_a_shape_is_what_its_nodes_make_in_a_step_by_the_supply() -> None:
    assert Shape(4, 8, 4, 1.5).batch == 14
    assert Shape(12, 1, 4, 3.0).batch < age.LEAST_BATCH


@pytest.mark.parametrize(
    ("window", "good"),
    [
        (WINDOW, [True, True, True]),
        (WINDOW._replace(age=2.7), [False, True, True]),
        (WINDOW._replace(idle=0.03), [True, False, True]),
        (WINDOW._replace(leases=1.2), [True, True, False]),
    ],
)
def test_a_shape_is_good_if_age_idle_and_leases_are(window: AgeFigures, good: list[bool]) -> None:
    room = WINDOW._replace(age=4.0, idle=0.005)
    assert [claim.ok for claim in claims(Shape(4, 8, 4, 1.5), window, room)] == good


def test_every_supply_has_its_bars() -> None:
    assert age.IDLE_BARS.keys() == AGE_BARS.keys()


def test_under_a_spread_of_speeds_the_slowest_group_takes_three_steps_and_the_quickest_a_twentieth_of_that() -> None:
    shape = Shape(4, 8, 8, 1.5, "spread")
    assert shape.times[0] == 3 * age.STEP
    assert shape.times[-1] == pytest.approx(3 * age.STEP / 20)
    assert shape.batch == pytest.approx(8 * sum(age.STEP / seconds for seconds in shape.times) / 1.5, abs=0.5)


@pytest.mark.parametrize("under", ["spread", "latency"])
def test_a_starved_node_fails_a_spread_of_speeds_and_a_long_line(under: str) -> None:
    starved = [claim.ok for claim in claims(Shape(4, 8, 8, 1.5, under), WINDOW._replace(part=0.7), WINDOW)]
    assert starved == [True, True, False]
    assert all(claim.ok for claim in claims(Shape(4, 8, 8, 1.5, "churn"), WINDOW._replace(part=0.7), WINDOW))


@pytest.mark.parametrize(("drawn", "least"), [((2, 6), 1.0), ((1, 7), 0.5), ((5, 3), 0.5), ((0, 8), 0.0)], ids=str)
def test_the_least_part_is_that_of_the_node_furthest_below_its_rates_share(
    tmp_path: Path, drawn: tuple[int, int], least: float
) -> None:
    """Two nodes, of which the second is three times as quick; one that has nothing drawn at all counts too."""
    place = tmp_path / "run.sqlite"
    with closing(sqlite3.connect(place)) as database, database:
        database.executescript(
            "CREATE TABLE nodes (key, name); CREATE TABLE leases (id, node); CREATE TABLE draws (lease)"
        )
        database.executemany("INSERT INTO nodes VALUES (?, ?)", [(1, "node-1"), (2, "node-2")])
        leases = [key for key, groups in enumerate(drawn, 1) for _ in range(groups)]
        database.executemany("INSERT INTO leases VALUES (?, ?)", enumerate(leases))
        database.executemany("INSERT INTO draws VALUES (?)", [(lease,) for lease in range(len(leases))])
    assert age._least_part(place, (3.0, 1.0)) == pytest.approx(least)


@pytest.mark.parametrize("option", ["--nodes", "--at-once", "--staleness", "--supply"])
def test_a_shape_that_has_no_bars_is_refused_before_anything_runs(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        age.main([option, "2"])
    assert f"argument {option}: invalid choice: 2" in capsys.readouterr().err
