"""Tests of the endurance benchmark: how its samples are judged and drawn."""

import xml.etree.ElementTree as ET

import pytest

from benchmarks.endurance import Sample, beside_connections, drawing, grown, settled, slope
from benchmarks.harness.picture import BOTTOM, HEIGHT, LEFT, RIGHT, TOP

SVG = "{http://www.w3.org/2000/svg}"
HOUR = 3600.0


def samples(per_version: int = 0, leak: float = 0.0) -> list[Sample]:
    """Return one sample every 10 s of an hour, with a version per second; `leak`: descriptors per minute."""
    return [
        Sample(at, int(at), 100_000_000 + per_version * int(at), 90 + 3 + int(leak * at / 60), 3)
        for at in map(float, range(0, int(HOUR), 10))
    ]


@pytest.mark.parametrize("per_version", [0, 2048, 18_000])
def test_the_slope_is_what_a_version_leaves_behind(per_version: int) -> None:
    assert slope(settled(samples(per_version), HOUR)) == pytest.approx(per_version, abs=1)


def test_the_first_ten_minutes_of_a_long_run_and_a_third_of_a_short_one_do_not_count() -> None:
    assert settled(samples(), HOUR)[0].at == 600
    assert settled(samples(), 300.0)[0].at == 100


def test_connections_are_no_descriptors_that_leak_and_a_leak_shows() -> None:
    assert beside_connections(samples()) == 90
    assert grown(samples(), HOUR) == 0
    assert grown(samples(leak=1.0), HOUR) == 20


def test_every_process_is_drawn_within_the_frame_and_named() -> None:
    names = ["coordinator", "coordinator learner", "node-1"]
    drawn = ET.fromstring(drawing({name: samples(2048) for name in names}, "memory", 2**20, "Memory", "a run"))
    lines = [element.attrib["points"].split() for element in drawn.iter(f"{SVG}polyline")]
    assert len(lines) == 3
    for x, y in (map(float, place.split(",")) for element in lines for place in element):
        assert LEFT <= x <= RIGHT
        assert TOP <= y <= BOTTOM
    labels = {text.text: float(text.attrib["y"]) for text in drawn.iter(f"{SVG}text")}
    assert len({labels[name] for name in names}) == 3
    assert all(labels[name] <= HEIGHT for name in names)
