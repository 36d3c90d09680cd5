"""The seeded choice in vLLM, for its model runner V2. Load it as `PROCESSOR`. The rules are those of
engines.vllm.noise_v1, but for this one:

A token's number is read from the step's own layout: the tokens that its row sees, less those of the request's prompt.
The row of a prompt of which a part is still to be computed gets no noise: vLLM drops what is chosen for it.
"""

from typing import Any, Final

from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor

from echo2.engines.vllm.noise_request import NoiseRequest
from echo2.engines.vllm.tempered_rows import choose_rows

PROCESSOR: Final = "echo2.engines.vllm.noise_v2:SeededNoiseV2"


class SeededNoiseV2(LogitsProcessor):  # type: ignore[misc]
    """See the rules."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._prompt = req_states.prompt_len
        self._asked: dict[int, NoiseRequest] = {}
        """Place of a request -> its noise."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request whose arguments cannot be read. Raises ValueError."""
        NoiseRequest.read(sampling_params.extra_args)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take the noise of a request that gets a place; the place may have been another's."""
        noise = NoiseRequest.read(sampling_params.extra_args)
        self._asked.pop(req_idx, None)
        if noise is not None:
            self._asked[req_idx] = noise
        return noise is not None

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Add the noise to the rows that ask for it."""
        rows, asked = [], []
        for row, (place, seen) in enumerate(zip(ctx.idx_mapping_np, ctx.seq_lens_upper_bound_np, strict=True)):
            noise, number = self._asked.get(int(place)), int(seen) - int(self._prompt.np[place])
            if noise is not None and number >= 0:
                rows.append(row)
                asked.append((noise, number))
        return choose_rows(logits, rows, asked)
