"""Keep a child process running: the node's engine, the coordinator's scorer, and its learner.

Rules
1. A process is started at its first call, and again at the first call after its death. A crash costs only the work in
   progress: the pending call raises `ChildDied`, and the next one gets a new process.
2. A process that dies repeatedly is restarted after a pause that doubles each time (`Restarts`). An end requested by
   `stop` is no crash.
3. A process that is silent for too long while it owes an answer (`Patience`) is hung: it is killed, which is a death
   as any other.
4. Parents pass paths and small messages, never tensors.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from echo2.engines.engine import Dtype, EngineRows, Job, Loaded, Sample
from echo2.engines.process.messages import EngineCall, Probed
from echo2.engines.process.process import EngineClient, EngineProcess, Play
from echo2.engines.registry import AUTO_ENGINE
from echo2.runtime.backoff import Backoff
from echo2.runtime.child import Child, ChildDied, ChildError

MOST_DOUBLINGS: Final = 4
LOOKS: Final = 10
"""Looks at a process within the time that it may be silent."""

A = TypeVar("A")
P = TypeVar("P", bound=Child)


class Restarts:
    """The pause before a restart, in seconds: by `backoff`, from the number of deaths in a row. After a life
    longer than `healthy` seconds the pause is 0 and the count restarts. `failures`: deaths in a row. Pure."""

    def __init__(self, backoff: Backoff, *, healthy: float = float("inf"), seed: int = 0) -> None:
        self._backoff, self._healthy, self._random = backoff, healthy, random.Random(seed)
        self.failures = 0

    def pause(self, lived: float) -> float:
        """Count the end of a process that lived `lived` seconds; return the pause before the next one."""
        self.failures = 0 if lived > self._healthy else self.failures + 1
        return self._backoff.delay(self.failures, self._random.random())

    def on_work(self) -> None:
        """Reset the count of failures: the process did useful work."""
        self.failures = 0


class Patience:
    """How long a process that owes an answer may be silent, seconds. A process that needs longer than that loses its
    work each time, so each such end doubles it, at most `MOST_DOUBLINGS` times. Pure."""

    def __init__(self, seconds: float = float("inf")) -> None:
        self._seconds, self._doublings = seconds, 0

    @property
    def seconds(self) -> float:
        """The most silence now."""
        return float(self._seconds * 2**self._doublings)

    def on_end(self) -> None:
        """Note that a process was ended for its silence."""
        self._doublings = min(MOST_DOUBLINGS, self._doublings + 1)


class Supervisor(Generic[P]):
    """One child process, started when a call needs it. `make`: returns a new process, not started. `on_death(death,
    pause)`: called at each crash. `on_event`: called with each notification, of every process in turn. `deaths`:
    crashes so far."""

    def __init__(
        self,
        make: Callable[[], P],
        restarts: Restarts,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_death: Callable[[ChildDied, float], None] = lambda death, pause: None,
        on_event: Callable[[str, bytes], None] | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`clock`: seconds from any moment. `patience`: None: a process may be silent for ever."""
        self._make, self._clock, self._on_death, self._on_event = make, clock, on_death, on_event
        self._patience = patience
        self._watch: asyncio.Task[None] | None = None
        self.restarts = restarts
        self.deaths = 0
        self._process: P | None = None
        self._starting = asyncio.Lock()
        self._pause, self._began = 0.0, 0.0

    @property
    def pid(self) -> int | None:
        """The id of the current process, which may have died unnoticed; None between two processes."""
        return self._process.pid if self._process is not None else None

    async def use(self, call: Callable[[P], Awaitable[A]]) -> A:
        """Call the process; start it where there is none (rule 1)."""
        process = await self.running()
        try:
            return await call(process)
        except ChildDied as death:
            self._on_loss(process, death)
            raise

    async def running(self) -> P:
        """Return the process, ready for calls; start it where there is none."""
        async with self._starting:
            if self._process is None:
                await self.rest_of_pause()
                process = self._make()
                if self._on_event is not None:
                    process.events(self._on_event)
                await process.start()
                self._process, self._began = process, self._clock()
                if self._patience is not None:
                    self._watch = asyncio.create_task(_end_when_silent(process, self._patience))
            process = self._process
            try:
                await self._prepare(process)
            except ChildDied as death:
                self._on_loss(process, death)
                raise
            return process

    async def rest_of_pause(self) -> None:
        """Wait until the next process may be started (rule 2)."""
        await asyncio.sleep(self._pause)
        self._pause = 0.0

    async def stop(self, grace: float = 5.0) -> None:
        """End the process, if there is one, within `grace` seconds."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop(grace)

    async def renew(self) -> None:
        """Replace the process at the next call. Counts as an end of the process, so that renewing pauses too."""
        if self._process is not None:
            self._pause = self.restarts.pause(self._clock() - self._began)
        await self.stop()

    async def _prepare(self, process: P) -> None:
        """Make `process` ready for calls, if it is not; for subclasses."""

    def _on_loss(self, process: P, death: ChildDied) -> None:
        if self._process is process:
            self._process = None
            self.deaths += 1
            self._pause = self.restarts.pause(self._clock() - self._began)
            self._on_death(death, self._pause)


async def _end_when_silent(process: Child, patience: Patience) -> None:
    """Kill a process that is silent for too long (rule 3); return when it is gone."""
    while not process.has_ended:
        await asyncio.wait([process.exited], timeout=patience.seconds / LOOKS)
        if process.silent_seconds > patience.seconds and not process.has_ended:
            process.kill(f"it gave no sign for {patience.seconds:g} s and was ended as hung")
            patience.on_end()


class SupervisedEngine(Supervisor[EngineProcess], EngineClient):
    """An engine whose process is started, given a device, and called. `probed`: its engine and device, known after the
    first start. `dtype` may be changed while no process runs. `on_rows`: called whenever `rows` changes."""

    def __init__(
        self,
        make: Callable[[], EngineProcess],
        restarts: Restarts,
        *,
        on_death: Callable[[ChildDied, float], None] = lambda death, pause: None,
        patience: Patience | None = None,
        device: str = "auto",
        dtype: Dtype = "float32",
        engine: str = AUTO_ENGINE,
    ) -> None:
        super().__init__(lambda: make().aim(self._engine), restarts, on_death=on_death, patience=patience)
        self._device, self._engine = device, engine
        self.on_rows: Callable[[], None] = lambda: None
        self.dtype: Dtype = dtype
        self.duty = 100
        """Percent of the time to compute."""
        self.probed: Probed | None = None

    @property
    def device(self) -> str:
        return self._device

    @property
    def device_name(self) -> str:
        """The device by its kind and number, as in cuda:1, once these are known."""
        return self._device if ":" in self._device or self.probed is None else self.probed.kind

    def place(self, engine: str, device: str, dtype: Dtype) -> None:
        """Compute by this engine, on this device, in this type. No process may run."""
        self._engine, self._device, self.dtype = engine, device, dtype

    @property
    def loaded(self) -> Loaded | None:
        """The weights that the process has loaded; None where they must be loaded, as after a crash or an error."""
        process = self._process
        return process.loaded if process is not None and not process.has_ended else None

    @property
    def rows(self) -> EngineRows:
        """The rows of the process, as it last told; none where no process runs."""
        return self._process.rows if self._process is not None else EngineRows()

    async def change_duty(self, percent: int) -> None:
        """Compute for this percent of the time from now on; a process that ends meanwhile is told at its next start."""
        self.duty = percent
        if (process := self._process) is not None and process.probed is not None and process.duty != percent:
            with contextlib.suppress(ChildDied, ChildError):
                await process.set_duty(percent)

    async def ask(self, call: EngineCall[A]) -> A:
        """See `EngineClient`."""
        return await self.use(lambda process: process.ask(call))

    async def generate_served(self, job: Job, play: Play) -> list[Sample]:
        """See `EngineClient.generate_served`."""
        return await self.use(lambda process: process.generate_served(job, play))

    async def _prepare(self, process: EngineProcess) -> None:
        process.on_rows = self._rows_changed
        if process.probed is None:
            self.probed = await process.probe(self._device, self.dtype, engine=self._engine)
        if process.duty != self.duty:
            await process.set_duty(self.duty)

    def _rows_changed(self, rows: EngineRows) -> None:
        self.on_rows()
