"""Build the command that starts the learner's process."""

import sys
from typing import Final

from runtime.child import Child, python_path

LEARNER: Final = "coordinator.learner"


def learner_process(threads: int = 1, module: str = LEARNER) -> Child:
    """Return the learner's process, not started yet. `threads`: CPU threads that it computes with."""
    argv = [sys.executable, "-m", module]
    return Child(argv, name="learner", env=python_path({"OMP_NUM_THREADS": str(threads)}))
