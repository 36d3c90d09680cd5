"""A model folder as a model: config.json and safetensors in, nothing from a hub, nothing that is pickled."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


class BadModelFolder(Exception):
    """A folder that holds no causal language model; the message names the fix."""


class NotFinetunable(Exception):
    """A model whose head does more than a linear map, so that its log-probabilities would be wrong here."""


def load(folder: Path, device: str) -> PreTrainedModel:
    """The model of `folder` in float32 on `device`, in evaluation mode (no dropout). Raises BadModelFolder."""
    _check_folder(folder)
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True, attn_implementation="sdpa"
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadModelFolder(
            f"{folder} does not load as a causal language model: {error}. Export it again with save_pretrained, or "
            "update transformers if the architecture is newer than the one installed"
        ) from error
    torch.nn.Module.to(model, device)
    check_head(model)
    return evaluating(model)


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise BadModelFolder(f"{folder} has no config.json: name a folder made by `warm_up` or by save_pretrained")
    if not any((folder / name).is_file() for name in WEIGHTS):
        raise BadModelFolder(
            f"{folder} has neither {' nor '.join(WEIGHTS)}: pickled weights are never read, so save it again with "
            "safe_serialization=True"
        )


@torch.no_grad()
def check_head(model: PreTrainedModel) -> None:
    """Raises NotFinetunable unless head(last hidden state) is what the model itself returns as logits: some
    architectures scale or cap them, and the learner runs the head by itself (`logprobs`)."""
    ids = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    direct = head_of(model)(model.base_model(ids, use_cache=False).last_hidden_state)
    if not torch.allclose(direct, model(ids, use_cache=False).logits, atol=1e-4, rtol=1e-4):
        raise NotFinetunable(
            f"{model.config.model_type} changes its logits after the head; the learner cannot train it"
        )


def head_of(model: PreTrainedModel) -> torch.nn.Linear:
    """The map from hidden states to logits."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    assert isinstance(head, torch.nn.Linear)
    return head


def evaluating(model: PreTrainedModel) -> PreTrainedModel:
    """The model without dropout. Gradients flow all the same."""
    torch.nn.Module.eval(model)
    return model


def parameter_count(model: PreTrainedModel) -> int:
    """Number of parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
