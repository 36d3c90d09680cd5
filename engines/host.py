"""`python -m engines.host`: the child process that holds one engine. Used by nodes, and by the coordinator's scorer.

torch is imported only when the first call asks for a device: the parent's environment stands by then, and what a
library prints while it is imported can no longer reach the pipe.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engines.calls import (
    ForwardCall,
    GenerateCall,
    GenerateManyCall,
    GoCall,
    LoadCall,
    PackedScore,
    ProbeCall,
    Probed,
    ScoreCall,
)
from engines.child import Pipe
from engines.engine import Engine, EngineError, Loaded, Sample


class Host:
    """Calls to methods of one engine."""

    def __init__(self) -> None:
        self._held: Engine | None = None

    def handlers(self) -> Mapping[str, tuple[Any, Callable[[Any], Any]]]:
        return {
            "probe": (ProbeCall, self.probe),
            "load": (LoadCall, self.load),
            "forward": (ForwardCall, self.forward),
            "go": (GoCall, self.go),
            "generate": (GenerateCall, self.generate),
            "generate_many": (GenerateManyCall, self.generate_many),
            "score": (ScoreCall, self.score),
        }

    def probe(self, call: ProbeCall) -> Probed:
        """A second probe makes a new engine; the weights of the old one are let go."""
        import torch

        from engines.devices import choose
        from engines.transformers import TransformersEngine

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        device = choose(call.device)
        self._held = TransformersEngine(device.kind, call.dtype)
        engine_class = f"transformers/{call.dtype}/{device.kind.partition(':')[0]}"
        return Probed(kind=device.kind, name=device.name, why=device.why, engine_class=engine_class)

    def load(self, call: LoadCall) -> Loaded:
        return self._engine().load(Path(call.model), Path(call.weights))

    def forward(self, call: ForwardCall) -> Loaded:
        return self._engine().forward(Path(call.payload), call.root, call.keep)

    def go(self, call: GoCall) -> Loaded:
        return self._engine().go(call.root)

    def generate(self, call: GenerateCall) -> list[Sample]:
        return self._engine().generate(call.job)

    def generate_many(self, call: GenerateManyCall) -> list[list[Sample]]:
        return self._engine().generate_many(call.jobs, greedy=call.greedy)

    def score(self, call: ScoreCall) -> list[PackedScore]:
        scores = self._engine().score(call.job, [one.sample() for one in call.samples])
        return [PackedScore.of(score) for score in scores]

    def _engine(self) -> Engine:
        if self._held is None:
            raise EngineError("the first call must be probe")
        return self._held


def main() -> None:
    Pipe().serve(Host().handlers())


if __name__ == "__main__":
    main()
