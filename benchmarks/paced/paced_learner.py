"""The learner's process with slow steps: `python -m benchmarks.paced.paced_learner`.

It sleeps for what is left of `STEP_SECONDS` after a step was computed and exported.
"""

import os
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from echo2.coordinator.learner import __main__ as learner
from echo2.coordinator.learner import call_handlers
from echo2.coordinator.learner.messages import Batch, Stepped

MODULE: Final = "benchmarks.paced.paced_learner"
STEP_SECONDS: Final = "PACED_STEP_SECONDS"


class PacedHandlers(call_handlers.LearnerHandlers):
    """The learner's calls, of which steps take their time."""

    def by_method(self) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
        """See `LearnerHandlers.by_method`."""
        return {**super().by_method(), "train": (Batch, self.slow_step)}

    def slow_step(self, batch: Batch) -> Stepped:
        """Make a step, and sleep."""
        began = time.monotonic()
        stepped = self.step(batch)
        left = max(0.0, float(os.environ[STEP_SECONDS]) - (time.monotonic() - began))
        time.sleep(left)
        return msgspec.structs.replace(stepped, seconds=stepped.seconds + left)


if __name__ == "__main__":
    vars(call_handlers)["LearnerHandlers"] = PacedHandlers
    learner.main()
