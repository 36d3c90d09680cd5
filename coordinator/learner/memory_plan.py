"""Say what a run's model takes of a card's memory, and which settings make it fit. Pure.

1. The learner's state is 4 bytes per parameter where it computes in bfloat16, 6 in float32, and AdamW's moments: 8
   bytes, 2.03 in 8 bits, none where they are on the host. A pass adds 6, or 4, of gradients. All are divided among
   ranks.
2. Activations are of one rollout at least: a rollout is never split (coordinator/learner/batches/batch.py). Their
   figures are counted (coordinator/learner/memory_count.py).
3. The head has its weight's gradient in float32, and twice the logits of some thousand rows. Embedding and head are
   whole on each rank. So is one layer at a time, with the next one's weights: when its gradients are summed, in
   float32, its activations have gone.
4. A scorer has the weights in float32, a calibration two more models: one in 16 bits, one in float32. All stand on
   `learner.device` where `scorer.devices` names no other, so all are counted.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from echo2.coordinator.learner.messages import MemoryCounted
from echo2.runtime.errors import LocalFault

CONTEXT_BYTES: Final = 1_000_000_000
"""Bytes of a card that its driver and libraries take."""
HEAD_ROWS: Final = 4096
HEAD_ELEMENTS: Final = 1 << 29
"""Rows and logits of a chunk of the head on a GPU (coordinator/learner/objective/fused_head.py)."""
RANKS: Final = (1, 2, 4, 8)
MOMENT_BYTES: Final = {"float32": 8.0, "host": 0.0, "8bit": 2 + 2 * 4 / 256}
"""Kind of `learner.optimiser_state` -> bytes per parameter on the card (coordinator/learner/moments.py)."""
_UNITS: Final = {"GB": 10**9, "GiB": 1 << 30}


class MemorySettings(NamedTuple):
    """Settings of the learner. `compute`: float32 or bfloat16. `recompute`: whether layers are computed again. `state`:
    `optimiser_state`. `ranks`: number of cards."""

    compute: str = "bfloat16"
    recompute: bool = True
    state: str = "float32"
    ranks: int = 1

    def __str__(self) -> str:
        recompute = "always" if self.recompute else "never"
        return f"ranks {self.ranks}, optimiser_state {self.state}, recompute {recompute}, compute_dtype {self.compute}"


class MemoryParts(NamedTuple):
    """Bytes on each card of the learner. `collected`: bytes of what other ranks have, for a pass."""

    state: float
    gradients: float
    activations: float
    head: float
    collected: float

    @property
    def total(self) -> float:
        return sum(self)


def parts_of(counted: MemoryCounted, tokens: int, choice: MemorySettings) -> MemoryParts:
    """Return the bytes of a learner. `tokens`: tokens of a micro-batch, at least those of the longest rollout."""
    half = choice.compute == "bfloat16"
    each = counted.parameters / choice.ranks
    kept = counted.again + counted.layer if choice.recompute else counted.layers
    rows = min(tokens, max(HEAD_ROWS, HEAD_ELEMENTS // counted.words))
    weight = counted.words * counted.width
    return MemoryParts(
        ((4 if half else 6) + MOMENT_BYTES[choice.state]) * each,
        (6 if half else 4) * each,
        tokens * kept,
        8 * rows * counted.words + 4 * weight,
        _bytes_from_others(counted, tokens, choice),
    )


def _bytes_from_others(counted: MemoryCounted, tokens: int, choice: MemorySettings) -> float:
    """Return the bytes of what other ranks have, as far as they are needed beside a layer's activations (rule 3)."""
    if choice.ranks == 1:
        return 0.0
    size = 2 if choice.compute == "bfloat16" else 4
    layer = (3 * size + 4) * counted.layer_parameters - choice.recompute * tokens * counted.layer
    return 2 * size * counted.words * counted.width + max(0.0, layer)


def card_bytes(text: str) -> int:
    """Return the bytes of a card: `80GB`, `24GiB`. Raises `LocalFault`."""
    match = re.fullmatch(r"(\d{1,4}(?:\.\d+)?) ?(GB|GiB)", text)
    if match is None or float(match[1]) <= 0:
        raise LocalFault(f"--card {text!r} is not a memory: write it as 80GB or 24GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def choices(compute: str) -> Iterator[MemorySettings]:
    """Yield settings, those first that change least of the defaults on a GPU."""
    for ranks in RANKS:
        for state in MOMENT_BYTES:
            yield MemorySettings(compute, state=state, ranks=ranks)


def fits(counted: MemoryCounted, tokens: int, card: int, choice: MemorySettings) -> bool:
    """Tell whether a learner fits on cards of `card` bytes."""
    return parts_of(counted, tokens, choice).total <= card - CONTEXT_BYTES


def describe_memory(counted: MemoryCounted, tokens: int, card: int) -> list[str]:
    """Return the table of `plan` as lines. `card`: bytes of a card."""
    first = parts_of(counted, tokens, MemorySettings())
    scorer = 4 * counted.parameters
    lines = [
        f"memory of a model of {counted.parameters / 1e9:.2f}e9 parameters, rollouts of {tokens:,} tokens, in GB:",
        f"  learner, on one card: state {first.state / 1e9:.1f}, gradients {first.gradients / 1e9:.1f}, activations "
        f"{first.activations / 1e9:.1f} ({(counted.again + counted.layer) / 1e6:.3f} MB per token), "
        f"head {first.head / 1e9:.1f}",
        f"  activations without learner.recompute {tokens * counted.layers / 1e9:.1f}; KL base (learner.kl_coefficient "
        f"above 0) {2 * counted.parameters / 1e9:.1f}",
        f"  scorer {scorer / 1e9:.1f}, calibration while it lasts {6 * counted.parameters / 1e9:.1f} more: on the same "
        "device, or those of scorer.devices",
        f"cards of {card / 1e9:.1f} GB:",
    ]
    for choice in choices("bfloat16"):
        alone = parts_of(counted, tokens, choice).total
        free = card - CONTEXT_BYTES - alone
        beside = "with the scorer beside it" if free >= scorer else "without the scorer on its card"
        verdict = f"fits, {beside}" if free >= 0 else f"lacks {-free / 1e9:.1f}"
        lines.append(f"  learner.{choice}: {alone / 1e9:.1f}, {verdict}")
    return lines


def refusal(counted: MemoryCounted, tokens: int, card: int, chosen: MemorySettings) -> str:
    """Return why a run cannot train on its card, with the setting that would do; "" if it can."""
    if fits(counted, tokens, card, chosen):
        return ""
    needed = parts_of(counted, tokens, chosen).total
    other = next((one for one in choices("bfloat16") if fits(counted, tokens, card, one)), None)
    advice = f"with {other} it fits" if other else f"no setting for {RANKS[-1]} cards or fewer makes it fit"
    return (
        f"the learner needs {needed / 1e9:.1f} GB of a card for rollouts of {tokens:,} tokens ({chosen}), and the card "
        f"has {card / 1e9:.1f} GB: {advice}"
    )
