"""`echo2-coord simulate`: a fleet with and without single rules of echo2, its figures and its picture."""

import re
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree

import msgspec
import pytest
from typer.testing import CliRunner

from benchmarks.plays.comparison import ALL, Compared, FleetTerms, NodeClass, VersionTerms, compared, copies_sent
from benchmarks.plays.run_scene import RunScene, fleet
from benchmarks.plays.simulated_run import SimulatedRun
from echo2.coordinator import cli
from echo2.coordinator.training.run_plan import NodeTerms, RunTerms
from echo2.runtime.exit_codes import Exit

PAID = FleetTerms(nodes=60, supply=2.0, batch=24, price=0.1, learner_price=2.0, star=600.0)
SECONDS = 2400.0


@pytest.fixture(scope="module")
def rows() -> dict[str, Compared]:
    return {row.name: row for row in compared(PAID, SECONDS, 2, ablate=True)}


@pytest.mark.slow
def test_the_cheapest_nodes_cost_less_than_any_and_far_less_than_everybody(rows: dict[str, Compared]) -> None:
    assert list(rows) == [ALL, "without window", "by signal", "any nodes", "everybody", "star"]
    assert rows[ALL].mean.cost < 0.9 * rows["any nodes"].mean.cost < rows["everybody"].mean.cost
    assert rows[ALL].mean.active < 0.7 * rows["everybody"].mean.active


@pytest.mark.slow
def test_without_peers_the_coordinator_sends_each_copy_and_late_versions_cost_groups(rows: dict[str, Compared]) -> None:
    assert rows[ALL].mean.copies == 1.0
    assert rows["star"].mean.copies > 5
    assert rows["star"].mean.lost > 2 * rows[ALL].mean.lost


