"""Measure what a pass takes of a GPU's memory, and say how many tokens its free memory holds.

Rules
1. Two passes of the layers with different numbers of tokens are measured by their peaks: the difference is what a token
   takes, the rest what each pass takes: gradients, and layers that are collected from other ranks.
2. The head is computed for a part of the tokens at a time (learner/objective/fused_head.py). Its memory is counted.
3. On a CPU nothing is measured: memory of the host is not found out by running out of it.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from echo2.coordinator.learner.model import head_of, within
from echo2.coordinator.learner.objective.fused_head import chunk_rows
from echo2.coordinator.learner.optimiser import Optimiser
from echo2.engines.transformers.device_memory import free_memory

MEASURED_KINDS: Final = ("cuda", "xpu")
PROBE_TOKENS: Final = (512, 1536)
FREE_SHARE: Final = 0.9
"""Share of the free memory that is planned with; the rest is lost between blocks of different sizes."""


class PassMemory(NamedTuple):
    """The memory of a pass, bytes. `fixed`: bytes whatever its tokens. `token`: bytes of each. `row`: bytes of each
    row of the head, of which there are `rows` at most."""

    fixed: int
    token: int
    row: int
    rows: int

    def bytes_of(self, tokens: int) -> int:
        return self.fixed + tokens * self.token + min(tokens, self.rows) * self.row

    def fitting(self, tokens: int, free: int) -> int:
        """Return `tokens`, halved until a pass of so many fits into `free` bytes, or is a single token."""
        while tokens > 1 and self.bytes_of(tokens) > FREE_SHARE * free:
            tokens //= 2
        return tokens

    def lacks(self, tokens: int, device: torch.device) -> bool:
        """Tell whether a pass of so many tokens does not fit into the present free memory of a device."""
        return self.bytes_of(tokens) > free_memory(device)

    def fitting_now(self, tokens: int, device: torch.device) -> int:
        """Return the same for the present free memory of a device."""
        return self.fitting(tokens, free_memory(device))


def measure(model: PreTrainedModel, optimiser: Optimiser) -> PassMemory | None:
    """Measure the passes of a model (rules 1 and 2); None: not on this device. With several ranks all call it."""
    if model.device.type not in MEASURED_KINDS:
        return None
    small, large = (_peak(model, optimiser, tokens) for tokens in PROBE_TOKENS)
    token = max(0, large - small) // (PROBE_TOKENS[1] - PROBE_TOKENS[0])
    words, width = head_of(model).linear.weight.shape
    sums = optimiser.gradient_bytes + 4 * words * width
    return PassMemory(
        max(0, small - token * PROBE_TOKENS[0]) + sums, token, 8 * words, chunk_rows(words, model.device.type)
    )


def _peak(model: PreTrainedModel, optimiser: Optimiser, tokens: int) -> int:
    """Return the most bytes that a pass of the layers takes beside what there is before."""
    device = torch.get_device_module(model.device)
    ids = torch.zeros((1, tokens), dtype=torch.int64, device=model.device)
    device.reset_peak_memory_stats(model.device)
    before = device.memory_allocated(model.device)

    def forward() -> Tensor:
        total: Tensor = model.base_model(ids, use_cache=False).last_hidden_state.sum()
        return total

    torch.autograd.backward(within(model, forward))
    optimiser.drop_gradients()
    return int(device.max_memory_allocated(model.device)) - int(before)
