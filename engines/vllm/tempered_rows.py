"""The choice of rows at a temperature other than 1, within vLLM's process, and the log-probabilities of their tokens.

Rules
1. Logits are brought to the temperature before the noise is added, by whatever adds it: the choice is that of
   engines.sampling.sampling.choose. Its logit becomes the greatest, so that vLLM takes it.
2. vLLM's own log-probabilities are of plain logits. Those at the temperature are kept here under the request's
   `kept_as`, by the token's place in the request, until `take` or `drop`. A token that vLLM computes again, as after a
   lack of memory or the next part of a prompt, replaces the first.
3. No step waits for them: they are copied to the host beside the steps, and read `STEPS_AHEAD` steps later, or with
   their request.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from echo2.engines.devices.host_transfers import download, upload
from echo2.engines.sampling import sampling
from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.engines.vllm.noise_request import NoiseRequest

STEPS_AHEAD: Final = 2
"""Steps that vLLM has under way at most: by then an older one is done."""


class _Step:
    """The log-probabilities of one step's rows."""

    def __init__(self, logprobs: Tensor) -> None:
        self._read = download([logprobs])

    @cached_property
    def logprobs(self) -> list[float]:
        (values,) = self._read()
        del self._read  # and its memory
        return values


_kept: dict[int, dict[int, tuple[_Step, int]]] = {}
_under_way: deque[_Step] = deque()


def choose_rows(
    logits: Tensor, asked: Sequence[tuple[int, NoiseRequest, int]], add_noise: Callable[[Tensor], Tensor]
) -> Tensor:
    """Make the choice of each row its greatest logit, in place, and return the logits, float32 [R, V]. `asked`: rows,
    their requests, and how many tokens each has; those at a temperature of 1 may be missing. `add_noise`: adds the
    noise of all rows that ask for it, in place."""
    drawn = [one for one in asked if one[1].temperature != PLAIN_TEMPERATURE]
    if not drawn:
        return add_noise(logits)
    rows = upload([row for row, _, _ in drawn], logits.device)
    tempered = sampling.temper(logits[rows], [noise.temperature for _, noise, _ in drawn])
    logits = add_noise(logits.index_copy_(0, rows, tempered))
    noisy = logits[rows]
    tokens = noisy.argmax(-1)
    logits.index_copy_(0, rows, noisy.scatter_(1, tokens[:, None], torch.inf))
    step = _Step(sampling.logprobs_of(tempered, tokens, noisy))
    for number, (_, noise, place) in enumerate(drawn):
        _kept.setdefault(noise.kept_as, {})[place] = step, number
    _under_way.append(step)
    while len(_under_way) > STEPS_AHEAD:
        _ = _under_way.popleft().logprobs
    return logits


def take(kept_as: int, count: int) -> list[float]:
    """Return the log-probabilities of a request's `count` tokens, and forget them; fewer where one was not kept."""
    kept = _kept.pop(kept_as, {})
    here = [kept[place] for place in range(count) if place in kept]
    return [step.logprobs[number] for step, number in here]


def drop(kept_as: int) -> None:
    """Forget what is kept of a request."""
    _kept.pop(kept_as, None)