def test_prompts_of_several_lengths_go_to_quick_and_slow_nodes_alike() -> None:
    scene = RunScene(fleet(True, 20, 1.5, 16, 1, 0), batch=16, length_spread=1.0)
    run = SimulatedRun(scene, windowed=False, seed=1)
    run.run(steps=30.0)
    nodes = sorted((node for node in run.nodes if node.record().turnarounds), key=lambda node: node.turnaround)
    factors = [fmean(node.record().turnarounds) / 1000 / node.turnaround for node in nodes]
    quick, slow = fmean(factors[: len(nodes) // 2]), fmean(factors[len(nodes) // 2 :])
    assert quick == pytest.approx(slow, rel=0.3)


@pytest.mark.slow
def test_the_cost_of_a_step_is_that_of_the_learner_and_of_the_nodes_hours() -> None:
    free = FleetTerms(nodes=20, batch=12, learner_price=3.0)
    (row,) = compared(free, SECONDS, 1, ablate=False)
    assert row.mean.cost == pytest.approx(3.0 * SECONDS / 3600 / row.mean.steps)


def test_nodes_are_paid_for_the_time_in_which_they_are_active() -> None:
    run = SimulatedRun(RunScene(fleet(False, 10, 1.5, 8, 1, 0), batch=8, asks=(3_600,) * 10), windowed=True, seed=1)
    result = run.run(seconds=600.0)
    assert result.paid * run.step == pytest.approx(10 * 600)


def test_the_command_prints_a_row_per_rule_left_out_and_draws_them(tmp_path: Path) -> None:
    words = ["simulate", "--nodes", "20", "--batch", "8", "--minutes", "15", "--svg", str(tmp_path / "runs.svg")]
    result = CliRunner().invoke(cli.app, [*words, "--ablate"])
    assert result.exit_code == Exit.OK, result.output
    named = [text_row[:14].strip() for text_row in result.stdout.splitlines()[1:4]]
    assert named == [ALL, "without window", "by signal"]
    drawn = ElementTree.fromstring((tmp_path / "runs.svg").read_text())
    assert len(drawn.findall(".//{*}polyline")) == 3 * 3


def test_a_picture_that_cannot_be_written_is_refused_before_the_simulation(tmp_path: Path) -> None:
    words = ["simulate", "--nodes", "20", "--batch", "8", "--minutes", "15", "--svg"]
    result = CliRunner().invoke(cli.app, [*words, str(tmp_path / "no" / "runs.svg")])
    assert (result.exit_code, result.stdout) == (Exit.CONFIG, "")
    assert "there is no folder" in result.stderr
    result = CliRunner().invoke(cli.app, [*words, str(tmp_path)])
    assert result.exit_code == Exit.CONFIG
    assert "Is a directory; name another file" in result.stderr


CLASSES = ["--class", "8:1:0.5", "--class", "8:0.5:0.1"]


@pytest.mark.slow
def test_classes_of_nodes_have_the_speeds_and_the_asks_that_are_stated() -> None:
    classes = (NodeClass(8, 1.0, 0.5), NodeClass(8, 0.5, 0.1))
    version = VersionTerms(1e9, 1e8, 1e7, 1e8, price=2e-9)
    terms = FleetTerms(supply=2.0, batch=24, classes=classes, version=version, learner_price=3.0)
    by_name = {row.name: row.mean for row in compared(terms, SECONDS, 1, ablate=True)}
    assert list(by_name) == [ALL, "without window", "by signal", "any nodes", "everybody", "star"]
    dear = 8 * 0.5 / 3600 * SECONDS + 8 * 0.1 / 3600 * SECONDS
    assert by_name["everybody"].of_nodes == pytest.approx(dear / by_name["everybody"].steps, rel=0.01)
    full = by_name[ALL]
    assert full.of_nodes < 0.9 * by_name["any nodes"].of_nodes
    assert full.of_uplink == pytest.approx(2.0 * full.copies)
    assert full.cost == pytest.approx(full.of_nodes + full.of_uplink + 3.0 * SECONDS / 3600 / full.steps)
    star = by_name["star"]
    assert full.copies < star.copies <= 6 / (1 - star.idle) + 0.1  # a copy takes 10 s, a step 60


def test_the_command_takes_classes_and_lines_and_prints_the_error_over_the_seeds() -> None:
    words = ["simulate", *CLASSES, "--batch", "8", "--minutes", "15", "--seeds", "2", "--version-mb", "100"]
    result = CliRunner().invoke(cli.app, [*words, "--uplink-price", "0.05", "--learner-price", "2"])
    assert result.exit_code == Exit.OK, result.output
    (row,) = (text_row for text_row in result.stdout.splitlines() if text_row.startswith(ALL))
    assert re.fullmatch(r".* \d+\.\d{4} ± \d+\.\d{4}", row)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--supply", "0.01", "--minutes", "5"], "the learner has not made a step in 5 minutes: raise --minutes"),
        (["--publish-every", "6"], "publish-every is 6, and S = 4 allows at most 5"),
        (["--class", "8:1"], "'8:1' is no class of nodes: write COUNT:SPEED:ASK, as 6:1.5:0.70"),
        (["--class", "0:1:1"], "'0:1:1' is no class of nodes"),
        (["--class", "8:nan:1"], "'8:nan:1' is no class of nodes"),
        (["--class", "8:1:-1"], "'8:1:-1' is no class of nodes"),
        (["--uplink-price", "1"], "--uplink-price needs --version-mb too: how large a version is"),
    ],
)
def test_a_fleet_that_cannot_be_simulated_is_refused(words: list[str], told: str) -> None:
    result = CliRunner().invoke(cli.app, ["simulate", "--nodes", "8", "--batch", "8", *words])
    assert result.exit_code == Exit.CONFIG
    assert told in result.stderr


RUN = RunTerms(step_seconds=60.0, rollouts=512, group_size=8, tokens=1000.0, payload=60e6, uplink=12.5e6, staleness=4)
NODE = NodeTerms(tokens_per_second=800.0, uplink=2.5e6, downlink=12.5e6)


def test_the_coordinator_sends_a_version_once_where_nodes_pass_it_on_and_to_each_where_they_cannot() -> None:
    assert copies_sent(RUN, msgspec.structs.replace(NODE, uplink=1e9), 10) == 1.0
    assert copies_sent(RUN, msgspec.structs.replace(NODE, uplink=0.0), 10) == 10.0
    slow = msgspec.structs.replace(NODE, uplink=2.5e5)  # T* = 10 W / (U + 10 u), and U T* / W copies are sent in it
    assert copies_sent(RUN, slow, 10) == pytest.approx(10 * 12.5 / (12.5 + 2.5))
    assert copies_sent(msgspec.structs.replace(RUN, payload=0.0), NODE, 10) == 1.0
