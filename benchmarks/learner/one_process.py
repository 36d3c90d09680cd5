"""Measure one learner in this process: `python -m benchmarks.learner.one_process ours|trl SHAPE LAYERS STEPS KEPT`.

KEPT: 1 where layers are kept for the backward pass, 0 where they are computed again, by both in the same function of
PyTorch. Prints JSON: CPU seconds of each step, peak memory, the memory of the model alone, and the loss.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.learner.workload import RATE, SHAPES, RolloutGroup, groups_of, model
from echo2.coordinator.learner.batches.batch_groups import TrainBatch, TrainGroup, TrainSample
from echo2.coordinator.learner.layers_made_again import make_layers_again
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.optimiser import Optimiser
from echo2.coordinator.learner.step import train_step


def ours(layers: int, groups: list[RolloutGroup], *, kept: bool) -> tuple[Callable[[], float], Callable[[], float]]:
    """Return the product's step, and a function that returns its bytes of state per parameter, gradients included."""
    policy, hyper = model(layers), Hyper(learning_rate=RATE, warmup_steps=0)
    make_layers_again(policy, "never" if kept else "always", "cpu")
    optimiser, made = Optimiser(policy, hyper), 0

    def step() -> float:
        nonlocal made
        made += 1
        return train_step(policy, optimiser, batch(made, groups), hyper, steps=made)["loss"]

    def state() -> float:
        parameters = list(policy.parameters())
        return optimiser.nbytes / sum(one.numel() for one in parameters)

    return step, state


def batch(number: int, groups: list[RolloutGroup]) -> TrainBatch:
    """Return the groups as the learner reads them from run.sqlite."""
    return TrainBatch(
        step=number,
        groups=[
            TrainGroup(
                id=b"%d" % index, version=0, prompt=np.array(group.prompt, np.int32),
                samples=[
                    TrainSample(
                        tokens=np.array(one, np.int32), turns=[len(one)],
                        behaviour=np.full(len(one), -10.8, np.float32), reward=reward,
                    )
                    for one, reward in zip(group.completions, group.rewards, strict=True)
                ],
            )
            for index, group in enumerate(groups)
        ],
    )  # fmt: skip


def trl(layers: int, groups: list[RolloutGroup], *, kept: bool) -> tuple[Callable[[], float], Callable[[], float]]:
    """Return TRL's step; its state is AdamW's."""
    from benchmarks.learner.trl_step import step_of

    policy: Any = model(layers)  # its methods are not all typed
    if not kept:
        policy.gradient_checkpointing_enable()
    return step_of(policy, groups), lambda: 16.0


def main() -> None:
    candidate, shape, layers, steps = sys.argv[1], SHAPES[sys.argv[2]], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    step, state = {"ours": ours, "trl": trl}[candidate](layers, groups_of(shape), kept=sys.argv[5] == "1")
    seconds, loss = list[float](), 0.0
    for _ in range(steps):
        began = time.process_time()
        loss = step()
        seconds.append(time.process_time() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak": peak, "state": state(), "loss": loss}))


if __name__ == "__main__":
    main()
