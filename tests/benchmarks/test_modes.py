"""The figures of the modes benchmark."""

from xml.etree import ElementTree

import msgspec
import pytest

from benchmarks import modes
from benchmarks.paced.paced_run import Looked
from echo2.coordinator.demo.processes import ProcessorTimes
from echo2.coordinator.metrics.views import Evaluation, StepPoint
from tests.support import pictures

BEGAN = pictures.BUSY.now


def looked(step_seconds: float) -> Looked:
    """Return a look at a run whose accuracy is a hundredth of its version."""
    steps = [
        StepPoint(
            step=step, at=BEGAN + int(1000 * step_seconds * step), reward=0.0, success=0.0, staleness=1.0, seconds=1.0,
            metrics={},
        )
        for step in range(1, 49)
    ]  # fmt: skip
    evaluations = [
        Evaluation(version=version, at=BEGAN, prompts=512, sampled=version / 100, greedy=0.0)
        for version in range(0, 49, 4)
    ]
    state = msgspec.structs.replace(
        pictures.BUSY, steps=steps, evaluations=evaluations, staleness=[10, 30], idle=0.25, step=48
    )
    return Looked(state, ProcessorTimes(1.0, 1.0))


def test_a_slower_mode_has_fewer_versions_at_equal_time_and_as_many_at_equal_rollouts() -> None:
    quick, slow = (modes.figures(one.state, one.state) for one in (looked(1.0), looked(2.0)))
    assert (quick["versions"], slow["versions"]) == (41, 21)
    assert (quick["at equal time"], slow["at equal time"]) == pytest.approx((0.41, 0.21))
    assert quick["at equal rollouts"] == slow["at equal rollouts"] == pytest.approx(0.32)
    assert (quick["mean age"], quick["idle"]) == (0.75, 0.25)


def test_the_table_has_a_row_per_mode() -> None:
    known = {f"{mode}, seed {seed}": {"versions": 10.0 + seed} for mode in modes.MODES for seed in (0, 2)}
    rows = modes.markdown(known).splitlines()
    assert [row.split(" | ")[0] for row in rows if "±" in row] == [f"| {mode}" for mode in modes.MODES]
    assert rows[-1].endswith("| 2 | 11.000 ± 1.000 |")


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (0.1, "the window gains 0.100 ± 0.000 in accuracy: its groups are 2.0 steps younger"),
        (0.0, "gains nothing in accuracy: 0.000 ± 0.000, seed by seed. Its groups are 2.0"),
        (-0.1, "gains nothing in accuracy: -0.100 ± 0.000"),
    ],
)
def test_the_page_says_what_the_window_gains_or_why_it_gains_nothing(gain: float, said: str) -> None:
    known = {
        f"async, {mode}, seed {seed}": {"at equal time": 0.5 + seed / 10 + more, "mean age": age}
        for mode, age, more in (("window", 1.0, gain), ("room", 3.0, 0.0))
        for seed in (0, 1)
    }
    aged = {"decoupled, rate 1, S 0, seed 0": {"sampled": 0.8}, "decoupled, rate 1, S 4, seed 0": {"sampled": 0.7}}
    told = " ".join(modes.window_gain(known, aged))
    assert said in told
    assert ("from age 0 to age 4 it loses 0.100 in all" in told) == (gain <= 0)
    assert modes.window_gain({"async, window, seed 0": known["async, window, seed 0"]}, aged) == []


def test_the_picture_has_two_bars_per_mode_that_was_run() -> None:
    columns = {"at equal time": 0.5, "at equal rollouts": 0.6}
    some = list(modes.MODES)[:2]
    known = {f"{mode}, seed {seed}": columns for mode in some for seed in (0, 1)}
    rectangles = ElementTree.fromstring(modes.drawing(known)).findall(".//{*}rect")
    assert len(rectangles) == 2 * len(some) + len(some)  # bars, and the key
