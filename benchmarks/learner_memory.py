"""Count the memory of the learner for Qwen3-4B's shape, without a card, and say what fits on 80 GB.

    hooks     tensors that autograd saves in a real pass of one and of two layers, by hooks; the difference is a layer
    tracker   tensors alive after a forward pass of all 36 layers without content, by torch.distributed's memory tracker
    ranks     the same on one of eight ranks, whose parameters FSDP2 divides; PyTorch's fake process group stands in for
              the others. Besides the most bytes that a pass of the layers over 8,192 tokens takes there
    plan      what `echo2-coord plan --model` says (coordinator/learner/memory_count.py)

All in bfloat16, per token, with layers kept and with layers computed again in the backward pass.
"""

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim

if TYPE_CHECKING:
    from echo2.coordinator.learner.messages import MemoryCounted

LAYERS: Final = 36
WORDS: Final = 151_936
RANKS: Final = 8
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


def by_ranks(tokens: int) -> tuple[float, int]:
    """Return what a token keeps on one of `RANKS` ranks with layers computed again, and the most bytes of a pass of all
    layers there: rows of weights and gradients, activations, and what is collected from the others."""
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from echo2.coordinator.learner.layers_made_again import make_layers_again
    from echo2.coordinator.learner.memory_count import build, forward
    from echo2.coordinator.learner.model import within
    from echo2.coordinator.learner.ranks.sharded_model import divide

    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    mesh = init_device_mesh("cpu", (RANKS,))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = build(config(LAYERS, WORDS), torch.bfloat16)
        make_layers_again(model, "always", "cpu")
        divide(model, mesh)
        tracker: Any = MemTracker()
        tracker.track_external(model)
        before = _total(tracker)
        with tracker:
            output = within(model, lambda: forward(model, tokens))
            kept = (_total(tracker) - before) / tokens
            torch.autograd.backward(output.sum())
        most = _total(tracker, "peak")
    dist.destroy_process_group()
    return kept, most


def on_a_rank(counted: "MemoryCounted") -> list[Claim]:
    """Compare a rank's memory with the plan's. Its parts are added up there; of a pass they come one after another."""
    from echo2.coordinator.learner.memory_plan import MemorySettings, parts_of

    kept, most = by_ranks(LIMIT)
    parts = parts_of(counted, LIMIT, MemorySettings(ranks=RANKS))
    planned = 4 * counted.parameters / RANKS + parts.activations + parts.collected
    print(f"one of {RANKS} ranks: {kept:,.0f} bytes per token kept; a pass of the layers over {LIMIT:,} tokens takes "
          f"{most / 1e9:.2f} GB, by the plan {planned / 1e9:.2f}")  # fmt: skip
    return [
        Claim("kept on a rank", max(kept, counted.again) / min(kept, counted.again), "plan", 1.05, at_most=True),
        Claim("a pass of the layers on a rank", most / planned, "plan", 1.05, at_most=True),
    ]


def _total(tracker: Any, moment: str = "current") -> int:
    """Return the bytes of all tensors that are alive. `moment`: current, or peak."""
    (device,) = tracker.get_tracker_snapshot(moment).values()
    return int(device["Total"])


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learner_memory", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="real passes over 128 tokens, not 1,024; no ranks")
    quick = parser.parse_args().quick
    tokens = 128 if quick else 1024
    bench.header("memory of the learner, Qwen3-4B's shape", ["torch", "transformers"])
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from echo2.coordinator.learner import memory_count
    from echo2.coordinator.learner.memory_plan import MOMENT_BYTES, MemorySettings, describe_memory, parts_of
    from echo2.coordinator.learner.messages import MemoryCounted
    from echo2.coordinator.learner.model import parameter_count

    with FakeTensorMode(allow_non_fake_inputs=True):
        model = memory_count.build(config(LAYERS, WORDS), torch.bfloat16)
        kept = memory_count.kept_bytes(model, memory_count.COUNTED_TOKENS)
    hooks, tracker, plan = by_hooks(tokens), by_tracker(1024), [kept.layers, kept.again + kept.layer]
    rows = [[name, *(f"{one:,.0f}" for one in row)] for name, *row in zip(KINDS, hooks, tracker, plan, strict=True)]
    bench.table(("bytes per token", "hooks", "tracker", "plan"), rows)
    counted = MemoryCounted(
        parameters=parameter_count(model), layers=kept.layers, again=kept.again, layer=kept.layer,
        words=WORDS, width=SHAPE["hidden_size"],
    )  # fmt: skip
    print("\n".join(describe_memory(counted, LIMIT, CARD)), flush=True)
    totals = {state: parts_of(counted, LIMIT, MemorySettings(state=state)).total for state in MOMENT_BYTES}
    apart = [
        Claim(f"countings, {name}", max(row) / min(row), "the least of the three", 1.05, at_most=True)
        for name, *row in zip(KINDS, hooks, tracker, plan, strict=True)
    ]
    return bench.close([
        *apart,
        Claim("activations", plan[1] / 0.40e6, "0.40e6 bytes per token", 1.0, at_most=True),
        *([] if quick else on_a_rank(counted)),
        *(
            Claim(f"a rollout of 8,192, optimiser_state {state}", totals[state] / CARD, "80 GB", 1.0, at_most=True)
            for state in ("host", "8bit")
        ),
    ])  # fmt: skip


if __name__ == "__main__":
    bench.one_thread()
    sys.exit(main())
