"""The command that starts the learner's process."""

import sys
from typing import Final

from runtime.child import Child, python_path

LEARNER: Final = "coordinator.learner"


def learner_process(threads: int = 1, module: str = LEARNER) -> Child:
    """Make the learner's process, to be started. `threads`: CPU threads that it computes on."""
    argv = [sys.executable, "-m", module]
    return Child(argv, name="learner", env=python_path({"OMP_NUM_THREADS": str(threads)}))
