"""Time from the end of a step to the durable answer, with an entry of the journal and with a full checkpoint.

Two learners make the same steps in alternation, on one disk. Both write and encode the same version, with diffs from
the version before and from those 2, 4, 8 and 16 before, where their numbers say so; 16 steps in a row have each as
often as a run has. Then one writes an entry, the other all of its state.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.learner.workload import MIXED, groups_of, model
from echo2.coordinator.learner.batches.batch_groups import TrainGroup, TrainSample
from echo2.coordinator.learner.messages import Batch, Hyper, Open
from echo2.coordinator.learner.session import Session

RATE: Final = 1e-6
"""A usual learning rate of this kind of training. The share of weights that change, and so the cost of a diff, grows
with it."""
WAYS: Final = {"checkpoint": 1.0, "journal": 1e-9}
"""Share of the time for checkpoints: each time, and the first time alone."""


class Answer(NamedTuple):
    """A step. `seconds`: from its end to the answer; `encoding`: of them, until the version was durable. `nbytes`: of
    its diffs."""

    seconds: float
    encoding: float
    nbytes: int


def answers(folder: Path, layers: int, steps: int) -> tuple[dict[str, list[Answer]], int]:
    """Return the answers of each way to `steps` steps, and the model's number of parameters."""
    base = folder / "model"
    policy = model(layers)
    parameters = sum(one.numel() for one in policy.parameters())
    policy.save_pretrained(base)
    del policy
    drawn = _groups()

    def read(leases: Sequence[bytes]) -> list[TrainGroup]:
        return drawn

    sessions = {name: Session(_order(base, folder / name, share), print, read) for name, share in WAYS.items()}
    result: dict[str, list[Answer]] = {name: [] for name in WAYS}
    for number in range(1, steps + 1):
        for name, session in sessions.items():
            result[name].append(_answer(session, number))
    return result, parameters


def _answer(session: Session, number: int) -> Answer:
    began = time.perf_counter()
    stepped = session.step(Batch(step=number, groups=[b"%d" % number]))
    seconds = time.perf_counter() - began - stepped.seconds
    assert stepped.export is not None
    nbytes = sum(Path(edge.payload).stat().st_size for edge in stepped.export.edges)
    return Answer(seconds, stepped.export.seconds, nbytes)


def _order(base: Path, folder: Path, share: float) -> Open:
    return Open(
        model=str(base), folder=str(folder), database="", device="cpu",
        hyper=Hyper(warmup_steps=0, learning_rate=RATE), published="", published_version=0, published_root=b"", era=1,
        next_era=2, staleness=4, checkpoint_share=share,
    )  # fmt: skip


def _groups() -> list[TrainGroup]:
    """Return the groups of each step: one rollout group of the learner's benchmark, as random."""
    group = groups_of(MIXED)[0]
    samples = [
        TrainSample(
            tokens=np.array(one, np.int32), turns=[len(one)], behaviour=np.full(len(one), -10.8, np.float32),
            reward=reward,
        )
        for one, reward in zip(group.completions, group.rewards, strict=True)
    ]  # fmt: skip
    return [TrainGroup(id=b"group", version=0, prompt=np.array(group.prompt, np.int32), samples=samples)]
