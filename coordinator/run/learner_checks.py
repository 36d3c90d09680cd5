"""Check, before anything is made or started, that the libraries of learner and scorer are installed."""

import importlib.util
from typing import Final

from echo2.engines.devices.torch_build import command_for_extra
from echo2.runtime.declared_requirements import lacking
from echo2.runtime.errors import LocalFault

NEEDED_LIBRARIES: Final = ("torch", "transformers")
TRAINING_EXTRA: Final = "train"


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
