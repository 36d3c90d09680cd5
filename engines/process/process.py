"""An engine in a child process, seen from a daemon's event loop: engines.engine.Engine with `await`.

Any call raises runtime.child.ChildError (the engine refused), runtime.errors.DiskFull, or runtime.child.ChildDied (the
process is gone: start a new one, as engines.process.supervisor does).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from echo2.engines.batch.row_limit import OWNERS_MOST
from echo2.engines.devices.devices import Inventory
from echo2.engines.engine import Dtype, EngineRows, Job, Loaded, Sample, SampledTurn, SampleScore
from echo2.engines.process.messages import (
    ROWS_NOTICE,
    SAMPLED_NOTICE,
    AnswerCall,
    DutyCall,
    EngineCall,
    GenerateCall,
    InventoryCall,
    LoadCall,
    PackedSample,
    ProbeCall,
    Probed,
    RateCall,
    ScoreCall,
    StepByCall,
    StepToCall,
)
from echo2.engines.rate import Rate, Workload
from echo2.runtime.child import Child
from echo2.runtime.exception_groups import leaves
from echo2.runtime.python_command import module_command

A = TypeVar("A")
HOST = "echo2.engines.process.host"
Play = Callable[[SampledTurn], Awaitable[Sequence[int] | None]]
"""Answers a sampled turn: the environment's tokens; None: the episode is over."""
_QUIET_END: Final = {"GGML_NO_BACKTRACE": "1"}
"""llama.cpp's abort else starts a debugger, whose many lines would hide the one that says why."""


class EngineClient:
    """The calls of an engine as methods, for any object that can pass a call on."""

    async def ask(self, call: EngineCall[A]) -> A:
        """Pass a call on to the engine and return its answer."""
        raise NotImplementedError

    async def load(self, model: Path, weights: Path) -> Loaded:
        """See `Engine.load`."""
        return await self.ask(LoadCall(model=_absolute(model), weights=_absolute(weights)))

    async def step_by(self, payload: Path, root: bytes, keep: int) -> Loaded:
        """See `Engine.step_by`."""
        return await self.ask(StepByCall(payload=_absolute(payload), root=root, keep=keep))

    async def step_to(self, root: bytes) -> Loaded:
        """See `Engine.step_to`."""
        return await self.ask(StepToCall(root=root))

    async def rate(self, model: Path, workload: Workload, seconds: float) -> Rate:
        """Measure the rate of generation (engines.rate), for so many seconds after its warm-up."""
        return await self.ask(RateCall(model=_absolute(model), workload=workload, seconds=seconds))

    async def generate(self, job: Job) -> list[Sample]:
        """Generate a group. Calls may overlap: their groups are generated together. A caller that is cancelled ends its
        group alone."""
        return await self.ask(GenerateCall(job=job))

    async def generate_all(self, jobs: Sequence[Job]) -> list[list[Sample]]:
        """Generate several groups; the first error ends them all."""
        groups = [asyncio.ensure_future(self.generate(job)) for job in jobs]
        try:
            return list(await asyncio.gather(*groups))
        finally:
            for group in groups:
                group.cancel()

    async def generate_served(self, job: Job, play: Play) -> list[Sample]:
        """Generate a served group. `play`: called with each sampled turn; returns the environment's tokens, None for
        the end of the episode. Its error ends the group, and is raised."""
        raise NotImplementedError

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]:
        """See `Engine.score`; the values are arrays."""
        return [one.score() for one in await self.ask(ScoreCall(job=job, samples=samples))]


