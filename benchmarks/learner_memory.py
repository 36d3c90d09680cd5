"""Count the memory of the learner for Qwen3-4B's shape, without a card, and say what fits on 80 GB.

    hooks     tensors that autograd saves in a real pass of one and of two layers, by hooks; the difference is a layer
    tracker   tensors alive after a forward pass of all 36 layers without content, by torch.distributed's memory tracker
    ranks     the same on one of eight ranks, whose parameters FSDP2 divides; PyTorch's fake process group stands in for
              the others. Besides the most bytes that a pass of the layers over 8,192 tokens takes there. Both also for
              Qwen3-30B-A3B, whose layers are large
    plan      what `echo2-coord plan --model` says (coordinator/learner/memory_count.py)

All in bfloat16, per token, with layers kept and with layers computed again in the backward pass.

`--cards` prints instead what `plan` says of three models on one card of 24 GB, on one of 80 GB and on eight of these.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
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
LARGE: Final = "Qwen3-30B-A3B"
OTHER_SHAPES: Final = {
    "Qwen3-8B": {
        "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "num_hidden_layers": 36, "tie_word_embeddings": False, "max_position_embeddings": 40960,
    },
    LARGE: {
        "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "num_hidden_layers": 48, "tie_word_embeddings": False, "max_position_embeddings": 40960,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
    },
}  # fmt: skip
"""Shapes beside Qwen3-4B's."""
PLACES: Final = {"24 GB": (24 * 10**9, 1), "80 GB": (CARD, 1), f"{RANKS} x 80 GB": (CARD, RANKS)}
"""Bytes of a card and number of cards."""
KINDS: Final = ("layers kept", "layers computed again")


def config(layers: int, words: int) -> Any:
    """Return a configuration of Qwen3-4B's shape with so many layers and words."""
    from transformers import Qwen3Config

    made: Any = Qwen3Config  # its arguments are not all typed
    return made(**SHAPE, num_hidden_layers=layers, vocab_size=words)


def other_config(name: str) -> Any:
    """Return the configuration of one of `OTHER_SHAPES`."""
    from transformers import Qwen3Config, Qwen3MoeConfig

    shape = OTHER_SHAPES[name]
    made: Any = Qwen3MoeConfig if "num_experts" in shape else Qwen3Config
    return made(**shape, vocab_size=WORDS)


def card_rows(name: str, made: Any) -> Iterator[list[str]]:
    """Yield a row per place of what `plan` says of a model. `made`: its configuration."""
    from echo2.coordinator.learner.memory_plan import MOMENT_BYTES, MemorySettings, fits, parts_of
    from echo2.coordinator.run.model_folder import count_memory

    with tempfile.TemporaryDirectory(prefix="echo2-memory-") as folder:
        made.save_pretrained(folder)
        counted = count_memory(Path(folder))
    print(f"{name}: {counted.parameters / 1e9:.2f}e9 parameters", flush=True)
    for place, (card, ranks) in PLACES.items():
        row = [name, place]
        for state in MOMENT_BYTES:
            choice = MemorySettings(state=state, ranks=ranks)
            needed = parts_of(counted, LIMIT, choice).total / 1e9
            row.append(f"{needed:.1f}" if fits(counted, LIMIT, card, choice) else f"({needed:.1f})")
        yield [*row, f"{4 * counted.parameters / 1e9:.1f}"]


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


def counted_of(made: Any) -> "MemoryCounted":
    """Return what `plan` counts for a configuration."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from echo2.coordinator.learner.memory_count import build, count_model

    with FakeTensorMode(allow_non_fake_inputs=True):
        return count_model(build(made, torch.bfloat16))


def by_ranks(made: Any, tokens: int) -> tuple[float, int]:
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
        model = build(made, torch.bfloat16)
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


def on_a_rank(name: str, made: Any, counted: "MemoryCounted") -> list[Claim]:
    """Compare a rank's memory with the plan's. Its parts are added up there; of a pass they come one after another."""
    from echo2.coordinator.learner.memory_plan import MemorySettings, parts_of

    kept, most = by_ranks(made, LIMIT)
    parts = parts_of(counted, LIMIT, MemorySettings(ranks=RANKS))
    planned = 4 * counted.parameters / RANKS + parts.activations + parts.collected
    print(
        f"{name}, one of {RANKS} ranks: {kept:,.0f} bytes per token kept; a pass of the layers over {LIMIT:,} tokens "
        f"takes {most / 1e9:.2f} GB, by the plan {planned / 1e9:.2f}"
    )
    apart = max(kept, counted.again) / min(kept, counted.again)
    return [
        Claim(f"kept on a rank, {name}", apart, "plan", 1.05, at_most=True),
        Claim(f"a pass of the layers on a rank, {name}", most / planned, "plan", 1.05, at_most=True),
    ]


def _total(tracker: Any, moment: str = "current") -> int:
    """Return the bytes of all tensors that are alive. `moment`: current, or peak."""
    (device,) = tracker.get_tracker_snapshot(moment).values()
    return int(device["Total"])


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learner_memory", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="real passes over 128 tokens, not 1,024; no ranks")
    parser.add_argument("--cards", action="store_true", help="what plan says of three models on cards")
    order = parser.parse_args()
    quick = order.quick
    if order.cards:
        bench.header("memory of the learner on cards, by plan", ["torch", "transformers"])
        models = {"Qwen3-4B": config(LAYERS, WORDS), **{name: other_config(name) for name in OTHER_SHAPES}}
        rows = [row for name, made in models.items() for row in card_rows(name, made)]
        bench.table(("model", "cards", "float32", "host", "8bit", "scorer"), rows)
        print("GB of each card, bfloat16, rollouts of 8,192 tokens; in brackets: does not fit")
        return 0
    tokens = 128 if quick else 1024
    bench.header("memory of the learner, Qwen3-4B's shape", ["torch", "transformers"])
    from echo2.coordinator.learner.memory_plan import MOMENT_BYTES, MemorySettings, describe_memory, parts_of

    made, large = config(LAYERS, WORDS), other_config(LARGE)
    hooks = by_hooks(tokens)
    print(f"by hooks: {hooks[0]:,.0f} and {hooks[1]:,.0f} bytes per token", flush=True)
    counted = counted_of(made)
    tracker, plan = by_tracker(1024), [counted.layers, counted.again + counted.layer]
    rows = [[name, *(f"{one:,.0f}" for one in row)] for name, *row in zip(KINDS, hooks, tracker, plan, strict=True)]
    bench.table(("bytes per token", "hooks", "tracker", "plan"), rows)
    print("\n".join(describe_memory(counted, LIMIT, CARD)), flush=True)
    totals = {state: parts_of(counted, LIMIT, MemorySettings(state=state)).total for state in MOMENT_BYTES}
    apart = [
        Claim(f"countings, {name}", max(row) / min(row), "the least of the three", 1.05, at_most=True)
        for name, *row in zip(KINDS, hooks, tracker, plan, strict=True)
    ]
    return bench.close([
        *apart,
        Claim("activations", plan[1] / 0.40e6, "0.40e6 bytes per token", 1.0, at_most=True),
        *([] if quick else on_a_rank("Qwen3-4B", made, counted) + on_a_rank(LARGE, large, counted_of(large))),
        *(
            Claim(f"a rollout of 8,192, optimiser_state {state}", totals[state] / CARD, "80 GB", 1.0, at_most=True)
            for state in ("host", "8bit")
        ),
    ])  # fmt: skip


if __name__ == "__main__":
    bench.one_thread()
    sys.exit(main())
