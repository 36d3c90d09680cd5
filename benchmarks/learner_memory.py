"""Count the memory of the learner for Qwen3-4B's shape, in two ways without a card, and say what fits on 80 GB.

    hooks     tensors that autograd saves in a real pass of one and of two layers, by hooks; the difference is a layer
    tracker   tensors alive after a forward pass of all 36 layers without content, by torch.distributed's memory tracker
    plan      what `echo2-coord plan --model` says (coordinator/learner/memory_count.py)

All in bfloat16, per token, with layers kept and with layers computed again in the backward pass.
"""

import argparse
import sys
from typing import Any, Final

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim

LAYERS: Final = 36
LIMIT: Final = 8192
CARD: Final = 80 * 10**9
SHAPE: Final = {
    "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "tie_word_embeddings": True, "max_position_embeddings": 40960,
}  # fmt: skip
KINDS: Final = ("layers kept", "layers computed again")


def config(layers: int, words: int) -> Any:
    """Return a configuration of Qwen3-4B's shape with so many layers and words."""
    from transformers import Qwen3Config

    made: Any = Qwen3Config  # its arguments are not all typed
    return made(**SHAPE, num_hidden_layers=layers, vocab_size=words)


def by_hooks(tokens: int) -> list[float]:
    """Return what a token keeps in all layers, kept and computed again, from real passes of one and two."""
    import torch

    from echo2.coordinator.learner.memory_count import build, kept_bytes

    one, two = (kept_bytes(build(config(layers, 1000), torch.bfloat16), tokens) for layers in (1, 2))
    return [
        first + (LAYERS - 1) * (second - first)
        for first, second in ((one.layers, two.layers), (one.again + one.layer, two.again + two.layer))
    ]


def by_tracker(tokens: int) -> list[float]:
    """Return the same from the tensors that are alive after a pass of all layers; one layer's own, which live while it
    is computed again, are a layer's part of those that are kept."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from echo2.coordinator.learner.layers_made_again import make_layers_again
    from echo2.coordinator.learner.memory_count import build, forward

    alive = []
    for again in (False, True):
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = build(config(LAYERS, 1000), torch.bfloat16)
            if again:
                make_layers_again(model, "always", "cpu")
            tracker: Any = MemTracker()
            tracker.track_external(model)
            before = _total(tracker)
            with tracker:
                output = forward(model, tokens)
                alive.append((_total(tracker) - before) / tokens)
                del output
    return [alive[0], alive[1] + (alive[0] - alive[1]) / LAYERS]


def _total(tracker: Any) -> int:
    """Return the bytes of all tensors that are alive."""
    (device,) = tracker.get_tracker_snapshot("current").values()
    return int(device["Total"])


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learner_memory", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="real passes over 128 tokens instead of 1,024")
    tokens = 128 if parser.parse_args().quick else 1024
    bench.header("memory of the learner, Qwen3-4B's shape", ["torch", "transformers"])
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from echo2.coordinator.learner import memory_count
    from echo2.coordinator.learner.memory_plan import MemorySettings, describe_memory, parts_of
    from echo2.coordinator.learner.messages import MemoryCounted
    from echo2.coordinator.learner.model import parameter_count

    with FakeTensorMode(allow_non_fake_inputs=True):
        model = memory_count.build(config(LAYERS, 151_936), torch.bfloat16)
        kept = memory_count.kept_bytes(model, memory_count.COUNTED_TOKENS)
    hooks, tracker, plan = by_hooks(tokens), by_tracker(1024), [kept.layers, kept.again + kept.layer]
    rows = [[name, *(f"{one:,.0f}" for one in row)] for name, *row in zip(KINDS, hooks, tracker, plan, strict=True)]
    bench.table(("bytes per token", "hooks", "tracker", "plan"), rows)
    counted = MemoryCounted(
        parameters=parameter_count(model), layers=kept.layers, again=kept.again, layer=kept.layer,
        words=151_936, width=SHAPE["hidden_size"],
    )  # fmt: skip
    print("\n".join(describe_memory(counted, LIMIT, CARD)), flush=True)
    host = parts_of(counted, LIMIT, MemorySettings(host=True)).total
    apart = [
        Claim(f"countings, {name}", max(row) / min(row), "the least of the three", 1.05, at_most=True)
        for name, *row in zip(KINDS, hooks, tracker, plan, strict=True)
    ]
    return bench.close([
        *apart,
        Claim("activations", plan[1] / 0.40e6, "0.40e6 bytes per token", 1.0, at_most=True),
        Claim("a rollout of 8,192 with the moments on the host", host / CARD, "80 GB", 1.0, at_most=True),
    ])  # fmt: skip


if __name__ == "__main__":
    bench.one_thread()
    sys.exit(main())
