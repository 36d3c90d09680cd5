"""A saboteur: on PYTHONPATH it spoils a demo from inside its real processes: rewards, one batch, one checkpoint.

The spoiled batch is recorded in the folder for temporary files, so that a restarted learner fails at it again.
"""

import os
import sys
from pathlib import Path

REWARDS = 67
"""One prompt in `REWARDS`, on average, gets a reward that is not a number."""
BATCH, CHECKPOINT = 8, 16
"""The step from which the learner always fails at one batch, and the step at which its newest checkpoint is damaged."""


def spoil_rewards() -> None:
    from echo2.tasks import arithmetic
    from echo2.tasks.task import Score

    honest = arithmetic.grade

    def spoilt(given: str, wanted: str) -> Score:
        return Score(float("nan"), False) if sum(map(ord, wanted)) % REWARDS == 0 else honest(given, wanted)

    arithmetic.grade = spoilt  # type: ignore[attr-defined]


def spoil_learner() -> None:
    from echo2.coordinator.learner.messages import Batch, Stepped
    from echo2.coordinator.learner.session import Session

    honest, place = Session.step, Path(os.environ["TMPDIR"])

    def once(name: str, of: bytes) -> bool:
        """Tell whether `of` is the first value recorded under `name`, or equal to it."""
        file = place / name
        if not file.exists():
            file.write_bytes(of)
            return True
        return file.read_bytes() == of

    def spoilt(self: Session, batch: Batch, *more: object) -> Stepped:
        named = b"".join(sorted(batch.groups))
        if batch.step >= BATCH and once("spoilt-batch", named):
            raise ValueError("a batch that no learner can compute")
        if batch.step >= CHECKPOINT and not (place / "spoilt-checkpoint").exists():
            newest = max(self._checkpoints.glob("checkpoint-*"))
            file = newest / "tensors.safetensors"
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data)
            (place / "spoilt-checkpoint").write_text(newest.name)
            raise RuntimeError("the machine shook")
        return honest(self, batch, *more)  # type: ignore[arg-type]

    Session.step = spoilt  # type: ignore[method-assign, assignment]


if "echo2.coordinator.learner" in sys.orig_argv:
    spoil_learner()
elif "echo2.coordinator.cli" in sys.orig_argv and "run" in sys.orig_argv:
    spoil_rewards()
