"""A rank whose memory runs out once in a step, forward or backward. What the step gives is compared with a step in
passes of half the size that nothing disturbed. torchrun starts it, with a model folder."""

import sys
import time
from pathlib import Path

import pytest
import torch

from echo2.coordinator.learner.batches.dealing import shares
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.pass_sizes import PassSizes, TooLittleMemory
from echo2.coordinator.learner.ranks.rank_group import RankGroup
from echo2.coordinator.learner.ranks.rank_part import RankPart
from echo2.coordinator.learner.step import Updates, rows_of
from tests.support.tiny_learner import batch, lack_memory

HYPER = Hyper(warmup_steps=0, learning_rate=1e-3, minibatches=2, microbatch_tokens=56, recompute="always")
MOST_SECONDS = 30.0


def part_of(group: RankGroup, base: Path, hyper: Hyper) -> RankPart:
    """Return this rank's part, ready for a step."""
    part = RankPart(group, base, "cpu", 1, hyper, reference=False)
    part.check()
    part.start(hyper, None, [])
    return part


def made(part: RankPart, sizes: PassSizes, steps: int = 1) -> tuple[Updates, dict[str, torch.Tensor]]:
    """Make a step; return its updates and this rank's masters and moments."""
    share = shares(rows_of(batch(1, groups=8), HYPER, 16, ()), HYPER.minibatches, 2)[part._group.rank]
    done = part.train(share, steps, 16, sizes)
    return done, {name: tensor.clone() for name, tensor in part._started.tensors().items()}


def check(group: RankGroup, base: Path, where: str) -> None:
    """Let rank 1 lack memory in its first large pass with gradient; compare with undisturbed passes of these sizes."""
    part, sizes, undisturbed = part_of(group, base, HYPER), PassSizes(), PassSizes([56, 56, 28, 28])
    if group.rank == 1:
        lack_memory(part._loaded, 28, where)
    began = time.monotonic()
    done, state = made(part, sizes)
    assert time.monotonic() - began < MOST_SECONDS, where
    assert (sizes.used, sizes.halvings) == ([56, 56, 28, 28], 1), (where, sizes.used)
    expected, whole = made(part_of(group, base, HYPER), undisturbed)
    assert done.norms == expected.norms, where
    assert done.metrics.metrics(2) == expected.metrics.metrics(2), where
    assert state.keys() == whole.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in whole.items()), where
    made(part, PassSizes(), 2)  # the ranks go on
    assert part._tokens == 28, "a halved size stays"


def main() -> None:
    group, base = RankGroup(), Path(sys.argv[1])
    for where in ("forward", "backward"):
        check(group, base, where)
    part = part_of(group, base, HYPER)
    if group.rank == 1:
        lack_memory(part._loaded, 28, "backward")
    with pytest.raises(TooLittleMemory, match="is to be made again"):
        made(part, PassSizes([56, 56, 56, 56]))
    print(f"rank {group.rank} has met again", flush=True)


if __name__ == "__main__":
    main()
