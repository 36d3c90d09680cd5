"""A load that goes on tells of it, so that patience counts from its last sign."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo2.engines.batch.batch_engine import BatchEngine
from echo2.engines.batch.stepped_weights import SteppedWeights
from echo2.engines.engine import EngineRows
from echo2.engines.process import host, trials
from echo2.engines.process.candidates import Candidate
from echo2.engines.rate import Rate, Workload
from tests.support.bigram import random_table, write_table

WORK = Workload(tasks=(), limit=16, group=4, eos=0)
CPU = Candidate(engine="transformers", dtype="float32", device="cpu", hardware="a CPU")


class SlowProcess:
    """A process whose load takes five times the patience. `tells`: whether it tells of its progress."""

    def __init__(self, tells: bool) -> None:
        self._tells, self._heard = tells, 0.0

    def aim(self, engine: str) -> "SlowProcess":
        return self

    @property
    def silent_seconds(self) -> float:
        return asyncio.get_running_loop().time() - self._heard

    async def start(self) -> None:
        pass

    async def stop(self, grace: float) -> None:
        pass

    async def probe(self, device: str, dtype: str, engine: str) -> None:
        self._heard = asyncio.get_running_loop().time()

    async def load(self, model: Path, weights: Path) -> None:
        self._heard = asyncio.get_running_loop().time()
        for _ in range(20):
            await asyncio.sleep(0.05)
            if self._tells:
                self._heard = asyncio.get_running_loop().time()

    async def rate(self, model: Path, workload: Workload, seconds: float) -> Rate:
        return Rate(tokens=10, seconds=1.0, cpu_seconds=1.0, rows=1)


@pytest.mark.parametrize(("tells", "fault"), [(True, ""), (False, "no answer within 0 s")])
async def test_a_load_that_tells_of_its_progress_may_take_longer_than_the_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tells: bool, fault: str
) -> None:
    monkeypatch.setattr(trials, "SILENT_SECONDS", 0.2)
    make: Any = lambda: SlowProcess(tells)  # noqa: E731
    (trial,) = await trials.run_trials(make, [CPU], tmp_path, tmp_path, WORK)
    assert trial.fault == fault


class Told(BatchEngine[Any]):
    """An engine whose weights are read, and whose model is never built."""

    def build(self, model: Path, weights: SteppedWeights) -> Any:
        raise RuntimeError("the weights are read")

    def score(self, job: Any, samples: Any) -> Any:
        raise NotImplementedError


def test_an_engine_tells_as_it_reads_its_weights_and_its_host_once_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_table(tmp_path / "table.safetensors", random_table(0, 64))
    engine, told, notified = Told(), list[float](), list[EngineRows]()
    engine.on_progress = lambda: told.append(0.0)
    with pytest.raises(RuntimeError, match="are read"):
        engine.load(tmp_path, table.path)
    assert told
    now = np.arange(0.0, 100.0, 10.0)
    serving = host.EngineHost(notified.append)
    for seconds in now:
        monkeypatch.setattr(host.time, "monotonic", lambda seconds=seconds: 1e6 + seconds)
        serving._sign()
    assert len(notified) == 3
