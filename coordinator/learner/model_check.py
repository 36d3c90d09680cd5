"""Check that a model's folder can be trained, and its groups be scored, before a run is made from it.

1. The cheapest check comes first: config.json, the types of the tensors, the memory, their values, then the model:
   its tensors, its output layer, and a decode step of the engine that the scorer has.
2. Each refusal is one sentence that names what is wrong and what would work. Remarks tell what works otherwise than
   the owner may think.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch

from echo2.coordinator.learner.model import BadModelFolder, NotFinetunable, check_folder, load
from echo2.engines.engine import EngineError
from echo2.engines.llamacpp import architectures
from echo2.engines.transformers import model_config
from echo2.engines.transformers.decoder import Decoder
from echo2.engines.transformers.model_config import UnsuitableModel
from echo2.engines.transformers.packed_attention import PackedPass
from echo2.runtime.host_memory import available_memory
from echo2.weights.hf_import import stored_tensors
from echo2.weights.torch_io import tensor_of

_PLAIN_DTYPES: Final = ("BF16", "F16", "F32")
_GIB: Final = 1 << 30


def check_model(folder: Path, *, divided: bool = False) -> list[str]:
    """Return remarks for the operator. `divided`: see messages.CheckModel; the model is then loaded in bfloat16. Raises
    BadModelFolder, NotFinetunable, BadSnapshot."""
    dtype = torch.bfloat16 if divided else torch.float32
    check_folder(folder)
    _check_config(folder, dtype)
    remarks = [*_check_values(folder)]
    try:
        model = load(folder, "cpu", dtype)
        Decoder(model, model.device).check()
        packed = PackedPass.of(model)
    except (BadModelFolder, NotFinetunable):
        raise
    except EngineError as error:
        raise BadModelFolder(f"{folder}: {error}") from error
    except Exception as error:  # a model's own code may raise any
        why = f"{type(error).__name__}: {error}"
        raise BadModelFolder(f"{folder} loads and cannot be computed here ({why}): use another model") from error
    if packed is None:
        remarks.append(
            f"learner and scorer fill up the rollouts of a {type(model).__name__} to equal lengths, as its attention "
            "is not computed for rollouts of several lengths at once: they take longer"
        )
    try:
        architectures.read(folder)
    except EngineError as error:
        remarks.append(f"nodes with llama.cpp get no work of this run, those with transformers do: {error}")
    return remarks


def _check_config(folder: Path, dtype: torch.dtype) -> None:
    """Check config.json, and that there is memory for the model."""
    try:
        nbytes, room = model_config.count_weight_bytes(model_config.read(folder), dtype), available_memory()
    except UnsuitableModel as error:
        raise BadModelFolder(f"{folder}: {error}") from error
    except Exception as error:  # each field of config.json may raise any
        raise BadModelFolder(
            f"{folder}/config.json describes no model that can be made ({type(error).__name__}: {error}): download it "
            "again"
        ) from error
    if nbytes > room:
        raise BadModelFolder(
            f"{folder} takes {nbytes / _GIB:,.1f} GiB of memory in {str(dtype).removeprefix('torch.')}, in which it is "
            f"loaded, and {room / _GIB:,.1f} GiB are free: end other programs, or take a larger machine or a smaller "
            "model"
        )


def _check_values(folder: Path) -> Iterator[str]:
    """Check that all weights are finite numbers. Yield what is lost as they are published in bfloat16."""
    changed, total, wide = 0, 0, set[str]()
    for entry, bits in stored_tensors(folder):
        values = tensor_of(bits, entry.dtype)
        if not values.is_floating_point():
            continue
        if entry.dtype not in _PLAIN_DTYPES:
            raise BadModelFolder(
                f"{folder}: {entry.name} is stored as {entry.dtype}, and weights are trained from "
                f"{', '.join(_PLAIN_DTYPES)}: save the model again in bfloat16"
            )
        if not bool(values.isfinite().all()):
            raise BadModelFolder(
                f"{folder}: {entry.name} has weights that are not finite numbers (NaN or infinity): download the model "
                "again, or take an earlier checkpoint of its training"
            )
        total += values.numel()
        if entry.dtype != "BF16":
            wide.add(entry.dtype)
            changed += int((values.to(torch.bfloat16).to(values.dtype) != values).sum())
    if changed:
        kept = " and ".join(sorted(wide))
        yield (
            f"its weights are {kept}, and versions are published in bfloat16, of 8 bits: version 0 rounds "
            f"{changed / total:.0%} of them, each by less than 0.4 %"
        )
