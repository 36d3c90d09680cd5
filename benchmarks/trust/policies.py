"""The weights of the benchmark: an honest model, and those that nodes put in its place to save work."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.trust.machines import Prompts
from echo2.coordinator.learner.messages import Import
from echo2.coordinator.learner.smollm2 import import_model
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, char_tokenizer
from echo2.weights.torch_io import save_model

PROMPT: Final = 24
"""Tokens per prompt of random weights."""
BEGINNINGS: Final = (
    "Here is a short story about",
    "Explain to a child",
    "A list of ten facts on",
    "Once upon a time there was",
)
SUBJECTS: Final = (
    "the sea",
    "an old clock",
    "a village in the mountains",
    "how bread is made",
    "a lost letter",
    "rain",
)
GROUP: Final = 32
"""Weights that share a scale in int4."""
STALE: Final = 0.01
"""Share of the weights that a step changes, each by one unit in its last place."""


def make_model(folder: Path) -> tuple[nn.Module, Prompts]:
    """Make a model folder with 4 M random weights whose logits are spread like a trained model's (some 2.4 nats);
    return the model and its prompts."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=CHAR_SIZE, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=768, head_dim=64, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=EOS, pad_token_id=None, initializer_range=0.15,
    )  # fmt: skip
    torch.manual_seed(0)
    folder.mkdir()
    char_tokenizer().save(str(folder / "tokenizer.json"))
    config.save_pretrained(folder)
    prompts = [[5 + (index * 7 + place * place * 13) % 50 for place in range(PROMPT)] for index in range(50)]
    return Qwen3ForCausalLM(config), Prompts(prompts, EOS)


def import_smollm2(folder: Path) -> tuple[nn.Module, Prompts]:
    """Make the model folder of SmolLM2-135M-Instruct; return the model and its prompts."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import_model(Import(folder=str(folder)))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    text = AutoTokenizer.from_pretrained(folder)
    prompts = [text(f"{beginning} {subject}").input_ids for subject in SUBJECTS for beginning in BEGINNINGS]
    return model, Prompts(prompts, model.config.eos_token_id)


def _quantised(levels: int, group: int | None) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.ndim == 2:
                rows = parameter.reshape(-1, group or parameter.shape[1])
                scale = rows.abs().amax(1, keepdim=True) / levels
                parameter.copy_(((rows / scale).round() * scale).reshape(parameter.shape))

    return change


def _at_temperature(temperature: float) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        _named(model, "model.norm.weight").div_(temperature)

    return change


def _half(model: nn.Module) -> None:
    """Leave out every second layer."""
    for name, parameter in model.named_parameters():
        layer = re.search(r"\.(\d+)\.", name)
        if layer and int(layer[1]) % 2 and ("o_proj" in name or "down_proj" in name):
            parameter.zero_()


def _stale(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        bits = parameter.to(torch.bfloat16).view(torch.int16)
        moved = (torch.rand(bits.shape, generator=generator) < STALE).to(torch.int16)
        parameter.copy_((bits + moved).view(torch.bfloat16))


def _named(model: nn.Module, name: str) -> Tensor:
    return dict(model.named_parameters())[name]


SWAPS: Final[Mapping[str, Callable[[nn.Module], None]]] = {
    "int8": _quantised(127, None),
    "int4": _quantised(7, GROUP),
    "half the layers": _half,
    "T = 0.95": _at_temperature(0.95),
    "T = 0.9": _at_temperature(0.9),
    "one stale step": _stale,
}
"""Policies that a node may compute instead of the run's: name -> change of the weights, in place."""


def write_weights(model: Any, folder: Path) -> dict[str, Path]:
    """Write the honest weights ("honest") and those of each swap as snapshots."""
    honest = {name: value.clone() for name, value in model.state_dict().items()}
    paths = {"honest": folder / "honest.snapshot"}
    save_model(model, paths["honest"])
    for name, change in SWAPS.items():
        model.load_state_dict({key: value.to(torch.bfloat16).float() for key, value in honest.items()})
        with torch.no_grad():
            change(model)
        paths[name] = folder / f"{len(paths)}.snapshot"
        # float32: a node's quantised weights are not rounded a second time.
        save_model(model, paths[name], dtype=torch.float32)
    return paths
