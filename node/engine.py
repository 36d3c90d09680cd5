"""The engine as the daemon sees it: one child process that does one thing at a time, and comes back when it dies.

Rules
1. Whoever wants the engine takes a `turn`. Turns are given in the order asked; a lease is generated within the turn in
   which it was asked for, so that a version never changes under it.
2. The engine is started, and the version held loaded into it, when a turn begins: after a crash as after a
   pause.
3. The weights held are a folder that the engine steps in place (weights.rolling). An engine that dies within a step
   leaves it before or behind that step; which, its successor tells.
4. A crash is answered with waits that grow; `MOST_CRASHES` in a row, with nothing done between, end the node.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec
import structlog

from engines.engine import Job, Loaded, Sample
from node.errors import NoDevice
from runtime.backoff import Backoff

MOST_CRASHES: Final = 6
RESTART: Final = Backoff(0.5, 60.0, jitter=0.5)

_log = structlog.get_logger("node")


class EngineLost(Exception):
    """The child process is gone; what it was doing can be done again."""


class EngineFailed(Exception):
    """The engine said no. `kind`: name of the error's class in the child."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine runs on. `engine`: its class, "<engine>/<dtype>/<device>". `device`: the hardware's name.
    `reason`: why this one, in a few words."""

    engine: str
    device: str
    reason: str


DType = Literal["float32", "bfloat16"]


class EngineHandle(Protocol):
    """One engine. Every method may raise `EngineLost`, `EngineFailed` where the engine itself refuses, and
    `weights.errors.DiskFull`."""

    async def start(self, dtype: DType) -> Device: ...

    async def load(self, model: Path, weights: Path) -> Loaded: ...

    async def forward(self, payload: Path, root: bytes) -> Loaded:
        """Step the weights loaded by a diff, in place."""

    async def generate(self, job: Job) -> list[Sample]: ...

    async def stop(self) -> None:
        """End the child at once; memory of the device is free afterwards. Never raises."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The version that rollouts are made under, and the folder that holds it."""

    era: int
    version: int
    root: bytes
    weights: Path


class SupervisedEngine:
    """An `EngineHandle` that is restarted, with the version held loaded again. `device` is known after `start`."""

    def __init__(self, handle: EngineHandle, *, seed: int) -> None:
        self._handle, self._random = handle, random.Random(seed)
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._alive = self._loaded = False
        self._crashes = 0
        self.dtype: DType = "float32"
        self.device: Device | None = None
        self.model: Path | None = None
        self.context: int | None = None
        """Most tokens of a sequence of the model; None: not known, or not bounded."""
        self.held: Held | None = None
        self.restarts = 0
        self.spoiled: Callable[[Held], None] = lambda held: None
        """Told of weights that are not what they should be; `held` is then None."""
        self._next: Held | None = None
        self._awake = asyncio.Event()
        self._awake.set()

    async def start(self) -> Device:
        """Start the child where it does not run. Raises `NoDevice`."""
        while not self._alive:
            try:
                self.device = await self._handle.start(self.dtype)
                self._alive, self._loaded = True, False
            except EngineFailed as error:
                raise NoDevice(str(error)) from error
            except EngineLost as error:
                await self._crashed(error)
        assert self.device is not None
        return self.device

    @property
    def wanted(self) -> bool:
        """Somebody waits for a turn."""
        return self._waiting > 0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The engine for this caller alone, running, with the version held loaded. Waits while the engine rests."""
        self._waiting += 1
        try:
            await self._awake.wait()
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            await self._ready()
            yield
        finally:
            self._lock.release()

    async def forward(self, payload: Path, to: Held) -> None:
        """Within a turn, with something held: step to `to` by a diff from there (rule 3). After a crash it is done
        again where it was not done. Raises `EngineFailed`; what is held is then looked through before the next turn."""
        self._next = to
        try:
            while self.held is not None and self.held.root != to.root:
                try:
                    await self._handle.forward(payload, to.root)
                    self._crashes = 0
                    self.held = to
                except EngineLost as error:
                    await self._crashed(error)
                    await self._ready()
        except EngineFailed:
            self._loaded = False
            raise
        finally:
            self._next = None

    async def hold(self, held: Held) -> None:
        """Within a turn: the engine's version is `held` from now on, by other weights than before or by the same."""
        if self.held is None or held.root != self.held.root:
            self._loaded = False
        self.held = held
        await self._ready()

    async def recover(self) -> None:
        """Within a turn, after `EngineLost`: up again, with the version held."""
        await self._ready()

    async def generate(self, job: Job) -> list[Sample]:
        """Within a turn. Raises `EngineLost` after a crash (see `recover`), `EngineFailed`."""
        try:
            samples = await self._handle.generate(job)
        except EngineLost as error:
            await self._crashed(error)
            raise
        self._crashes = 0
        return samples

    async def rest(self, patience: float) -> None:
        """Free the device: after the turn that runs, but within `patience` seconds. No turn begins until `wake`."""
        self._awake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience), self._lock:
                await self.stop()
                return
        await self.stop()

    def wake(self) -> None:
        """Let turns begin again."""
        self._awake.set()

    async def stop(self) -> None:
        """End the child."""
        if self._alive:
            self._alive = self._loaded = False
            await self._handle.stop()

    async def _ready(self) -> None:
        while True:
            await self._awake.wait()
            await self.start()
            if self._loaded or self.held is None or self.model is None:
                return
            try:
                loaded = await self._handle.load(self.model, self.held.weights)
                if self._next is not None and loaded.root == self._next.root:
                    self.held = self._next
                if loaded.root == self.held.root:
                    self._loaded = True
                    return
                self._spoil()
            except EngineFailed as error:
                if error.kind not in ("BadSnapshot", "StoreCorrupt", "FileNotFoundError"):
                    raise NoDevice(f"the engine cannot load version {self.held.version}: {error}") from error
                self._spoil()
            except EngineLost as error:
                await self._crashed(error)

    def _spoil(self) -> None:
        held, self.held = self.held, None
        assert held is not None
        self.spoiled(held)

    async def _crashed(self, error: EngineLost) -> None:
        """Count it and wait; the next turn starts the child anew. An end that `rest` made is no crash."""
        await self._handle.stop()
        self._alive = self._loaded = False
        if not self._awake.is_set():
            return
        self.restarts += 1
        self._crashes += 1
        if self._crashes > MOST_CRASHES:
            raise NoDevice(f"the engine died {self._crashes} times in a row: {error}")
        wait = RESTART.delay(self._crashes, self._random.random())
        _log.error("engine died, restarting", error=str(error), seconds=round(wait, 1))
        await asyncio.sleep(wait)
