"""The learner's process with slow steps: ECHO2_STAND_INS=learner=benchmarks.paced.paced_learner (runtime/stand_ins.py).

It sleeps for what is left of `STEP_SECONDS` after a step was computed and exported.
"""

import os
import time
from collections.abc import Callable
from typing import Final

import msgspec

from echo2.coordinator.learner import __main__ as learner
from echo2.coordinator.learner.messages import Batch, Stepped
from echo2.runtime.child_pipe import Handlers

MODULE: Final = "benchmarks.paced.paced_learner"
STEP_SECONDS: Final = "PACED_STEP_SECONDS"


def slow(handlers: Handlers) -> Handlers:
    """Return the learner's calls, of which a step takes its time."""
    _, step = handlers["train"]
    return {**handlers, "train": (Batch, _slowed(step))}


def _slowed(step: Callable[[Batch], Stepped]) -> Callable[[Batch], Stepped]:
    def slowed(batch: Batch) -> Stepped:
        began = time.monotonic()
        stepped = step(batch)
        left = max(0.0, float(os.environ[STEP_SECONDS]) - (time.monotonic() - began))
        time.sleep(left)
        return msgspec.structs.replace(stepped, seconds=stepped.seconds + left)

    return slowed


def main() -> None:
    """Serve the learner's calls until the daemon ends."""
    learner.main(slow)
