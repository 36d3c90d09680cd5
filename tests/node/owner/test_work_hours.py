"""The hours of a node, as owners write them."""

from datetime import datetime

import pytest

from echo2.node.owner.work_hours import BadHours, WorkHours, parse_hours


def at(day: str, time: str) -> datetime:
    """Return a time of the week of Monday, 2 March 2026."""
    number = ("mon", "tue", "wed", "thu", "fri", "sat", "sun").index(day) + 2
    return datetime.fromisoformat(f"2026-03-{number:02} {time}")


@pytest.mark.parametrize(
    ("hours", "day", "time", "is_open"),
    [
        ("", "wed", "12:00", True),
        ("mon-fri 20:00-07:00, sat-sun", "fri", "19:59", False),
        ("mon-fri 20:00-07:00, sat-sun", "fri", "20:00", True),
        ("mon-fri 20:00-07:00, sat-sun", "tue", "06:59", True),
        ("mon-fri 20:00-07:00, sat-sun", "tue", "07:00", False),
        ("mon-fri 20:00-07:00, sat-sun", "sun", "23:59", True),
        ("mon-fri 20:00-07:00, sat-sun", "mon", "00:00", False),
        ("sun 22:00-06:00", "mon", "05:59", True),
        ("sun 22:00-06:00", "tue", "05:59", False),
        ("22:00-06:00", "thu", "03:00", True),
        ("fri-mon 12:00-24:00", "sun", "23:59", True),
        ("fri-mon 12:00-24:00", "thu", "13:00", False),
        ("00:00-24:00", "thu", "13:00", True),
        ("Wednesday 9:00-17:00", "wed", "16:59", True),
        ("tues", "tue", "00:00", True),
        ("mon 08:00-12:00, mon 10:00-14:00", "mon", "13:00", True),
    ],
)
def test_a_node_works_within_its_hours(hours: str, day: str, time: str, is_open: bool) -> None:
    assert parse_hours(hours).are_open(at(day, time)) is is_open


def test_the_next_opening_is_told_over_the_end_of_the_week() -> None:
    hours = parse_hours("tue 20:00-07:00")
    assert hours.opening(at("wed", "07:00")) == datetime(2026, 3, 10, 20)
    assert hours.opening(at("tue", "19:59:30")) == at("tue", "20:00")
    assert hours.opening(at("wed", "06:59:30")) == at("wed", "06:59:30")
    assert WorkHours().opening(at("wed", "07:00")) == at("wed", "07:00")


@pytest.mark.parametrize(
    ("hours", "sentence"),
    [
        ("20:00-20:00", "20:00-20:00 never comes, as it ends when it begins"),
        ("fri 24:00-00:00", "never comes"),
        ("mon-fri 20:00-07:00, 08:00-8:00", "never comes"),
        ("0", "'0' is neither days nor times: write them as in mon-fri 20:00-07:00, sat-sun"),
        ("-1", "'-1' is neither days nor times"),
        ("always", "unknown day always"),
        ("mondy 20:00-21:00", "unknown day mondy; did you mean monday?"),
        ("fru", "unknown day fru; did you mean fri?"),
        ("mo", "unknown day mo"),
        ("mon 25:00-26:00", "25:00 is no time of day"),
        ("mon 24:01-07:00", "24:01 is no time of day"),
        ("mon 10:60-11:00", "10:60 is no time of day"),
        ("mon 8-9", "8 is no time of day: write it as in 07:30"),
        ("mon -08:00-09:00", "neither days nor times"),
        ("20:00", "neither days nor times"),
        ("mon,", "'' is neither days nor times"),
        (",", "neither days nor times"),
        ("mon tue", "neither days nor times"),
        ("mon 8:00-9:00 pm", "neither days nor times"),
        ("mon 8:00-9:00; tue", "neither days nor times"),
    ],
)
def test_hours_that_cannot_be_read_or_never_come_are_refused_in_one_sentence(hours: str, sentence: str) -> None:
    with pytest.raises(BadHours) as refused:
        parse_hours(hours)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
