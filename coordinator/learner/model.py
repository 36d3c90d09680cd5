"""Load a model folder: config.json and safetensors; never from a hub, never pickled weights. A folder of a frozen base
and an adapter (weights.lora.adapter_config) gives a model of which the adapter alone is trained.

A model is built without values and filled on its device (engines.transformers.unfilled_model), so that the host has no
copy of the weights. Files whose tensors have other names than the model's, which transformers knows how to convert, are
loaded by it, on the host first.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from echo2.engines.temperature import PLAIN_TEMPERATURE, factor_of
from echo2.engines.transformers import model_config, output_layer
from echo2.engines.transformers.low_rank import adapt
from echo2.engines.transformers.model_config import UnsuitableModel
from echo2.engines.transformers.output_layer import OutputLayer
from echo2.engines.transformers.unfilled_model import allocate, build_unfilled
from echo2.weights.errors import BadSnapshot
from echo2.weights.hf_import import FolderWeights
from echo2.weights.lora.adapter_config import CONFIG
from echo2.weights.snapshot import Snapshot
from echo2.weights.torch_io import load_into

T = TypeVar("T")

WITHIN_FORWARD_METHOD: Final = "within_forward"
"""Name of the method of a divided model that runs a function as its forward pass."""
SHOWN_NAMES: Final = 3
"""Names of tensors that a sentence shows."""
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


class BadModelFolder(Exception):
    """A folder without a causal language model; the message names the fix."""


class NotFinetunable(Exception):
    """A model whose head the learner does not know, so that it would compute wrong log-probabilities."""


def load(folder: Path, device: str, dtype: torch.dtype = torch.float32, *, by_library: bool = False) -> PreTrainedModel:
    """Load the model of `folder` on `device`, in evaluation mode (no dropout); an adapter's in float32. `by_library`:
    always by transformers, which saves it under the names of its files again. Raises BadModelFolder, NotFinetunable; of
    a folder with an adapter also BadSnapshot."""
    check_folder(folder)
    whole = _by_library if by_library else _whole
    try:
        model = _build_adapted(folder, device) if (folder / CONFIG).exists() else whole(folder, device, dtype)
    except UnsuitableModel as error:
        raise BadModelFolder(f"{folder}: {error}") from error
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BadModelFolder(
            f"{folder} does not load as a causal language model: {error}. Export it again with save_pretrained"
        ) from error
    check_head(evaluating(model))
    return model


def _whole(folder: Path, device: str, dtype: torch.dtype) -> PreTrainedModel:
    model = _fill(folder, device, dtype)
    return _by_library(folder, device, dtype) if model is None else model


def _fill(folder: Path, device: str, dtype: torch.dtype) -> PreTrainedModel | None:
    """Return the model with the weights of its files; None, and nothing of it in memory: the library converts them, or
    says what is wrong with them."""
    model = build_unfilled(model_config.read(folder), dtype)
    allocate(model, device)
    try:
        load_into(model, FolderWeights(folder))
    except BadSnapshot:  # its traceback has the model, until this function ends
        return None
    return model


def _by_library(folder: Path, device: str, dtype: torch.dtype) -> PreTrainedModel:
    auto: Any = AutoModelForCausalLM  # its methods carry no types
    model, listed = auto.from_pretrained(
        folder, config=model_config.read(folder), dtype=dtype, local_files_only=True, use_safetensors=True,
        ignore_mismatched_sizes=True, output_loading_info=True,
    )  # fmt: skip
    _check_tensors(folder, model, listed)
    torch.nn.Module.to(model, device)
    return model  # type: ignore[no-any-return]


def _check_tensors(folder: Path, model: PreTrainedModel, listed: Mapping[str, Collection[Any]]) -> None:
    """Check that the file has the model's tensors and no others: what is missing would be random. `listed`: names that
    the library reports. Raises BadModelFolder."""
    head = next((name for name, module in model.named_modules() if module is head_of(model).linear), "")
    missing, others = sorted(listed["missing_keys"]), sorted(listed["unexpected_keys"])
    if missing == [f"{head}.weight"]:
        raise BadModelFolder(
            f"{folder} has no {missing[0]}, and config.json ties no embedding to the output layer: set "
            '"tie_word_embeddings": true there if the model was trained so, or download the file that has the tensor'
        )
    if missing:
        raise BadModelFolder(f"{folder} lacks {_some(missing)}: download the missing files, or save the model again")
    if listed["mismatched_keys"]:
        name, stored, wanted = min(listed["mismatched_keys"])
        raise BadModelFolder(
            f"{folder}: {name} is {tuple(stored)} in the file, and {tuple(wanted)} by config.json: they are of two "
            "models; download both again"
        )
    if others:
        raise BadModelFolder(
            f"{folder} has {_some(others)}, which a {type(model).__name__} does not have: correct config.json, or save "
            "the model again with save_pretrained, which leaves out what does not belong to it"
        )


def _some(names: Sequence[str]) -> str:
    return (
        f"{', '.join(names[:SHOWN_NAMES])}{f' and {len(names) - SHOWN_NAMES} more' if len(names) > SHOWN_NAMES else ''}"
    )


def _build_adapted(folder: Path, device: str) -> PreTrainedModel:
    """Build the frozen base, and load the first adapter."""
    model = build_unfilled(model_config.read(folder), torch.float32)
    allocate(model, device)
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


def check_head(model: PreTrainedModel) -> None:
    """Check the head that the learner runs by itself (`logprobs`). Raises NotFinetunable."""
    try:
        output_layer.check(model, lambda work: within(model, work))
    except output_layer.UnknownOutput as error:
        raise NotFinetunable(str(error)) from error


def within(model: PreTrainedModel, work: Callable[[], T]) -> T:
    """Return what `work` returns, which may use the model's parameters. Where they are divided among ranks, they are
    collected for it (learner/ranks/sharded_model.py), and all ranks must call this together."""
    collected: Callable[[Callable[[], T]], T] | None = getattr(model, WITHIN_FORWARD_METHOD, None)
    return work() if collected is None else collected(work)


def head_of(model: PreTrainedModel, temperature: int = PLAIN_TEMPERATURE) -> OutputLayer:
    """Return the map from hidden states to logits at a temperature, in thousandths."""
    head = OutputLayer.of(model)
    return head if temperature == PLAIN_TEMPERATURE else head._replace(factor=factor_of(temperature))


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
