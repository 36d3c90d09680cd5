"""The engine calls of verification and evaluation, which engines/process/supervisor.py runs in another process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from echo2.engines.engine import Job, Loaded, Sample, SampleScore
from echo2.engines.process.messages import PackedSample
from echo2.engines.process.process import Play


class Scorer(Protocol):
    """The part of `engines.process.supervisor.SupervisedEngine` that scores and evaluates, under one version at a time.

    Every call may raise `ChildDied`, `ChildError` and `DiskFull`."""

    @property
    def loaded(self) -> Loaded | None:
        """The weights that its process has loaded; None if they must be loaded first, as after a crash or an error."""

    async def load(self, model: Path, weights: Path) -> Loaded: ...

    async def step_by(self, payload: Path, root: bytes, keep: int) -> Loaded: ...

    async def step_to(self, root: bytes) -> Loaded: ...

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]: ...

    async def generate_all(self, jobs: Sequence[Job]) -> list[list[Sample]]: ...

    async def generate_served(self, job: Job, play: Play) -> list[Sample]: ...

    async def renew(self) -> None:
        """End this process; the next call starts a new one."""
