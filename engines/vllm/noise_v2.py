"""The seeded choice in vLLM, for its model runner V2. Load it as `PROCESSOR`. The rules are those of
engines.vllm.noise_v1, but for these:

1. A token's number is read from the step's own layout on the device: the tokens that its row sees, less those of the
   request's prompt. The row of a prompt of which a part is still to be computed gets some noise: vLLM drops what is
   chosen for it.
2. The keys are on the device before they are needed (engines/vllm/noise_keys.py). The host counts from the step's
   layout when the next ones are due; it reads nothing from the device.
3. On a GPU one kernel adds the noise (engines/vllm/noise_kernel.py), where it proves to work.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor

from echo2.engines.devices.host_transfers import upload
from echo2.engines.sampling import sampling
from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.engines.vllm.noise_keys import NoiseKeys
from echo2.engines.vllm.noise_request import NoiseRequest
from echo2.engines.vllm.tempered_rows import choose_rows

if TYPE_CHECKING:
    from echo2.engines.vllm.noise_kernel import AddNoise

PROCESSOR: Final = "echo2.engines.vllm.noise_v2:SeededNoiseV2"


class SeededNoiseV2(LogitsProcessor):  # type: ignore[misc]
    """See the rules."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._prompt, self._device = req_states.prompt_len, req_states.device
        self._keys = NoiseKeys(req_states.max_num_reqs, req_states.device)
        self._every = torch.arange(req_states.max_num_reqs, device=self._device)
        """The rows of a step in which all ask for noise, and more."""
        self._kernel = _kernel(self._device)
        self._tempered: dict[int, NoiseRequest] = {}
        """Requests at another temperature than 1, by place."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request whose arguments cannot be read. Raises ValueError."""
        NoiseRequest.read(sampling_params.extra_args)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take the noise of a request that gets a place; the place may have been another's."""
        noise = NoiseRequest.read(sampling_params.extra_args)
        self._keys.begin(req_idx, noise)
        self._tempered.pop(req_idx, None)
        if noise is not None and noise.temperature != PLAIN_TEMPERATURE:
            self._tempered[req_idx] = noise
        return noise is not None

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Add the noise to the rows that ask for it, at their temperatures."""
        places = ctx.idx_mapping_np
        seen = ctx.seq_lens_upper_bound_np.astype(np.int64) - self._prompt.np[places]
        self._keys.hash_ahead(places, seen)
        asking = self._keys.has_noise[places]
        if not asking.any():
            return logits
        place = ctx.expanded_idx_mapping.long()
        number = (ctx.pos + 1 - self._prompt.gpu[place]).long()
        rows = None if asking.all() else upload(np.flatnonzero(asking), self._device)
        key = self._keys.keys(place, number) if rows is None else self._keys.keys(place[rows], number[rows])
        return choose_rows(logits, self._choices(places, seen), lambda logits: self._add(logits, key, rows))

    def _choices(self, places: NDArray[np.int64], seen: NDArray[np.int64]) -> list[tuple[int, NoiseRequest, int]]:
        """Return the rows at another temperature than 1 that choose a token, as `choose_rows` takes them."""
        rows = enumerate(zip(places.tolist(), seen.tolist(), strict=True)) if self._tempered else ()
        return [
            (row, self._tempered[place], number)
            for row, (place, number) in rows
            if place in self._tempered and number >= 0
        ]

    def _add(self, logits: Tensor, key: Tensor, rows: Tensor | None) -> Tensor:
        """Add the noise of these keys, `rows` as in `sampling.add_noise_of`."""
        if self._kernel is None:
            return sampling.add_noise_of(logits, key, rows)
        return self._kernel(logits, key, self._every[: len(key)] if rows is None else rows)


def _kernel(device: torch.device) -> "AddNoise | None":
    """Return the kernel that adds noise, on a GPU on which it works."""
    if device.type != "cuda":
        return None
    module = import_module("echo2.engines.vllm.noise_kernel")
    kernel: AddNoise | None = module.working_kernel(device)
    return kernel
