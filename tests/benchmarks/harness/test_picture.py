"""The picture of a broadcast: positions of its parts, and the arguments of its command."""

import xml.etree.ElementTree as ET

import pytest

from benchmarks.broadcast import drawing, simulate
from benchmarks.harness.picture import BOTTOM, LEFT, RIGHT, TOP
from echo2.p2p.plan.trees import PayloadSize
from echo2.runtime.errors import LocalFault

SIMULATED = {4: 1.07, 16: 1.1, 64: 1.11}
SVG = "{http://www.w3.org/2000/svg}"


def drawn(measured: dict[int, float]) -> ET.Element:
    return ET.fromstring(drawing.draw(SIMULATED, measured, "40 MB"))


def texts(picture: ET.Element) -> dict[str, tuple[float, float]]:
    return {text.text or "": (float(text.attrib["x"]), float(text.attrib["y"])) for text in picture.iter(f"{SVG}text")}


def points(picture: ET.Element, style: str) -> list[tuple[float, float]]:
    circles = (one.attrib for one in picture.iter(f"{SVG}circle"))
    return [(float(one["cx"]), float(one["cy"])) for one in circles if one["class"] == style]


def test_ours_lies_between_the_bound_and_the_star_that_grows_with_n() -> None:
    star, bound, ours = (
        [tuple(map(float, place.split(","))) for place in element.attrib["points"].split()]
        for element in drawn({}).iter(f"{SVG}polyline")
    )
    assert len(ours) == 3
    assert bound[0][1] == bound[1][1]
    assert star[1][1] < star[0][1] < min(y for _, y in ours) <= max(y for _, y in ours) < bound[0][1]
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in (*star, *bound, *ours))


def test_a_measured_point_has_its_place_by_the_same_axes_and_says_its_value() -> None:
    picture = drawn({16: 1.5, 32: 1.1})
    (x, y), (beyond, same) = points(picture, "c5 filled")
    simulated = points(picture, "c5")
    assert x == simulated[1][0] < beyond < simulated[2][0]
    assert y < simulated[1][1] == same
    assert texts(picture)["1.50"][1] < y
    assert {"16", "32", "64", "● ours, measured"} <= texts(picture).keys()


def test_without_measured_points_it_names_none_and_says_that_ours_is_simulated() -> None:
    said = texts(drawn({})).keys()
    assert "○ ours, simulated" in said
    assert not any("measured" in text for text in said)


def test_a_picture_wants_two_numbers_of_peers() -> None:
    with pytest.raises(LocalFault, match="two numbers of peers"):
        drawing.draw({4: 1.1}, {8: 1.2}, "40 MB")


def test_the_drawn_points_were_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    picture = ET.fromstring(simulate.picture((2, 4), {}, PayloadSize(2_000_000, 1 << 15)))
    rows = [row.split("|") for row in capsys.readouterr().out.splitlines() if row.startswith("|")][2:]
    assert [row[1].strip() for row in rows] == ["2", "4"]
    assert all(float(row[5]) >= 1 for row in rows)
    assert len(points(picture, "c5")) == 2


def test_the_command_takes_points_as_benchmarks_broadcast_prints_them() -> None:
    assert simulate.point("16=1.21") == (16, 1.21)


@pytest.mark.parametrize("given", ["16", "=1.2", "16=", "a=1.2", "0=1.2", "16=-1", "16=0", "16=inf", "16=nan"])
def test_other_points_are_refused(given: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        simulate.point(given)
