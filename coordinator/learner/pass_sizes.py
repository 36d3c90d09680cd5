"""Say how many tokens the passes of a step have at most, halve them where memory runs out, and remember them.

Rules
1. A step has a pass over each mini-batch with gradient, and with several mini-batches one before without. Each is cut
   into micro-batches of at most so many tokens.
2. Where one runs out of memory, its gradients are dropped, and it is repeated with half as many tokens; so are the
   later ones. A rollout is never split: once each has a micro-batch of its own, less memory means `TooLittleMemory`.
3. The journal has the tokens of each pass, as sums in another order have other last bits. A step that is made again
   uses these, never the memory of the moment; it halves nothing.
4. All ranks have the same sizes, and halve together (learner/ranks/rank_part.py).
"""

import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog
import torch

from echo2.engines.transformers.device_memory import release
from echo2.runtime.errors import LocalFault

T = TypeVar("T")

_log = structlog.get_logger("learner")


class TooLittleMemory(LocalFault):
    """The learner's device has too little memory for a step; no group of a batch is at fault."""


def too_long(tokens: int) -> TooLittleMemory:
    """Return the error of a rollout that does not fit by itself."""
    return TooLittleMemory(
        f"the memory is too small for one rollout of {tokens:,} tokens: end what else computes on the learner's "
        "device, set learner.recompute to always, learner.compute_dtype to bfloat16 or learner.optimiser_state to "
        "host or 8bit, or divide the model among more devices (learner.ranks)"
    )


class PassSizes:
    """The sizes of one step's passes. `given`: tokens of each, of a step that is made again; empty: `tokens` is for all
    until it is halved. `used`: tokens of each finished pass, in order."""

    def __init__(self, given: Sequence[int] = (), tokens: int = 0) -> None:
        self.given, self._tokens = list(given), tokens
        self.used: list[int] = []
        self.halvings = 0

    @property
    def tokens(self) -> int:
        """The most tokens of a micro-batch in the present pass."""
        return self.given[len(self.used)] if self.given else self._tokens

    def begin(self, tokens: int) -> None:
        """Let passes have so many tokens, unless theirs are given."""
        self._tokens = tokens

    def tokens_kept(self, tokens: int) -> int:
        """Return the tokens with which the next step begins: `tokens`, unless this one had to halve them."""
        return self._tokens if self.halvings else tokens

    def finish_pass(self) -> None:
        """Record that the present pass is finished."""
        self.used.append(self.tokens)

    def halve(self, longest: int) -> None:
        """Let the present pass, which ran out of memory, have half the tokens. `longest`: tokens of the longest
        rollout with its prompt. Raises TooLittleMemory (rules 2 and 3)."""
        if self.given:
            raise TooLittleMemory(
                f"the memory is too small for a step that was made in passes of {self.tokens:,} tokens and is to be "
                "made again: end what else computes on the learner's device"
            )
        if self._tokens <= longest:
            raise too_long(longest)
        self._tokens //= 2
        self.halvings += 1
        _log.warning("a pass ran out of memory", repeated_with_tokens=self._tokens)


def within_memory(work: Callable[[], T], clear: Callable[[], None], sizes: PassSizes, longest: int, device: str) -> T:
    """Return what `work` returns, which goes on where it was. `clear`: drops what an unfinished pass has left. Raises
    TooLittleMemory."""
    while True:
        try:
            return work()
        except torch.OutOfMemoryError:
            pass  # what its traceback holds is free only behind this block
        clear()
        free(device)
        sizes.halve(longest)


def free(device: str) -> None:
    """Free what nothing uses any more: models and passes have cycles."""
    gc.collect()
    release(torch.device(device))
