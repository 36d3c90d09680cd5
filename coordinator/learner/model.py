"""Load a model folder: config.json and safetensors; never from a hub, never pickled weights. A folder of a frozen base
and an adapter (weights.lora.adapter_config) gives a model of which the adapter alone is trained."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from echo2.engines.transformers.low_rank import adapt
from echo2.weights.lora.adapter_config import CONFIG
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import load_into

T = TypeVar("T")

WITHIN_FORWARD_METHOD: Final = "within_forward"
"""Name of the method of a divided model that runs a function as its forward pass."""
COMPUTE_TYPES: Final = ("auto", "float32", "bfloat16")
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


class BadModelFolder(Exception):
    """A folder without a causal language model; the message names the fix."""


class NotFinetunable(Exception):
    """A model whose head is more than a linear map, so that the learner would compute wrong log-probabilities."""


def load(folder: Path, device: str) -> PreTrainedModel:
    """Load the model of `folder` in float32 on `device`, in evaluation mode (no dropout). Raises BadModelFolder,
    NotFinetunable; of a folder with an adapter also BadSnapshot."""
    check_folder(folder)
    try:
        model = _build_adapted(folder) if (folder / CONFIG).exists() else _whole(folder)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadModelFolder(
            f"{folder} does not load as a causal language model: {error}. Export it again with save_pretrained, or "
            "update transformers if the architecture is newer than the one installed"
        ) from error
    torch.nn.Module.to(model, device)
    check_head(model)
    return evaluating(model)


def _whole(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, use_safetensors=True, attn_implementation="sdpa"
    )
    return model


def _build_adapted(folder: Path) -> PreTrainedModel:
    """Build the frozen base, and load the first adapter."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    auto: Any = AutoModelForCausalLM  # its methods carry no types
    model: PreTrainedModel = auto.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    adapt(model, folder)
    load_into(model, Snapshot(folder / WEIGHTS[0]))
    return model


def check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise BadModelFolder(f"{folder} has no config.json: name a folder made by `warm_up` or by save_pretrained")
    if not any((folder / name).is_file() for name in WEIGHTS):
        raise BadModelFolder(
            f"{folder} has neither {' nor '.join(WEIGHTS)}: pickled weights are never read, so save it again with "
            "safe_serialization=True"
        )


@torch.no_grad()
def check_head(model: PreTrainedModel) -> None:
    """Check that head(last hidden state) equals the model's logits: some architectures scale or cap them, and the
    learner runs the head by itself (`logprobs`). Raises NotFinetunable."""
    ids = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    direct = within(model, lambda: head_of(model)(model.base_model(ids, use_cache=False).last_hidden_state))
    if not torch.allclose(direct, model(ids, use_cache=False).logits, atol=1e-4, rtol=1e-4):
        raise NotFinetunable(
            f"{model.config.model_type} changes its logits after the head; the learner cannot train it"
        )


def within(model: PreTrainedModel, work: Callable[[], T]) -> T:
    """Return what `work` returns, which may use the model's parameters. Where they are divided among ranks, they are
    collected for it (learner/ranks/sharded_model.py), and all ranks must call this together."""
    collected: Callable[[Callable[[], T]], T] | None = getattr(model, WITHIN_FORWARD_METHOD, None)
    return work() if collected is None else collected(work)


def head_of(model: PreTrainedModel) -> torch.nn.Linear:
    """Return the map from hidden states to logits."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    assert isinstance(head, torch.nn.Linear)
    return head


def compute_type(name: str, device: torch.device | str) -> torch.dtype:
    """Return the type in which the learner computes on a device. `name`: `learner.compute_dtype`; auto: bfloat16 on a
    GPU that multiplies it by itself, else float32."""
    if name == "auto":
        kind = torch.device(device).type
        half = kind != "cpu" and (kind != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False))
        return torch.bfloat16 if half else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def begin_arithmetic(threads: int, seed: int) -> None:
    """Set up this process's arithmetic: CPU threads, random state, and float32 sums of 16-bit products on a GPU."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def cast_parameters(model: PreTrainedModel, kind: torch.dtype) -> None:
    """Bring all parameters to a type, one after the other. Buffers keep theirs: those of positions need float32."""
    for parameter in model.parameters():
        if parameter.dtype != kind:
            parameter.data = parameter.data.to(kind)


def evaluating(model: PreTrainedModel) -> PreTrainedModel:
    """Switch off dropout and return the model. Gradients still flow."""
    torch.nn.Module.eval(model)
    return model


def parameter_count(model: PreTrainedModel) -> int:
    """Count the parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
