"""`echo2-coord task ls` and `task try`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.runtime.exit_codes import Exit
from echo2.runtime.installation import command_adding
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


def test_a_family_that_lacks_something_is_listed_with_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pokerkit" else True)
    monkeypatch.setattr("echo2.tasks.verifiers.taskset_file.usual_python", lambda: tmp_path / "python")
    told = CliRunner().invoke(cli.app, ["task", "ls"]).stdout
    assert f"poker       echo2[poker], to be installed: {command_adding('poker')}\n" in told
    assert f"verifiers   this build, to be installed: {command_adding('verifiers')}\n" in told
    assert "math        echo2[math]\n" in told


def test_prompts_answers_and_scores_are_shown() -> None:
    words = ["task", "try", "guess", "--prompts", "1", "--answer", "45"]
    told = CliRunner().invoke(cli.app, words).stdout.splitlines()
    assert told == [
        "guess version 1: 4455 prompts in train, 495 in heldout", "", "train 0", "  | guess 38-53>",
        "  its own answer '40': reward 1, success", "  your answer '45', then 'lower>': reward 0.133333",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_task_without_demonstrations_shows_yours_alone_and_a_failing_answer_says_why() -> None:
    words = ["task", "try", "faulty:no demonstration", "--prompts", "1", "--answer", "x"]
    assert "its own answer" not in CliRunner().invoke(cli.app, words).stdout
    told = CliRunner().invoke(cli.app, ["task", "try", "faulty:raises", "--prompts", "1", "--answer", "x"]).stdout
    assert "your answer 'x' fails: score raised ValueError" in told


def test_a_task_that_poses_no_prompt_ends_with_a_sentence() -> None:
    result = CliRunner().invoke(cli.app, ["task", "try", "faulty:no prompt"])
    assert result.exit_code == Exit.CONFIG
    assert "poses none of these prompts" in result.stderr


@pytest.mark.slow
def test_answers_of_which_none_has_a_score_end_with_the_reason() -> None:
    result = CliRunner().invoke(cli.app, ["task", "try", "faulty:not a number", "--answer", "x"])
    assert result.exit_code == Exit.CONFIG
    assert "gives none of these answers a score: the reward nan is no finite float32" in result.stderr
    assert CliRunner().invoke(cli.app, ["task", "try", "faulty:raises", "--answer", "x"]).exit_code == Exit.OK


def test_a_weight_is_left_out_and_several_tasks_are_refused() -> None:
    told = CliRunner().invoke(cli.app, ["task", "try", "3 guess", "--prompts", "1"]).stdout.splitlines()
    assert told[0].startswith("guess version 1: ")
    result = CliRunner().invoke(cli.app, ["task", "try", "3 guess + reverse"])
    assert result.exit_code == Exit.CONFIG
    assert "names 2 tasks, and one is tried at a time" in result.stderr


def test_an_unknown_task_is_one_sentence() -> None:
    result = CliRunner().invoke(cli.app, ["task", "try", "chess"])
    assert result.exit_code == Exit.CONFIG
    assert result.stderr.startswith("echo2-coord: there is no task chess; known are ")


@pytest.mark.parametrize(
    "words",
    [["--limit", "5"], ["--template", "chat"], ["--greedy"], ["--thinking"], ["--answers", "2"], ["--weights", "x"]],
)
def test_what_says_how_a_model_answers_is_refused_without_one(words: list[str]) -> None:
    result = CliRunner().invoke(cli.app, ["task", "try", "guess", *words])
    assert result.exit_code == Exit.CONFIG
    assert "say how a model answers: add --model" in result.stderr
