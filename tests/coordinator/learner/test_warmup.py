import json
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from echo2.coordinator.learner import model
from echo2.coordinator.learner.messages import WarmUp
from echo2.coordinator.learner.warmup import demonstrations, warm_up
from echo2.tasks.registry import UnknownTask
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, FileTokenizer, char_tokenizer, load
from tests.support.tiny_learner import SHAPE

ORDER = WarmUp(folder="", task="reverse", task_version=1, steps=3, noise=0.3, batch=16, shape=SHAPE)


def warmed_up(folder: Path, **changes: object) -> Path:
    warm_up(msgspec.structs.replace(ORDER, folder=str(folder), **changes))
    return folder


def test_the_folder_is_an_ordinary_model_folder(tmp_path: Path) -> None:
    folder = warmed_up(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["tie_word_embeddings"], config["vocab_size"]) == ("qwen3", True, CHAR_SIZE)
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == EOS
    assert load(folder / "tokenizer.json", EOS).encode("12>") == FileTokenizer(char_tokenizer(), EOS).encode("12>")
    tensors = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert "lm_head.weight" not in tensors, "tied weights are stored once"
    loaded = model.load(folder, "cpu")
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight


def test_the_same_order_gives_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    first, second, other = warmed_up(tmp_path / "1"), warmed_up(tmp_path / "2"), warmed_up(tmp_path / "3", seed=1)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, second, other)]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.slow
def test_supervised_steps_lower_the_loss(tmp_path: Path) -> None:
    losses = [
        warm_up(msgspec.structs.replace(ORDER, folder=str(tmp_path), steps=steps, noise=0.0)).loss for steps in (1, 40)
    ]
    assert losses[1] < 0.75 * losses[0]


def test_demonstrations_come_from_the_training_split_and_only_answers_are_targets() -> None:
    text = FileTokenizer(char_tokenizer(), EOS)
    rows = [row for part in demonstrations(msgspec.structs.replace(ORDER, noise=0.0), text) for row in part]
    assert len(rows) == 48
    for row in rows:
        assert row.targets.tolist() == [5, 6, 7, 8, 9]
        question, answer = text.decode(row.tokens[:5]), text.decode(row.tokens[5:])
        assert question == answer[::-1] + ">"
        assert row.tokens[-1] == EOS


def test_an_unknown_task_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownTask, match="juggle is not in this build"):
        warmed_up(tmp_path, task="juggle")


BAD_SHAPES = {
    "heads that do not divide the width": ({"hidden_size": 30, "num_attention_heads": 4}, "multiple"),
    "fewer outputs than characters": ({"vocab_size": 10}, "at least the tokenizer's 64"),
}


@pytest.mark.parametrize("sentence", BAD_SHAPES)
def test_an_invalid_shape_is_named(sentence: str, tmp_path: Path) -> None:
    shape, message = BAD_SHAPES[sentence]
    with pytest.raises(ValueError, match=message):
        warmed_up(tmp_path, shape=shape)


def test_a_task_of_another_package_is_demonstrated_by_a_file(tmp_path: Path) -> None:
    text = FileTokenizer(char_tokenizer(), EOS)
    path = tmp_path / "demonstrations"
    path.write_bytes(msgspec.msgpack.encode([([2, 3], [4, EOS]), ([5], [6, 7, EOS])]))
    order = msgspec.structs.replace(ORDER, task="", task_version=0, demonstrations=str(path))
    rows = [row for part in demonstrations(order, text) for row in part]
    assert len(rows) == 48
    assert {tuple(row.tokens.tolist()) for row in rows} == {(2, 3, 4, EOS), (5, 6, 7, EOS)}
    assert {tuple(row.targets.tolist()) for row in rows} == {(2, 3), (1, 2, 3)}
