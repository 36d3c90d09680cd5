"""What verification and evaluation ask of an engine. The process behind it is
coordinator/training/model_processes.py's."""

from pathlib import Path
from typing import Protocol

from engines.engine import Job, Loaded, Sample, SampleScore
from engines.messages import PackedSample


class Scorer(Protocol):
    """What the coordinator asks of engines.supervisor.SupervisedEngine, which re-scores and evaluates under one version
    at a time. Every call may raise `ChildDied`, `ChildError` and `DiskFull`."""

    @property
    def loaded(self) -> Loaded | None:
        """What its process has loaded; None where that is to be loaded, as after a crash or an error."""

    async def load(self, model: Path, weights: Path) -> Loaded: ...

    async def step_by(self, payload: Path, root: bytes, keep: int) -> Loaded: ...

    async def step_to(self, root: bytes) -> Loaded: ...

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]: ...

    async def generate_many(self, jobs: list[Job], *, greedy: bool) -> list[list[Sample]]: ...

    async def renew(self) -> None:
        """Let this process go; the next call finds a new one."""
