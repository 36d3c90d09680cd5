"""The two model processes as main sees them: who may be asked what, and how each is started again after a crash.

Rules
1. A crash of a child costs its work in progress and nothing else: the call under way raises `ChildDied`, the next one
   finds a new process.
2. A child that dies again and again is started after a pause that doubles up to `LONGEST_PAUSE` seconds.
3. Main passes paths and small messages, never tensors.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import msgspec
import structlog

from coordinator.learner import calls
from engines.calls import (
    ForwardCall,
    GenerateManyCall,
    GoCall,
    LoadCall,
    PackedSample,
    PackedScore,
    ProbeCall,
    Probed,
    ScoreCall,
)
from engines.child import Child, ChildDied
from engines.engine import Job, Loaded, Sample, SampleScore
from runtime.backoff import Backoff

LONGEST_PAUSE = 30.0
_RESTART = Backoff(0.25, LONGEST_PAUSE)
_HEALTHY_AFTER = 60.0  # seconds of life after which a crash counts as the first again

T = TypeVar("T")
Dtype = Literal["float32", "bfloat16"]
log = structlog.get_logger("coordinator")


class DiedComputing(ChildDied):
    """The learner is gone while it computed a batch, and nobody had told it to end."""


class Learner(Protocol):
    """coordinator.learner.calls, asynchronously. Every call may raise `ChildDied` and `ChildError`, after which `open`
    comes first, and `DiskFull`."""

    async def open(self, order: calls.Open) -> calls.Opened: ...

    async def step(self, batch: calls.Batch) -> calls.Stepped:
        """Raises `DiedComputing` where the death may be the batch's."""

    async def renew(self) -> None:
        """Let this process go; the next call finds a new one."""


class Scorer(Protocol):
    """An engine that re-scores and evaluates, under one version at a time: engines.engine.Engine, asynchronously. Every
    call may raise `ChildDied`, `ChildError` and `DiskFull`."""

    @property
    def held(self) -> Loaded | None:
        """What its process holds; None where that is to be loaded, as after a crash or an error."""

    async def load(self, model: Path, weights: Path) -> Loaded: ...

    async def forward(self, payload: Path, root: bytes, keep: int) -> Loaded: ...

    async def go(self, root: bytes) -> Loaded: ...

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]: ...

    async def generate_many(self, jobs: list[Job], *, greedy: bool) -> list[list[Sample]]: ...

    async def renew(self) -> None:
        """Let this process go; the next call finds a new one."""


class Supervised:
    """A child that is started when first called and again after it died (rules 1 and 2)."""

    def __init__(
        self,
        argv: list[str],
        *,
        name: str,
        env: Mapping[str, str],
        clock: Callable[[], float],
        on_death: Callable[[str], None] = lambda fault: None,
    ) -> None:
        self._argv, self._name, self._env, self._clock, self._on_death = argv, name, env, clock, on_death
        self._child: Child | None = None
        self._starting = asyncio.Lock()
        self._pause, self._started = 0.0, 0.0
        self.generation = 0
        self.on_event: Callable[[str, bytes], None] | None = None

    async def call(self, method: str, body: msgspec.Struct, type_: type[T]) -> T:
        child = await self._alive()
        try:
            return await child.call(method, body, type_)
        except ChildDied as death:
            if self._child is child:
                self._child = None
                self._on_death(str(death))
                log.warning("a model process died", process=self._name, returncode=death.returncode)
            raise

    async def stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.stop()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def incarnation(self) -> int | None:
        """Which life of the process this is, None between two: what was told to another life is forgotten."""
        return self.generation if self._child else None

    async def _alive(self) -> Child:
        async with self._starting:
            if self._child is not None:
                return self._child
            if self.generation:
                lived = self._clock() - self._started
                self._pause = 0.0 if lived > _HEALTHY_AFTER else _RESTART.after(self._pause)
                await asyncio.sleep(self._pause)
            child = Child(self._argv, name=self._name, env=self._env)
            if self.on_event is not None:
                child.events(self.on_event)
            await child.start()
            self._child, self._started = child, self._clock()
            self.generation += 1
            return child


class LearnerChild:
    """The learner in a process of its own. It says when it begins to compute a batch."""

    def __init__(self, child: Supervised) -> None:
        self.child = child
        self._computing: int | None = None
        child.on_event = self._heard

    async def open(self, order: calls.Open) -> calls.Opened:
        return await self.child.call("open", order, calls.Opened)

    async def step(self, batch: calls.Batch) -> calls.Stepped:
        self._computing = None
        try:
            return await self.child.call("step", batch, calls.Stepped)
        except ChildDied as death:
            if self._begun(batch) and not death.told:
                raise DiedComputing(death.name, death.returncode, death.stderr) from death
            raise

    async def renew(self) -> None:
        await self.child.stop()

    def _begun(self, batch: calls.Batch) -> bool:
        return self._computing == batch.step

    def _heard(self, method: str, body: bytes) -> None:
        if method == calls.BEGUN:
            self._computing = msgspec.msgpack.decode(body, type=calls.Begun).step


class ScorerChild:
    """The scorer in a process of its own: the same engine host that nodes run."""

    def __init__(self, child: Supervised, *, device: str, dtype: Dtype) -> None:
        self.child = child
        self._probe = ProbeCall(device=device, dtype=dtype)
        self._held: tuple[int, Loaded] | None = None

    @property
    def held(self) -> Loaded | None:
        return self._held[1] if self._held is not None and self._held[0] == self.child.incarnation else None

    async def load(self, model: Path, weights: Path) -> Loaded:
        self._held = None
        await self.child.call("probe", self._probe, Probed)
        return await self._moved("load", LoadCall(model=str(model), weights=str(weights)))

    async def forward(self, payload: Path, root: bytes, keep: int) -> Loaded:
        return await self._moved("forward", ForwardCall(payload=str(payload), root=root, keep=keep))

    async def go(self, root: bytes) -> Loaded:
        return await self._moved("go", GoCall(root=root))

    async def _moved(self, method: str, body: msgspec.Struct) -> Loaded:
        self._held = None
        loaded = await self.child.call(method, body, Loaded)
        incarnation = self.child.incarnation
        self._held = None if incarnation is None else (incarnation, loaded)
        return loaded

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]:
        scores = await self.child.call("score", ScoreCall(job=job, samples=samples), list[PackedScore])
        return [score.score() for score in scores]

    async def generate_many(self, jobs: list[Job], *, greedy: bool) -> list[list[Sample]]:
        return await self.child.call("generate_many", GenerateManyCall(jobs=jobs, greedy=greedy), list[list[Sample]])

    async def renew(self) -> None:
        await self.child.stop()
