"""Measure one learner in this process: `python -m benchmarks.learner.one_process ours|trl SHAPE LAYERS STEPS KEPT`.

KEPT: 1 where layers are kept for the backward pass, 0 where they are computed again, by both in the same function of
PyTorch. Prints JSON: CPU seconds of each step, peak memory, bytes of state per parameter, the loss, and the floor: the
bytes that no step can do without, by part (benchmarks/learner/__main__.py).
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.learner.workload import RATE, SHAPES, WIDTH, RolloutGroup, groups_of, model
from echo2.coordinator.learner.batches.batch_groups import TrainBatch, TrainGroup, TrainSample
from echo2.coordinator.learner.layers_made_again import make_layers_again
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.model import parameter_count
from echo2.coordinator.learner.optimiser import Optimiser
from echo2.coordinator.learner.step import train_step


class Candidate(NamedTuple):
    """A learner. `step`: makes a step and returns its loss. `state`: returns the bytes that stay between two steps,
    gradients included."""

    step: Callable[[], float]
    state: Callable[[], int]
    parameters: int


def ours(layers: int, groups: list[RolloutGroup], *, kept: bool) -> Candidate:
    """Return the product's learner."""
    policy, hyper = model(layers), Hyper(learning_rate=RATE, warmup_steps=0)
    make_layers_again(policy, "never" if kept else "always", "cpu")
    optimiser, made = Optimiser(policy, hyper), 0

    def step() -> float:
        nonlocal made
        made += 1
        return train_step(policy, optimiser, batch(made, groups), hyper, steps=made)["loss"]

    return Candidate(step, lambda: optimiser.nbytes, parameter_count(policy))


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


def trl(layers: int, groups: list[RolloutGroup], *, kept: bool) -> Candidate:
    """Return TRL's learner; its state is AdamW's, 16 bytes per parameter."""
    from benchmarks.learner.trl_step import step_of

    policy: Any = model(layers)  # its methods are not all typed
    if not kept:
        policy.gradient_checkpointing_enable()
    parameters = parameter_count(policy)
    return Candidate(step_of(policy, groups), lambda: 16 * parameters, parameters)


def peak_bytes() -> int:
    """Return the most memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def tokens_of(candidate: str, groups: list[RolloutGroup]) -> int:
    """Return the tokens whose layers a candidate computes: each once, or each rollout filled up with its prompt."""
    if candidate == "ours":
        return sum(len(group.prompt) + sum(map(len, group.completions)) for group in groups)
    longest = max(len(one) for group in groups for one in group.completions)
    return sum(len(group.completions) * (len(group.prompt) + longest) for group in groups)


def main() -> None:
    candidate, shape, layers, steps = sys.argv[1], SHAPES[sys.argv[2]], int(sys.argv[3]), int(sys.argv[4])
    kept, groups = sys.argv[5] == "1", groups_of(shape)
    torch.set_num_threads(1)
    if candidate == "trl":
        import_module("benchmarks.learner.trl_step")
    libraries = peak_bytes()
    learner = {"ours": ours, "trl": trl}[candidate](layers, groups, kept=kept)
    seconds, loss = list[float](), 0.0
    for _ in range(steps):
        began = time.process_time()
        loss = learner.step()
        seconds.append(time.process_time() - began)
    floor = {
        "libraries": libraries,
        "state": learner.state(),
        "inputs of layers": 4 * WIDTH * layers * tokens_of(candidate, groups),
    }
    state = learner.state() / learner.parameters
    print(json.dumps({"seconds": seconds, "peak": peak_bytes(), "state": state, "loss": loss, "floor": floor}))


if __name__ == "__main__":
    main()
