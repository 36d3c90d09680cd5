"""`echo2-coord task measure`: the policy of a real model, against the same forward pass in this process."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.runtime.exit_codes import Exit
from echo2.tasks.poker.model_policy import measure, questions
from tests.support import tiny_model
from tests.support.tiny_model import TEXT


@pytest.fixture(autouse=True)
def _extra() -> None:
    for library in ("pokerkit", "pyspiel"):
        pytest.importorskip(library, reason="needs the extra poker")


def test_the_measure_is_that_of_a_forward_pass(tmp_path: Path) -> None:
    tiny = tiny_model.make(tmp_path / "model")
    words = ["task", "measure", "poker:kuhn", str(tiny.folder), "--weights", str(tiny.snapshot), "--hands", "1"]
    told = CliRunner().invoke(cli.app, words)
    assert told.exit_code == Exit.OK, told.output
    figures = [float(figure) for figure in re.findall(r"\d\.\d+", told.stdout)]

    asked = questions("kuhn", TEXT, hands=1)
    answers = []
    for one in asked:
        values = []
        for move in one.moves:
            with torch.no_grad():
                logits = tiny.model(torch.tensor([[*one.before, *move]])).logits[0].float().log_softmax(-1)
            values.append(sum(float(logits[len(one.before) - 1 + place, token]) for place, token in enumerate(move)))
        answers.append(values)
    assert figures == pytest.approx(list(measure("kuhn", asked, answers)), abs=0.02)


def test_in_holdem_hands_are_played_and_the_chips_have_an_interval(tmp_path: Path) -> None:
    tiny = tiny_model.make(tmp_path / "model")
    words = ["task", "measure", "poker:holdem", str(tiny.folder), "--weights", str(tiny.snapshot), "--play", "6"]
    told = CliRunner().invoke(cli.app, [*words, "--limit", "6"])
    assert told.exit_code == Exit.OK, told.output
    mean, low, high = map(float, re.findall(r"[+-]\d+\.\d+", told.stdout))
    assert -200 <= mean <= 200
    assert low <= mean <= high
    assert "from tight in 6 hands" in told.stdout
    again = CliRunner().invoke(cli.app, [*words, "--limit", "6"])
    assert again.stdout == told.stdout


def test_a_task_that_is_no_game_is_a_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["task", "measure", "add", str(tmp_path)])
    assert result.exit_code == Exit.CONFIG
    assert "add is no game: poker:kuhn, poker:leduc and poker:holdem are measured" in result.stderr
