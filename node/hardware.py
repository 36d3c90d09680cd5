"""The engine's child process as an `EngineHandle`, and one line that says what it runs on and why."""

from collections.abc import Awaitable
from pathlib import Path
from typing import Literal, TypeVar

from engines.child import ChildDied, ChildError
from engines.engine import Job, Loaded, Sample
from engines.remote import RemoteEngine
from node.engine import Device, EngineFailed, EngineLost

T = TypeVar("T")


def child_environment(threads: int) -> dict[str, str]:
    """What the engine's process needs set before torch is imported: few threads, and none that spins while it waits."""
    return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}


class ChildEngine:
    """`python -m engines.host` on one device. `gpu`: auto, cpu, mps, cuda or cuda:N."""

    def __init__(self, gpu: str, *, threads: int) -> None:
        self._gpu, self._threads = gpu, threads
        self._remote: RemoteEngine | None = None

    async def start(self, dtype: Literal["float32", "bfloat16"]) -> Device:
        """See `EngineHandle`."""
        self._remote = RemoteEngine(env=child_environment(self._threads))
        try:
            await self._remote.child.start()
        except OSError as error:
            raise EngineFailed("OSError", f"cannot start the engine's process: {error.strerror}") from error
        probed = await _translated(self._remote.probe(self._gpu, dtype))
        return Device(engine=probed.engine_class, device=probed.name[:200] or probed.kind, reason=probed.why)

    async def load(self, model: Path, weights: Path) -> Loaded:
        """See `EngineHandle`."""
        return await _translated(self._running().load(model, weights))

    async def forward(self, payload: Path, root: bytes) -> Loaded:
        """See `EngineHandle`."""
        return await _translated(self._running().forward(payload, root, 0))

    async def generate(self, job: Job) -> list[Sample]:
        """See `EngineHandle`."""
        return await _translated(self._running().generate(job))

    async def stop(self) -> None:
        """See `EngineHandle`. No grace: an engine keeps nothing that a kill could harm, and memory is wanted back."""
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.child.kill()
            await remote.child.exited

    def _running(self) -> RemoteEngine:
        if self._remote is None:
            raise EngineLost("the engine does not run")
        return self._remote


def described(device: Device) -> str:
    """One line for people: what generates, and why."""
    return f"generating on {device.device} ({device.engine}): {device.reason}"


async def _translated(call: Awaitable[T]) -> T:
    try:
        return await call
    except ChildDied as error:
        raise EngineLost(str(error)) from error
    except ChildError as error:
        raise EngineFailed(error.kind, error.message) from error
