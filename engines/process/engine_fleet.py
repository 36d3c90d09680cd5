"""The engines of one node, one per device, which share one folder of weights.

Rules
1. Each engine has a process, weights in memory and a version of its own. It generates under the version that it has
   loaded, whatever the others do.
2. The folder on disk is moved to another version by the engine that is free first (`exclusive`), with no other engine
   reading it; one that is behind goes to the folder's version first. The others follow, each once its own groups have
   ended, by the changes that the folder keeps (`keep_up`).
   a. The folder may be moved ahead of all engines, by this process, while their groups are finished (`exclusive`): the
      payload is decoded, checked and written meanwhile, and the engine only changes its memory then. There is one copy
      of the weights in memory all the time (docs/adr/0018-one-copy-of-the-weights.md).
   b. An engine that dies meanwhile comes back under the folder's version, and its groups are given back.
3. An engine that cannot work is out: it is started again after growing pauses (`ENGINE_BACKOFF`), while the others
   work. The node ends with `EngineUnusable` only when every engine is out at the same time.
4. With one engine all this is that engine alone.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import anyio.to_thread
import structlog

from echo2.engines.engine import Dtype, EngineUnusable
from echo2.engines.process.messages import Probed
from echo2.engines.process.version_lock import VersionLock
from echo2.engines.process.versioned import LoadedVersion, VersionedEngine
from echo2.runtime.backoff import Backoff
from echo2.runtime.child import ChildError
from echo2.runtime.errors import DiskFull
from echo2.weights.errors import WeightsError
from echo2.weights.logged_weights import open_weights

STEPS_KEPT: Final = 16
"""Steps of the folder that a slower engine can catch up with; one further behind loads the weights anew."""
ENGINE_BACKOFF: Final = Backoff(5.0, 300.0)
"""Seconds until an engine that is out is started again."""

_log = structlog.get_logger("node")


class FolderStep(NamedTuple):
    """A step of the folder of weights by a diff. `to`: the version after it."""

    payload: Path
    to: LoadedVersion


class EngineFleet:
    """Engines that move together, in the order of their devices: the first one that works stands for all in a
    greeting. It offers what node/versions and node/connectivity need of a `VersionedEngine`."""

    def __init__(self, engines: Sequence[VersionedEngine]) -> None:
        """`engines`: engines at least one."""
        self.engines = list(engines)
        self.on_corrupt: Callable[[LoadedVersion], None] = lambda version: None
        self.out: dict[VersionedEngine, str] = {}
        """Engines that are out, with the reason."""
        self._leader: VersionedEngine | None = None
        self._damaged = False
        """Whether the folder was found damaged, and not replaced since."""
        self._moved = asyncio.Event()
        self._ahead: LoadedVersion | None = None
        """The version to which the folder was moved ahead of the engines (rule 2a)."""
        folder = VersionLock()
        for engine in self.engines:
            engine.on_corrupt = self.report_damage
            engine.on_disk = lambda: self.current
            engine.folder = folder
            engine.keep = STEPS_KEPT if len(self.engines) > 1 else 0
        self._folder = folder

    @property
    def first(self) -> VersionedEngine:
        """The first engine that is not out; the first of all where all are."""
        return next((one for one in self.engines if one not in self.out), self.engines[0])

    @property
    def current(self) -> LoadedVersion | None:
        """The version of the folder: in an exclusive block the leader's, else the newest of those of the engines and
        the one to which the folder was moved ahead."""
        if self._leader is not None:
            return self._leader.current
        versions = [one for one in (self._ahead, *(one.current for one in self.engines)) if one is not None]
        return None if self._damaged else max(versions, key=lambda one: (one.era, one.version), default=None)

    @current.setter
    def current(self, version: LoadedVersion | None) -> None:
        self._ahead = None
        for engine in self.engines:
            engine.current = version

    def prepare(self, model: Path, context: int | None) -> None:
        """Name the folder of the model's files, and its context."""
        for engine in self.engines:
            engine.model, engine.context = model, context

    @contextlib.asynccontextmanager
    async def exclusive(self, ahead: Sequence[FolderStep] = ()) -> AsyncIterator[None]:
        """Reserve the first engine that is free, and the folder, to load another version. `ahead`: steps that the
        folder makes while groups are finished (rule 2a); where one cannot be made, the folder stays before it. Raises
        `EngineUnusable` if none can work."""
        async with self._moving(ahead), self._first_free() as leader, self._folder.change():
            present = self.current
            self._leader, leader.leads = leader, True
            try:
                if present is not None and leader.current != present:
                    await leader.catch_up(present)
                yield
            except EngineUnusable as error:
                self._drop_out(leader, error)
                raise ChildError(EngineUnusable.__name__, str(error)) from error
            finally:
                self._leader, leader.leads = None, False
                if self._ahead == leader.current:
                    self._ahead = None
                self._damaged = self._damaged and leader.current is None
                self._moved.set()

    @contextlib.asynccontextmanager
    async def _moving(self, steps: Sequence[FolderStep]) -> AsyncIterator[None]:
        """Move the folder ahead within the block. Its place in the order of changes is before any that begins in the
        block."""
        moving = asyncio.ensure_future(self._move(steps))
        try:
            await asyncio.sleep(0)
            yield
        finally:
            moving.cancel()
            await asyncio.wait({moving})

    async def _move(self, steps: Sequence[FolderStep]) -> None:
        if not steps or self.rests:
            return
        keep = max(len(steps), self.engines[0].keep)
        async with self._folder.change():
            for step in steps:
                work = asyncio.ensure_future(anyio.to_thread.run_sync(_made_step, step, keep))
                try:
                    is_there = await asyncio.shield(work)
                except asyncio.CancelledError:
                    if await work:  # the folder is free only once the thread has ended
                        self._ahead = step.to
                    raise
                if not is_there:
                    return
                self._ahead = step.to

    def still_folder(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Keep the engines from reading and moving the folder within the block; they generate meanwhile."""
        return self._folder.change()

    @property
    def rests(self) -> bool:
        """Whether no engine may run."""
        return all(engine.rests for engine in self.engines)

    async def advance(self, payload: Path, to: LoadedVersion) -> None:
        """See `VersionedEngine.advance`, within an exclusive block."""
        assert self._leader is not None
        await self._leader.advance(payload, to)

    async def hold(self, version: LoadedVersion) -> None:
        """See `VersionedEngine.hold`, within an exclusive block."""
        assert self._leader is not None
        await self._leader.hold(version)

    async def keep_up(self, engine: VersionedEngine) -> None:
        """Bring an engine to the version of the folder whenever that has moved, until cancelled."""
        failures = 0
        while True:
            target = self.current
            if self._leader is not None or target is None or engine.current == target:
                self._moved.clear()
                await self._moved.wait()
                continue
            try:
                async with engine.exclusive():
                    if (target := self.current) is not None:
                        await engine.catch_up(target)
                failures = 0
            except (EngineUnusable, ChildError) as error:
                failures += 1
                await self.await_restart(engine, error, failures)

    async def await_restart(self, engine: VersionedEngine, error: Exception, failures: int) -> None:
        """Note that an engine is out, and wait until it may be started again. Raises `error` if all are out."""
        self._drop_out(engine, error)
        pause = ENGINE_BACKOFF.delay(failures)
        _log.error("an engine is out, the others go on", reason=self.out[engine], seconds=round(pause, 1))
        await asyncio.sleep(pause)
        engine.restarts.on_work()
        self.out.pop(engine, None)

    def _drop_out(self, engine: VersionedEngine, error: Exception) -> None:
        """Note that an engine is out. Raises `error` if all are."""
        self.out[engine] = error.message if isinstance(error, ChildError) else str(error)
        if len(self.out) == len(self.engines):
            raise error

    @contextlib.asynccontextmanager
    async def _first_free(self) -> AsyncIterator[VersionedEngine]:
        """Reserve the engine that is free first."""
        if len(self.engines) == 1:
            async with self.engines[0].exclusive():
                yield self.engines[0]
            return
        release = asyncio.Event()
        ready: asyncio.Queue[VersionedEngine | Exception] = asyncio.Queue()

        async def reserve(engine: VersionedEngine) -> None:
            try:
                async with engine.exclusive():
                    ready.put_nowait(engine)
                    await release.wait()
            except Exception as error:
                ready.put_nowait(error)

        working = [engine for engine in self.engines if engine not in self.out] or self.engines
        tasks = {engine: asyncio.ensure_future(reserve(engine)) for engine in working}
        leader: VersionedEngine | None = None
        try:
            leader = await _first_of(ready, len(tasks))
            for engine, task in tasks.items():
                if engine is not leader:
                    task.cancel()
            yield leader
        finally:
            release.set()
            for engine, task in tasks.items():
                if engine is not leader:
                    task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    def report_damage(self, version: LoadedVersion) -> None:
        """Take the folder, at this version, for damaged until it is replaced."""
        self._damaged, self._ahead = True, None
        self.on_corrupt(version)

    # --- all engines alike

    async def start(self) -> Probed:
        """Start the engines; return what the first that works is. Raises `EngineUnusable` if none works."""
        for engine in self.engines:
            try:
                await engine.start()
                self.out.pop(engine, None)
            except EngineUnusable as error:
                self._drop_out(engine, error)
        assert self.first.probed is not None
        return self.first.probed

    async def stop(self) -> None:
        """End all processes."""
        for engine in self.engines:
            await engine.stop()

    @property
    def dtype(self) -> Dtype:
        """The type of the first engine that works."""
        return self.first.dtype

    @dtype.setter
    def dtype(self, dtype: Dtype) -> None:
        for engine in self.engines:
            engine.dtype = dtype

    @property
    def probed(self) -> Probed | None:
        """The first engine that works, as it was probed."""
        return self.first.probed

    @property
    def hardware(self) -> str:
        """The names of the devices, as a greeting may carry them."""
        names = [one.probed.hardware for one in self.engines if one.probed is not None]
        return ", ".join(
            f"{names.count(name)} x {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
        )[:200]

    @property
    def choosing(self) -> bool:
        """See `VersionedEngine.choosing`."""
        return any(one.choosing for one in self.engines)

    @property
    def chosen(self) -> bool:
        """See `VersionedEngine.chosen`."""
        return self.first.chosen

    def place(self, engine: str, device: str, dtype: Dtype) -> None:
        """See `VersionedEngine.place`; for a node with one engine."""
        self.engines[0].place(engine, device, dtype)

    @property
    def deaths(self) -> int:
        """Crashes of all engines so far."""
        return sum(engine.deaths for engine in self.engines)


def _made_step(step: FolderStep, keep: int) -> bool:
    """Move the folder of weights by a step; tell whether it is there. `keep`: steps that engines may still need."""
    try:
        folder = open_weights(step.to.weights)
        folder.apply(step.payload, step.to.root, keep=keep)
    except (WeightsError, DiskFull, OSError) as error:
        _log.info("the weights cannot be moved ahead", version=step.to.version, reason=str(error))
        return False
    return folder.root == step.to.root


async def _first_of(ready: "asyncio.Queue[VersionedEngine | Exception]", among: int) -> VersionedEngine:
    for left in reversed(range(among)):
        answer = await ready.get()
        if isinstance(answer, VersionedEngine):
            return answer
        if not left:
            raise answer
    raise AssertionError("there is no engine")
