"""A node's engine, always with the node's current version loaded.

Rules
1. A group is requested and generated within one `async with shared()` block, so that the version never changes under
   it; many such blocks run at once. Another version is loaded within an `exclusive()` block, alone. An exclusive block
   that waits lets no shared one begin (engines/process/version_lock.py): groups that have begun are finished under the
   old version, and nothing starts under it any more.
2. The beginning of a block starts the engine and loads the current version where needed: after a crash, or after a
   rest. Where several blocks need it, one does it and the others wait.
3. The weights are a folder that the engine steps (weights.logged_weights). An engine that dies within a step leaves
   the folder before or after that step; the next process that opens it finds out which.
4. After more than `MOST_CRASHES` crashes in a row, without useful work between them, `EngineUnusable` is raised, which
   ends the node.
5. After `MOST_OVERFLOWS` groups in a row whose logits were not finite in float16, which has the smallest range,
   `EngineUnusable` is raised. In another type the weights are at fault, and the next version may mend them.
6. Before the first version is loaded, `chooser` may say by which engine and on which device: it is called once, with no
   process running and the version's weights on disk. A rest cancels it, and it is called again after the rest.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from echo2.engines.engine import Dtype, EngineRows, EngineUnusable, Job, LogitsNotFinite, Sample
from echo2.engines.process.candidates import Candidate
from echo2.engines.process.change_time import ChangeLoss
from echo2.engines.process.messages import Probed
from echo2.engines.process.process import EngineProcess, Play
from echo2.engines.process.supervisor import Restarts, SupervisedEngine
from echo2.engines.process.version_lock import VersionLock
from echo2.engines.registry import AUTO_ENGINE
from echo2.runtime.backoff import Backoff
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.surroundings import sentence_of

MOST_CRASHES: Final = 6
MOST_OVERFLOWS: Final = 3
RESTART_BACKOFF: Final = Backoff(0.5, 60.0, jitter=0.5)
_CORRUPT_WEIGHTS_ERRORS: Final = ("BadSnapshot", "StoreCorrupt", "FileNotFoundError")
"""Errors of a load that are faults of the weights."""

_log = structlog.get_logger("node")


class LoadedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The version under which rollouts are generated, and the folder of its weights."""

    era: int
    version: int
    root: bytes
    weights: Path


Chooser = Callable[[Path, Path], Awaitable[Candidate | None]]
"""Returns what to compute with, from the folders of model and weights; None: as before."""


