"""A scorer's process that takes a given time: `scorer=benchmarks.scorers.slow_scorer` (runtime/stand_ins.py).

All but the teacher-forced pass is that of benchmarks/load/stub_scorer.py. A token takes `VARIABLE` seconds.
"""

import os
import time
from typing import Final

from benchmarks.load.stub_scorer import StubEngine, StubHost
from echo2.engines.engine import Job, Sample, SampleScore
from echo2.engines.process import host
from echo2.engines.process.messages import ProbeCall, Probed

VARIABLE: Final = "ECHO2_BENCH_TOKEN_SECONDS"


class SlowEngine(StubEngine):
    """An `engines.engine.Engine` that sleeps for each token, and confirms every claim."""

    def score(self, job: Job, samples: list[Sample]) -> list[SampleScore]:
        tokens = len(job.prompt) + sum(len(one.tokens) for one in samples)
        time.sleep(float(os.environ[VARIABLE]) * tokens)
        return super().score(job, samples)


class SlowHost(StubHost):
    """The engine host, with the slow engine."""

    def probe(self, call: ProbeCall) -> Probed:
        probed = super().probe(call)
        self._engine = SlowEngine()
        return probed


def main() -> None:
    """Serve the engine's calls until the daemon ends."""
    host.main(SlowHost)
