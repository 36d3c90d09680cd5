"""`echo2-coord task measure`: the policy of a real model, against the same forward pass in this process."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from coordinator import cli
from runtime.exit_codes import Exit
from tasks.poker.model_policy import measure, questions
from tests.support import tiny_model
from tests.support.tiny_model import TEXT


@pytest.fixture(autouse=True)
def _extra() -> None:
    for library in ("pokerkit", "pyspiel"):
        pytest.importorskip(library, reason="needs the extra poker: pip install 'echo2[poker]'")


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


def test_a_game_without_exact_measure_is_a_sentence(tmp_path: Path) -> None:
    for name in ("poker:holdem", "add"):
        result = CliRunner().invoke(cli.app, ["task", "measure", name, str(tmp_path)])
        assert result.exit_code == Exit.CONFIG
        assert "exploitability is measured for poker:kuhn and poker:leduc alone" in result.stderr
