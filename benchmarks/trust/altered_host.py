"""The engine's process, whose transformers engine is changed by variables: `benchmarks.trust.altered_host`.

`PLAIN`: no layer is packed. `SHIFT`: the noise of a rollout's token n is that of token n + SHIFT: by it a node goes on
after tokens that it chose by itself, as if it had sampled them.
"""

import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from benchmarks.trust.machines import PLAIN, SHIFT
from echo2.engines.process import host
from echo2.engines.process.messages import ProbeCall, Probed
from echo2.engines.transformers.decoder import Decoder
from echo2.engines.transformers.engine import TransformersEngine
from echo2.engines.transformers.packed_linear import PackedLinear


class ShiftedDecoder(Decoder):
    """A decoder that takes the noise of a later token. `shift`: how much later."""

    shift = 0

    def _choose(self, logits: Tensor, choices: Sequence[tuple[bytes, int, bool]]) -> tuple[Tensor, Tensor]:
        return super()._choose(logits, [(seed, number + self.shift, greedy) for seed, number, greedy in choices])


class AlteredEngine(TransformersEngine):
    """The engine on transformers, as `PLAIN` and `SHIFT` tell."""

    def decoder(self, model: Any) -> Decoder:
        """See `TransformersEngine`."""
        if os.environ.get(PLAIN):
            unpack(model)
        shifted = ShiftedDecoder(model, self._device)
        shifted.shift = int(os.environ.get(SHIFT, "0"))
        return shifted


class AlteredHost(host.EngineHost):
    """The engine host, with the altered engine."""

    def probe(self, call: ProbeCall) -> Probed:
        """See `EngineHost`."""
        probed = super().probe(call)
        self._engine = AlteredEngine(probed.kind, call.dtype)
        return probed


def unpack(model: nn.Module) -> None:
    """Put a plain layer in the place of each packed one. They share their parameters."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, PackedLinear):
            plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
            plain.weight, plain.bias = layer.weight, layer.bias
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, plain)


def main() -> None:
    """Serve the engine's calls until the parent ends."""
    host.main(AlteredHost)
