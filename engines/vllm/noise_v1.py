"""The seeded choice in vLLM, for its model runner V1: a logits processor. Load it as `PROCESSOR`.

Rules
1. The noise of engines.sampling.sampling is added to the logits, and vLLM takes the greatest: the choice is the rule's
   own. Rows at another temperature than 1: engines.vllm.tempered_rows.
2. A token's number is the request's `first` (engines.vllm.noise_request) and the number of tokens that it has
   generated, which is the length of a list of vLLM's own. With asynchronous scheduling the list has a placeholder for a
   token that is chosen and has not reached the host: its length is exact, and the tokens are not read
   (engines/vllm/resident_engine.py, rule 7). Speculative decoding would make it wrong.
3. With `raw_logprobs` vLLM computes log-probabilities before processors run: they are those of the plain logits.
"""

from typing import Any, Final

from torch import Tensor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.logits_processor.interface import LogitsProcessor

from echo2.engines.devices.host_transfers import upload
from echo2.engines.sampling import sampling
from echo2.engines.vllm.noise_request import NoiseRequest
from echo2.engines.vllm.tempered_rows import choose_rows

PROCESSOR: Final = "echo2.engines.vllm.noise_v1:SeededNoise"


class SeededNoise(LogitsProcessor):  # type: ignore[misc]
    """See the rules."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._rows: dict[int, tuple[NoiseRequest, list[int]]] = {}
        """Row -> its noise, and vLLM's list of the tokens that it has generated."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request whose arguments cannot be read. Raises ValueError."""
        NoiseRequest.read(sampling_params.extra_args)

    def is_argmax_invariant(self) -> bool:
        """Tell vLLM that greedy requests need it."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow the rows that begin, move and end."""
        process_dict_updates(self._rows, batch_update, _begin_noise)

    def apply(self, logits: Tensor) -> Tensor:
        """Add the noise to the rows that ask for it."""
        rows = sorted(self._rows)
        if not rows:
            return logits
        asked = [(noise, len(tokens)) for noise, tokens in map(self._rows.__getitem__, rows)]
        keys = sampling.keys([(noise.seed, noise.first + place) for noise, place in asked], logits.device)
        places = None if len(rows) == len(logits) else upload(rows, logits.device)
        drawn = [(row, *one) for row, one in zip(rows, asked, strict=True)]
        return choose_rows(logits, drawn, lambda logits: sampling.add_noise_of(logits, keys, places))


def _begin_noise(params: Any, prompt: list[int] | None, tokens: list[int]) -> tuple[NoiseRequest, list[int]] | None:
    noise = NoiseRequest.read(params.extra_args)
    return None if noise is None else (noise, tokens)
