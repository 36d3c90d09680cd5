"""Check, before anything is made or started, that this machine can run the learner: its libraries, memory and card."""

import importlib.util
from pathlib import Path
from typing import Final

from echo2.coordinator.learner.memory_plan import MemorySettings, refusal
from echo2.coordinator.run import model_folder
from echo2.coordinator.settings.computing import computing_of
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.coordinator.settings.training_config import LearnerSection, RunSection
from echo2.engines.devices.torch_build import command_for_extra
from echo2.runtime.declared_requirements import lacking
from echo2.runtime.errors import LocalFault
from echo2.runtime.host_memory import memory_limit
from echo2.runtime.settings import SettingsFault
from echo2.weights.lora.adapter_config import CONFIG as ADAPTER

NEEDED_LIBRARIES: Final = ("torch", "transformers")
TRAINING_EXTRA: Final = "train"
TOKEN_BYTES: Final = 8
"""Of a sampled token in the learner's batch, at least: its id and its log-probability."""
GIB: Final = 1 << 30


def check_libraries() -> None:
    """Raises `LocalFault`, whose sentence has the command that installs what is missing."""
    missing = [name for name in NEEDED_LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise LocalFault(
            f"the learner needs PyTorch, which this installation of echo2 lacks ({', '.join(missing)}): "
            f"{command_for_extra(TRAINING_EXTRA)}"
        )
    if absent := lacking(NEEDED_LIBRARIES):
        raise LocalFault(
            f"the learner's libraries are installed in part: {', '.join(absent)} is missing: "
            f"{command_for_extra(TRAINING_EXTRA)}"
        )


def check_memory(section: RunSection) -> None:
    """Check that the learner, on this machine, can hold a batch whose rollouts all have `run.limit` tokens. Raises
    `SettingsFault`."""
    tokens = section.batch_groups * section.group_size * section.limit
    memory = memory_limit()
    if tokens * TOKEN_BYTES > memory:
        raise SettingsFault(
            f"a batch has up to {tokens:,} tokens (run.batch_groups {section.batch_groups} x run.group_size "
            f"{section.group_size} x run.limit {section.limit}), which take {tokens * TOKEN_BYTES / GIB:,.0f} GiB in "
            f"the learner, and this machine has {memory / GIB:,.0f} GiB: lower one of the three"
        )


def check_card(model: Path, config: CoordinatorConfig) -> int:
    """Check that the learner fits on the card that it is to compute on (memory_plan.py); return the card's bytes. 0:
    nothing is known, of a card that this machine lacks, or of an adapter, which takes far less. Raises
    `SettingsFault`."""
    learner = config.learner
    if (model / ADAPTER).exists() or not computing_of(learner, config.scorer).device.startswith("cuda"):
        return 0
    compute = "float32" if learner.compute_dtype == "float32" else "bfloat16"
    chosen = MemorySettings(
        compute, learner.recompute != "never", learner.optimiser_state, learner.ranks * learner.hosts
    )
    counted = model_folder.count_memory(model, compute)
    if counted.card and (refused := refusal(counted, config.run.limit, counted.card, chosen)):
        raise SettingsFault(refused)
    return counted.card


def check_ranks(learner: LearnerSection) -> None:
    """Check that an adapter is trained by one rank (learner/ranks/sharded_model.py, rule 4). Raises `SettingsFault`."""
    count = learner.ranks * learner.hosts
    if count > 1:
        raise SettingsFault(
            f"the learner has {count} ranks, and the versions of this run are an adapter, which one rank trains: "
            "set learner.ranks and learner.hosts to 1"
        )
