"""`echo2-coord task ls` and `task try`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator import cli
from runtime.exit_codes import Exit
from tests.support import plugin_packages


@pytest.fixture(autouse=True)
def _toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin_packages.install(tmp_path, monkeypatch, {"faulty": "tests.support.faulty_tasks:faulty"})


def test_each_task_is_listed_with_the_package_that_brings_it() -> None:
    told = CliRunner().invoke(cli.app, ["task", "ls"]).stdout.splitlines()
    assert [text_row.split(maxsplit=1) for text_row in told if text_row.startswith(("faulty", "reverse"))] == [
        ["faulty", "toys 1.0"],
        ["reverse", "this build"],
    ]


def test_prompts_answers_and_scores_are_shown() -> None:
    words = ["task", "try", "guess", "--prompts", "1", "--answer", "45"]
    told = CliRunner().invoke(cli.app, words).stdout.splitlines()
    assert told == [
        "guess version 1: 4455 prompts in train, 495 in heldout", "", "train 0", "  | guess 38-53>",
        "  its own answer '40': reward 1, success", "  your answer '45', then 'lower>': reward 0.133333",
    ]  # fmt: skip


def test_a_task_without_demonstrations_shows_yours_alone_and_a_failing_answer_says_why() -> None:
    words = ["task", "try", "faulty:no demonstration", "--prompts", "1", "--answer", "x"]
    assert "its own answer" not in CliRunner().invoke(cli.app, words).stdout
    told = CliRunner().invoke(cli.app, ["task", "try", "faulty:raises", "--prompts", "1", "--answer", "x"]).stdout
    assert "your answer 'x' fails: score raised ValueError" in told


def test_an_unknown_task_is_one_sentence() -> None:
    result = CliRunner().invoke(cli.app, ["task", "try", "chess"])
    assert result.exit_code == Exit.CONFIG
    assert result.stderr.startswith("echo2-coord: there is no task chess; installed are ")