class VersionedEngine(SupervisedEngine):
    """`current`: the version under which rollouts are generated; loaded again after a crash. `model`: folder of the
    model's files, set before `current`. `context`: most tokens per sequence of the model; None: unknown or unbounded.
    `on_corrupt`: called for weights that do not have the root of their version; `current` is then None. `folder`:
    guards the folder of weights against the other engines of a fleet; `leads`: this engine has it alone. `keep`: steps
    of the folder that others may still need. `on_disk`: returns the version of the folder, to which another engine may
    have moved it. `change_cost`: what its exclusive blocks cost while they wait. `chooser`: see rule 6; `on_choice` is
    called once it has chosen, and `chosen` tells so. Every call
    may raise `ChildError` where the engine itself refuses, `runtime.errors.DiskFull`, and `EngineUnusable`."""

    def __init__(
        self, make: Callable[[], EngineProcess], *, device: str = "auto", engine: str = AUTO_ENGINE, seed: int
    ) -> None:
        """`device`: device as engines.devices.devices chooses it. `engine`: a name of engines.registry, or auto.
        `seed`: seed of the pauses."""
        restarts = Restarts(RESTART_BACKOFF, seed=seed)
        super().__init__(make, restarts, on_death=self._on_death, device=device, engine=engine)
        self.model: Path | None = None
        self.context: int | None = None
        self.current: LoadedVersion | None = None
        self.on_corrupt: Callable[[LoadedVersion], None] = lambda version: None
        self.folder = VersionLock()
        self.leads = False
        self.keep = 0
        self.on_disk: Callable[[], LoadedVersion | None] = lambda: self.current
        self.chooser: Chooser | None = None
        self.chosen = False
        self.on_choice: Callable[[], None] = lambda: None
        self._choosing: asyncio.Future[Candidate | None] | None = None
        self._lock = VersionLock()
        self.change_cost = ChangeLoss()
        self._recovering = asyncio.Lock()
        self._target: LoadedVersion | None = None
        """The target of a step under way, or of one that the engine refused: the folder may be there already."""
        self._probed_as: tuple[str, str, Dtype] | None = None
        """Engine, device and type of `probed`, where a start asked for it."""
        self._death = ""
        self._overflows = 0

    async def start(self) -> Probed:
        """Start the engine where it does not run. One that rests is started only to probe it, and ends at once. Raises
        `EngineUnusable`."""
        terms = (self._engine, self._device, self.dtype)
        if self.probed is not None and self.rests and terms == self._probed_as:
            return self.probed
        while self.restarts.failures <= MOST_CRASHES:
            try:
                await self.running()
            except ChildDied:
                continue
            except ChildError as error:
                raise EngineUnusable(error.message) from error
            except OSError as error:
                refused = f"cannot start the engine's process ({error.strerror}): check the installation of echo2"
                may_not = isinstance(error, PermissionError)  # run the program, of which no general sentence speaks
                raise EngineUnusable(refused if may_not else sentence_of(error, refused)) from error
            assert self.probed is not None
            self._probed_as = terms
            if self.rests:
                await self.stop()
            return self.probed
        raise EngineUnusable(f"the engine died {self.restarts.failures} times in a row: {self._death}")

    @property
    def wanted(self) -> bool:
        """Whether some part waits to have the engine alone."""
        return self._lock.change_waits

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Lend the engine to this caller alone, running, with the current version loaded. Waits while the engine
        rests."""
        now = asyncio.get_running_loop().time
        self.change_cost.begin(self.rows.running, now())
        async with self._lock.change():
            self.change_cost.end(now())
            await self.recover()
            yield

    def _rows_changed(self, rows: EngineRows) -> None:
        self.change_cost.on_rows(rows.running, asyncio.get_running_loop().time())
        super()._rows_changed(rows)

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Lend the engine to this caller beside others, running, with the current version loaded. Waits while the
        engine rests, and while some part waits to have it alone."""
        async with self._lock.use():
            await self.recover()
            yield

    async def advance(self, payload: Path, to: LoadedVersion) -> None:
        """Within a block, with a current version: step to `to` by a diff (rule 3). After a crash the step is repeated
        if it had not happened. After a `ChildError` the weights are loaded and checked before the next block."""
        self._target = to
        while self.current is not None and self.current.root != to.root:
            try:
                await self.step_by(payload, to.root, keep=self.keep)
                self.restarts.on_work()
                self.current = to
            except ChildDied:
                await self.recover()
        self._target = None

    async def catch_up(self, to: LoadedVersion) -> None:
        """Within a block: go to the version that another engine has brought the folder to (engine_fleet.py)."""
        if self.loaded is not None and self.current is not None and self.current.root != to.root:
            with contextlib.suppress(ChildDied, ChildError):
                async with self._reading():
                    await self.step_to(to.root)
                self.current = to
        await self.hold(to)

    async def hold(self, version: LoadedVersion) -> None:
        """Within a block: make `version` the current version. Its weights are loaded, unless they have the same
        root."""
        if self.current is None or version.root != self.current.root:
            self._forget()
        self.current, self._target = version, None
        await self.recover()

    async def generate(self, job: Job) -> list[Sample]:
        """Generate a group, within a block. Raises `ChildDied` after a crash (see `recover`); rule 5 holds."""
        return await self._generate_group(super().generate(job))

    async def generate_served(self, job: Job, play: Play) -> list[Sample]:
        """Generate a served group, within a block, as `generate` does."""
        return await self._generate_group(super().generate_served(job, play))

    async def _generate_group(self, group: Awaitable[list[Sample]]) -> list[Sample]:
        try:
            samples = await group
        except ChildError as error:
            if error.kind == LogitsNotFinite.__name__ and self.dtype == "float16":
                self._overflows += 1
                if self._overflows >= MOST_OVERFLOWS:
                    why = f"{MOST_OVERFLOWS} groups in a row failed in float16: {error.message}"
                    raise EngineUnusable(why) from error
            raise
        self._overflows = 0
        self.restarts.on_work()
        return samples

    async def recover(self) -> None:
        """Within a block, also after `ChildDied`: start the engine and load the current version, where needed."""
        async with self._recovering:
            await self._recover()

    async def _recover(self) -> None:
        while True:
            await self.rest_of_pause()
            await self._lock.wait_until_open()
            if not await self._choose_engine():
                continue
            await self.start()
            if self.loaded is not None or self.current is None or self.model is None:
                return
            try:
                async with self._reading():
                    loaded = await self.load(self.model, self.current.weights)
            except ChildDied:
                continue
            except ChildError as error:
                if error.kind not in _CORRUPT_WEIGHTS_ERRORS:
                    version = (self._target or self.current).version
                    why = f"the engine cannot load version {version}: {error.message}"
                    raise EngineUnusable(why) from error
                self._give_up()
                continue
            if self._target is not None and loaded.root == self._target.root:
                self.current = self._target
            if (moved := self.on_disk()) is not None and loaded.root == moved.root:
                self.current = moved
            if loaded.root == self.current.root:
                return
            self._give_up()

    def _reading(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Keep other engines from moving the folder; the one that leads has it alone already."""
        return contextlib.nullcontext() if self.leads else self.folder.use()

    def settle(self, choice: Candidate) -> None:
        """Compute with this candidate. No process may run."""
        self.place(choice.engine, choice.device, choice.dtype)
        self.chosen = True

    def reopen(self, engine: str, device: str) -> None:
        """Undo `settle`: compute with what a start without a choice takes, until `chooser` is called."""
        self.place(engine, device, "float32")
        self.chosen = False
        self.restarts.on_work()

    @property
    def choosing(self) -> bool:
        """Whether candidates are being timed: no process of this engine may run."""
        return self._choosing is not None

    async def _choose_engine(self) -> bool:
        """Call `chooser` where it is time for it (rule 6); return False if a rest cancelled it."""
        if self.chooser is None or self.current is None or self.model is None:
            return True
        await super().stop(0.0)
        self._choosing = asyncio.ensure_future(self.chooser(self.model, self.current.weights))
        try:
            await asyncio.wait({self._choosing})
            if self._choosing.cancelled():
                return False
            choice = self._choosing.result()
        finally:
            self._choosing.cancel()
            self._choosing = None
        self.chooser = None
        if choice is not None:
            self.settle(choice)
            self.on_choice()
        return True

    async def rest(self, patience: float) -> None:
        """Free the device after the running blocks, but at most `patience` seconds from now. No block begins until
        `wake`."""
        self._lock.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._lock.wait_until_unused()
        await self.stop()

    @property
    def rests(self) -> bool:
        """Whether the device is to be free: no block begins."""
        return self._lock.closed

    def wake(self) -> None:
        """Let blocks begin again."""
        self._lock.open()

    async def stop(self, grace: float = 0.0) -> None:
        """End the process at once, to free its memory: a kill can harm no state of it."""
        if self._choosing is not None:
            self._choosing.cancel()
        await super().stop(grace)

    def _give_up(self) -> None:
        version, self.current = self.current, None
        self._forget()
        assert version is not None
        self.on_corrupt(version)

    def _forget(self) -> None:
        """Mark the weights as not loaded, so that `recover` loads them again."""
        if self._process is not None:
            self._process.loaded = None

    def _on_death(self, death: ChildDied, pause: float) -> None:
        self._death = str(death)
        if self.restarts.failures <= MOST_CRASHES:
            _log.error("engine died, restarting", error=str(death), seconds=round(pause, 1))
