"""A run whose versions are a low-rank adapter (LoRA) over a frozen base: the adapter's settings and names.

    <model folder>/base.safetensors       the frozen weights, plain or quantised (weights.lora.frozen_base); an asset
                   adapter_config.json    rank, alpha, target modules, in PEFT's words; an asset
                   model.safetensors      the adapter that the learner begins with

Rules
1. The policy is base + alpha / rank * B A in each target module. The base is what its file says: a quantised base is
   the policy's own, not an approximation of another model, and its hash stands in the signed RunSpec.
2. A version has the tensors of the adapter alone, under PEFT's names: its file is an `adapter_model.safetensors`.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from echo2.weights.errors import BadSnapshot

BASE_FILE: Final = "base.safetensors"
CONFIG: Final = "adapter_config.json"
PREFIX: Final = "base_model.model."
"""PEFT puts it before a module's name."""
INNER_SUFFIX: Final = ".lora_A.weight"
"""Ending of A's name: [rank, inputs]."""
OUTER_SUFFIX: Final = ".lora_B.weight"
"""Ending of B's name: [outputs, rank]."""
_MOST_CONFIG: Final = 1 << 20


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """adapter_config.json, as far as this program reads it. `r`: rank. `target_modules`: endings of module names."""

    r: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    lora_alpha: Annotated[float, msgspec.Meta(gt=0)]
    target_modules: Annotated[list[str], msgspec.Meta(min_length=1, max_length=64)]
    peft_type: Literal["LORA"] = "LORA"
    task_type: str = "CAUSAL_LM"

    @property
    def scaling(self) -> float:
        """The factor of B A (rule 1)."""
        return self.lora_alpha / self.r

    def targets(self, names: Iterable[str]) -> list[str]:
        """Return the modules among `names` that are targets, in order."""
        return [name for name in names if name.rpartition(".")[2] in self.target_modules]


def read_config(folder: Path) -> AdapterConfig | None:
    """Read the adapter's settings of a model folder; None: its versions are whole models. Raises BadSnapshot."""
    try:
        with (folder / CONFIG).open("rb") as file:
            text = file.read(_MOST_CONFIG)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(text, type=AdapterConfig)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadSnapshot(f"{folder / CONFIG} does not describe a LoRA adapter: {error}") from error


def adapter_shapes(modules: Mapping[str, tuple[int, ...]], rank: int) -> dict[str, tuple[int, int]]:
    """Return the shapes of an adapter's tensors by their names. `modules`: name -> [outputs, inputs]."""
    inner = {f"{PREFIX}{name}{INNER_SUFFIX}": (rank, inputs) for name, (_, inputs) in modules.items()}
    return inner | {f"{PREFIX}{name}{OUTER_SUFFIX}": (outputs, rank) for name, (outputs, _) in modules.items()}