class EngineProcess(Child, EngineClient):
    """One process of an engine, `python -m echo2.engines.process.host`. `async with EngineProcess() as engine:` starts
    and ends it. `probed`: the chosen engine and device; `loaded`: its weights. Each is None at first. After a failed
    load or step `loaded` is None too: the process then has old or new weights, and the next load shows which. `duty`:
    percent of the time that it computes. `rows`: rows as it last notified, with the groups requested since; `on_rows`
    is called at each notification."""

    def __init__(
        self,
        *,
        name: str = "engine",
        threads: int = 1,
        rows: int | None = None,
        module: str = HOST,
        env: Mapping[str, str] | None = None,
        command: list[str] | None = None,
    ) -> None:
        """`threads`: CPU threads that it computes on, passed in the environment, since torch reads that at import.
        `rows`: most rollouts that it generates at a time; None: as many as gain. `env`: further variables. `command`:
        what is run; None: `module`."""
        env = {
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "passive",
            "HF_HUB_OFFLINE": "1",
            **_QUIET_END,
            **(env or {}),
        }
        if rows is not None:
            env[OWNERS_MOST] = str(rows)
        super().__init__(command or module_command(module), name=name, env=env)
        self.probed: Probed | None = None
        self.loaded: Loaded | None = None
        self.duty = 100
        self.rows = EngineRows()
        self.on_rows: Callable[[EngineRows], None] | None = None
        self._turns: dict[bytes, Callable[[SampledTurn], object]] = {}
        """By name, the takers of the turns of served groups."""
        self.events(self._on_message)

    async def __aenter__(self) -> "EngineProcess":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def owes_answer(self) -> bool:
        """See `Child`: a served group whose rows all wait for their environment waits for no answer of the child."""
        working = self.rows.running or self.rows.waiting
        return bool(self._pending) and (len(self._pending) > len(self._turns) or bool(working))

    async def inventory(self, engine: str) -> Inventory:
        """List the devices that an engine sees; no other call must come before."""
        return await self.call("inventory", InventoryCall(engine=engine), Inventory)

    async def probe(self, device: str = "auto", dtype: Dtype = "float32", *, engine: str = "auto") -> Probed:
        """Choose an engine and a device; must be the first call."""
        self.probed = await self.call("probe", ProbeCall(engine=engine, device=device, dtype=dtype), Probed)
        return self.probed

    async def set_duty(self, percent: int) -> None:
        """Let it compute for this percent of the time."""
        await self.call("duty", DutyCall(percent=percent), type(None))
        self.duty = percent

    async def ask(self, call: EngineCall[A]) -> A:
        """See `EngineClient`."""
        if isinstance(call, GenerateCall):
            self.rows = msgspec.structs.replace(self.rows, waiting=self.rows.waiting + len(call.job.seeds))
        if not call.changes_weights:
            return await self._answer(call)
        self.loaded = None
        answer: Any = await self._answer(call)
        self.loaded = answer
        return answer  # type: ignore[no-any-return]

    async def generate_served(self, job: Job, play: Play) -> list[Sample]:
        """See `EngineClient.generate_served`."""

        if not job.served or job.served in self._turns:
            raise ValueError("a served group needs a name of its own")

        async def answered(sampled_turn: SampledTurn) -> None:
            try:
                given = await play(sampled_turn)
                answer = None if given is None else list(given)
                await self.ask(
                    AnswerCall(
                        served=sampled_turn.served,
                        sample=sampled_turn.sample,
                        turn_number=sampled_turn.turn_number,
                        given=answer,
                    )
                )
            except BaseException:
                self._turns.pop(job.served, None)  # the group ends: no further turn is taken
                raise

        try:
            async with asyncio.TaskGroup() as tasks:
                self._turns[job.served] = lambda sampled_turn: tasks.create_task(answered(sampled_turn))
                return await self.generate(job)
        except BaseExceptionGroup as group:
            raise next(leaves(group)) from None
        finally:
            self._turns.pop(job.served, None)

    async def _answer(self, call: EngineCall[A]) -> A:
        answer: A = await self.call(call.method, call, call.answer, withdraw=call.withdraw)
        return answer

    def _on_message(self, method: str, body: bytes) -> None:
        if method == ROWS_NOTICE:
            self.rows = msgspec.msgpack.decode(body, type=EngineRows)
            if self.on_rows is not None:
                self.on_rows(self.rows)
        elif method == SAMPLED_NOTICE:
            sampled_turn = msgspec.msgpack.decode(body, type=SampledTurn)
            if (taker := self._turns.get(sampled_turn.served)) is not None:
                taker(sampled_turn)


def _absolute(path: Path) -> str:
    return os.path.abspath(path)
