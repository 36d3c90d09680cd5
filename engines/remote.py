"""An engine in a child process, seen from a daemon's event loop: engines.engine.Engine with `await`.

Any call raises engines.child.ChildError (the engine refused), weights.errors.DiskFull, or ChildDied (it is gone: start
a new one).
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

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
    packed,
)
from engines.child import Child
from engines.engine import Job, Loaded, Sample, SampleScore

ROOT = Path(__file__).resolve().parent.parent


def python_path(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """`env`, and a PYTHONPATH by which a child finds these packages wherever the daemon was started."""
    given = dict(env or {})
    path = given.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return {**given, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), path]))}


def _absolute(path: Path) -> str:
    return os.path.abspath(path)


class RemoteEngine:
    """`async with RemoteEngine() as engine:` starts the child and ends it. `child`: for pid, exited and stop."""

    def __init__(self, *, name: str = "engine", env: Mapping[str, str] | None = None) -> None:
        self.child = Child([sys.executable, "-m", "engines.host"], name=name, env=python_path(env))

    async def __aenter__(self) -> "RemoteEngine":
        await self.child.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.child.stop()

    async def probe(self, device: str = "auto", dtype: Literal["float32", "bfloat16"] = "float32") -> Probed:
        return await self.child.call("probe", ProbeCall(device=device, dtype=dtype), Probed)

    async def load(self, model: Path, weights: Path) -> Loaded:
        call = LoadCall(model=_absolute(model), weights=_absolute(weights))
        return await self.child.call("load", call, Loaded)

    async def forward(self, payload: Path, root: bytes, keep: int) -> Loaded:
        call = ForwardCall(payload=_absolute(payload), root=root, keep=keep)
        return await self.child.call("forward", call, Loaded)

    async def go(self, root: bytes) -> Loaded:
        return await self.child.call("go", GoCall(root=root), Loaded)

    async def generate(self, job: Job) -> list[Sample]:
        return await self.child.call("generate", GenerateCall(job=job), list[Sample])

    async def generate_many(self, jobs: list[Job], *, greedy: bool = False) -> list[list[Sample]]:
        return await self.child.call("generate_many", GenerateManyCall(jobs=jobs, greedy=greedy), list[list[Sample]])

    async def score(self, job: Job, samples: list[Sample]) -> list[SampleScore]:
        call = ScoreCall(job=job, samples=packed(samples))
        return [one.score() for one in await self.child.call("score", call, list[PackedScore])]
