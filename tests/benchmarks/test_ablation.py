"""The table and the picture of the ablation benchmark, and the command that it names."""

import shlex
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from benchmarks import ablation
from echo2.coordinator import cli
from echo2.runtime.exit_codes import Exit

SHARES = {"signal": 0.5, "useful": 2.0, "passed": 0.25, "strength": 0.9}
PART = {"steps": 30.0, "idle": 0.01, "age": 2.0, "active": 20.0, "copies": 1.0, "of_nodes": 4.0, "of_uplink": 1.0}
PART |= SHARES
FOUND = {
    scene: {
        name: {"mean": {**PART, "cost": 10.0 + place}, "error": {**PART, "cost": 0.5}, "seeds": 5}
        for place, name in enumerate(ablation.ROWS)
    }
    for scene in ablation.SCENES
}
FOUND[ablation.SELECTED] = {
    name: {"mean": {**PART, "useful": 2.0 + place}, "error": {**PART, "useful": 0.03}, "seeds": 5}
    for place, name in enumerate(ablation.SELECTION_ROWS)
}


def test_a_row_stands_beside_the_papers_share() -> None:
    rows = [row for row in ablation.markdown(FOUND).splitlines() if row.startswith("| without peers")]
    assert len(rows) == len(ablation.SCENES)
    assert rows[0].startswith("| without peers | 11.000 ± 0.500 | 1.100 | 1.041 | 1.0%")


def test_the_picture_has_a_bar_of_three_parts_per_row() -> None:
    drawn = ElementTree.fromstring(ablation.drawing(FOUND))
    assert len(drawn.findall(".//{*}rect")) == 3 * len(ablation.ROWS) * len(ablation.SCENES) + 3


def test_rules_of_selection_have_a_table_of_their_own() -> None:
    (row,) = [row for row in ablation.markdown(FOUND).splitlines() if row.startswith("| prompts by variance")]
    assert row.startswith("| prompts by variance | 50.0% ± 50.0% | 3.000 ± 0.030 | 25.0%")


@pytest.mark.slow
def test_the_command_of_the_selection_makes_its_rows() -> None:
    words = shlex.split(ablation.selection_command(1))[1:]
    words[words.index("--minutes") + 1] = "8"
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == Exit.OK, result.output
    rows = result.output.splitlines()
    assert [name for name in ablation.SELECTION_ROWS if not any(row.startswith(f"{name}  ") for row in rows)] == []


@pytest.mark.parametrize("scene", ablation.SCENES)
def test_the_command_that_the_table_names_is_one(scene: str) -> None:
    words = shlex.split(ablation.command(ablation.SCENES[scene], 1))[1:]
    words[words.index("--minutes") + 1] = "90"
    words.remove("--ablate")
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == Exit.OK, result.output
