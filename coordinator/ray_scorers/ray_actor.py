"""A scorer on another host: an actor of Ray, which has an engine's process beside it on that host.

Rules
1. Ray starts this class on a host with the device that the scorer asks for, shows the process that device alone, and
   starts it again, there or elsewhere, when it has died. Each call takes and returns bytes
   (coordinator/ray_scorers/messages.py).
2. The engine is the process that a local scorer is (engines/process/host.py), under the same budget. It ends with the
   actor, whose pipe closes.
3. The weights are this host's own copy, in the user's cache folder, so a scorer that comes back to a host steps on from
   there (coordinator/ray_scorers/fetched_folder.py).
4. The actor ends with its raylet, at once: Ray would let it finish its calls first, and one of them is always waiting.
   The raylet is the process that Ray names as such: it may have died before the actor looks for its parent.
"""

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import platformdirs

from echo2.coordinator.ray_scorers.fetched_folder import FetchedFolder, PayloadAway
from echo2.coordinator.ray_scorers.messages import (
    FETCHING_CALLS,
    MOST_REPLY_BYTES,
    SIGN,
    WITHDRAWN,
    ActorReply,
    ClusterFacts,
    FetchAllCall,
    FetchStepCall,
    ForgetCall,
    Notice,
    OpenOrder,
    ShowCall,
)
from echo2.engines.process.process import HOST, EngineProcess
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.declared_requirements import version_of
from echo2.runtime.errors import DiskFull
from echo2.runtime.pipe_frames import PipeFault
from echo2.runtime.stand_ins import process_command

MODE_VARIABLE: Final = "RAY_AUTH_MODE"
TOKEN_VARIABLE: Final = "RAY_AUTH_TOKEN"
RAYLET_VARIABLE: Final = "RAY_RAYLET_PID"
"""Variable by which Ray names the raylet to the processes that it starts."""
FOLDER: Final = "ray-scorers"
RAYLET_LOOK_SECONDS: Final = 1.0
_CALLS: Final = {call.method: call for call in FETCHING_CALLS}


def facts() -> bytes:
    """Return the `ClusterFacts` of the host that runs this."""
    return msgspec.msgpack.encode(ClusterFacts(version_of("echo2"), os.environ.get(MODE_VARIABLE) == "token"))


class ScorerActor:
    """The actor. Its methods overlap on one event loop."""

    def __init__(self) -> None:
        self._life = 0
        self._engine: EngineProcess | None = None
        self._folder: FetchedFolder | None = None
        self._notices = asyncio.Queue[Notice]()
        self._fetching = asyncio.Lock()
        """Has one call at a time change the folder."""
        if raylet := os.environ.get(RAYLET_VARIABLE):
            threading.Thread(target=_end_with, args=(int(raylet),), name="raylet", daemon=True).start()

    async def open(self, body: bytes) -> bytes:
        """Start the engine, the only one of this process (messages.py, rule 2)."""
        order = msgspec.msgpack.decode(body, type=OpenOrder)
        if self._life:
            return _reply(ended="its process has an engine")
        self._life = order.life
        try:
            self._folder = FetchedFolder(_folder_of(order), lambda: self._notify(SIGN, b"\xc0"))
        except PayloadAway as error:
            return _reply(ended=str(error))
        engine = EngineProcess(name="scorer", env={TOKEN_VARIABLE: ""}, command=process_command("scorer", HOST))
        await engine.start()
        engine.events(self._notify)
        self._engine = engine
        return _reply(facts())

    async def call(self, life: int, method: str, body: bytes) -> bytes:
        """Answer a call of the engine of this life."""
        engine = self._engine
        if engine is None or life != self._life:
            return _reply(ended="its host has another engine")
        try:
            if method in _CALLS:
                async with self._fetching:
                    return _reply(await self._answer(engine, msgspec.msgpack.decode(body, type=_CALLS[method])))
            raw = cast(msgspec.Struct, msgspec.Raw(body))
            return _reply(bytes(await engine.call(method, raw, msgspec.Raw, withdraw=method in WITHDRAWN)))
        except ChildError as error:
            return _reply(fault=PipeFault(error.kind, error.message))
        except DiskFull as error:
            return _reply(fault=PipeFault(DiskFull.__name__, str(error)))
        except (ChildDied, PayloadAway) as error:
            return _reply(ended=str(error))
        except Exception as error:
            return _reply(fault=PipeFault(type(error).__name__, str(error)))

    async def notices(self, life: int) -> bytes:
        """Wait for notifications of the engine of this life, and return them; `ended` at its end."""
        engine = self._engine
        if engine is None or life != self._life:
            return _reply(ended="its host has another engine")
        first, ended = asyncio.ensure_future(self._notices.get()), engine.exited
        waited: list[asyncio.Future[Any]] = [first, ended]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                return _reply(ended=f"its engine ended with {ended.result()}")
            notices = [first.result()]
            while not self._notices.empty():
                notices.append(self._notices.get_nowait())
            return _reply(msgspec.msgpack.encode(notices))
        finally:
            first.cancel()

    async def _answer(self, engine: EngineProcess, call: Any) -> bytes:
        folder = self._folder
        assert folder is not None
        answer: object = None
        match call:
            case FetchAllCall():
                if await folder.prepare(call.source, call.model, call.chain):
                    answer = await engine.load(folder.model, folder.weights)
            case FetchStepCall():
                payload = await folder.fetch_step(call.source, call.step)
                answer = await engine.step_by(payload, call.step.root, call.keep)
                folder.drop_payloads()
            case ShowCall():
                answer = await folder.show(call.lease)
            case ForgetCall():
                folder.forget()
        return msgspec.msgpack.encode(answer)

    def _notify(self, method: str, body: bytes) -> None:
        self._notices.put_nowait(Notice(method, msgspec.Raw(body)))


def _end_with(raylet: int) -> None:
    """End this process when it has another parent than its raylet (rule 4)."""
    while os.getppid() == raylet:
        time.sleep(RAYLET_LOOK_SECONDS)
    os._exit(1)


def _folder_of(order: OpenOrder) -> Path:
    return platformdirs.user_cache_path("echo2") / FOLDER / order.run[:32] / str(order.number)


def _reply(body: bytes = b"\xc0", *, fault: PipeFault | None = None, ended: str = "") -> bytes:
    data = msgspec.msgpack.encode(ActorReply(msgspec.Raw(body), fault, ended))
    if len(data) > MOST_REPLY_BYTES:
        return _reply(fault=PipeFault("ValueError", f"an answer of {len(data)} bytes is above the limit"))
    return data
