"""The scorer's process with an engine that knows the right completion: `scorer=benchmarks.flood.stub_scorer`
(runtime/stand_ins.py).

It differs from benchmarks/load/stub_scorer.py in two points. Groups are scored by the rule of
benchmarks/flood/engine.py, so that fabricated ones are refused, and a token takes `PER_TOKEN` seconds.
"""

import time
from typing import Final

from benchmarks.flood.engine import scored
from benchmarks.load.stub_scorer import StubEngine, StubHost
from echo2.engines.engine import Job, Sample, SampleScore
from echo2.engines.process import host
from echo2.engines.process.messages import ProbeCall, Probed

PER_TOKEN: Final = 0.4 / 166
"""Seconds: 0.4 for a group of 4 samples of 40 tokens with a prompt of 6, as commit 439044d needed."""


class JudgingEngine(StubEngine):
    """An `engines.engine.Engine` without a model, which distinguishes honest groups from fabricated ones."""

    def score(self, job: Job, samples: list[Sample]) -> list[SampleScore]:
        time.sleep(PER_TOKEN * (len(job.prompt) + sum(len(one.tokens) for one in samples)))
        root = self._folder().root
        return [scored(root, job.seeds, one.tokens) for one in samples]


class JudgingHost(StubHost):
    """The engine host, with the judging engine."""

    def probe(self, call: ProbeCall) -> Probed:
        probed = super().probe(call)
        self._engine = JudgingEngine()
        return probed


def main() -> None:
    """Serve the engine's calls until the daemon ends."""
    host.main(JudgingHost)
