"""The table and the picture of the learner's idle share against supply."""

from xml.etree import ElementTree

from benchmarks import bubble_curve

KNOWN = {
    f"{supply:g}, seed {seed}": {"supply": supply, "idle": max(0.0, 1 - supply) + 0.01 * seed, "busy": 0.2}
    for supply in bubble_curve.SUPPLIES
    for seed in (0, 2)
}


def test_a_row_per_supply_stands_beside_the_theory() -> None:
    rows = [row for row in bubble_curve.markdown(KNOWN).splitlines() if "±" in row]
    assert len(rows) == len(bubble_curve.SUPPLIES)
    assert rows[0] == "| 0.600 ± 0.000 | 2 | 0.410 ± 0.010 | 0.400 |"
    assert rows[-1].endswith("| 0.010 ± 0.010 | 0.000 |")


def test_the_picture_has_a_point_with_its_error_per_supply_that_was_measured() -> None:
    some = {name: one for name, one in KNOWN.items() if not name.startswith("0.9")}
    drawn = ElementTree.fromstring(bubble_curve.drawing(some))
    assert len(drawn.findall(".//{*}circle")) == len(bubble_curve.SUPPLIES) - 1
