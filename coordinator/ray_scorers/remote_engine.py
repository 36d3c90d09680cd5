"""A scorer on another host as the coordinator sees it: the engine process of engines/process/process.py, over Ray.

Rules
1. The engine's calls go to the one driver (`RayCluster`), which passes them to the scorer's actor. A death of the
   engine, of its actor, of its host or of the driver is a death of the process: calls under way raise `ChildDied`, and
   the supervisor's next engine is opened where Ray has started the actor again.
2. A host that owes an answer and is silent is ended by the supervisor, and one whose payload does not come at once: Ray
   is told to end its actor.
3. An actor that Ray cannot place within `PLACE_SECONDS`, as no host is free, counts as dead; Ray goes on placing it. So
   its groups go to other scorers.
4. Bytes that do not decode end the engine that sent them.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from echo2.coordinator.ray_scorers.messages import (
    MOST_REPLY_BYTES,
    SIGN,
    WITHDRAWN,
    ActorCall,
    ActorName,
    ActorReply,
    Cluster,
    ClusterFacts,
    JoinOrder,
    Notice,
    OpenOrder,
)
from echo2.engines.process.process import EngineProcess
from echo2.engines.process.supervisor import Restarts, Supervisor
from echo2.runtime.child import Child, ChildDied, ChildError, Confined, error_of_fault
from echo2.runtime.python_command import module_command

DRIVER: Final = "echo2.coordinator.ray_scorers.ray_driver"
PLACE_SECONDS: Final = 60.0
JOIN_SECONDS: Final = 60.0
KILL_SECONDS: Final = 30.0
"""Seconds within which the driver passes the end of an actor on; one that does not is replaced."""
MOST_PRINTED_BYTES: Final = 1 << 20
"""Most bytes that the driver prints during one call."""

T = TypeVar("T")


class DriverProcess(Child):
    """The driver's process. `cluster`: the cluster that it has joined."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        confined = Confined(folder, MOST_REPLY_BYTES + 4096, MOST_PRINTED_BYTES)
        super().__init__(module_command(DRIVER), name="ray driver", env=env, confined=confined)
        self.cluster: Cluster | None = None


class RayCluster(Supervisor[DriverProcess]):
    """The driver, which joins the cluster whenever it starts."""

    def __init__(self, address: str, folder: Path, env: Mapping[str, str], restarts: Restarts) -> None:
        """`address`: setting `scorer.ray`. `folder`: where the driver works. `env`: its environment."""
        super().__init__(lambda: DriverProcess(folder, env), restarts)
        self._address = address

    async def ask(self, method: str, body: msgspec.Struct | None, type_: type[T], **options: Any) -> T:
        """Call the driver. Raises `ChildDied`, `ChildError`, TimeoutError."""
        return await self.use(lambda driver: driver.call(method, body, type_, **options))

    async def look(self) -> tuple[Cluster, ClusterFacts]:
        """Return what the cluster has. Raises `ChildDied`, `ChildError`, TimeoutError."""
        driver = await self.running()
        assert driver.cluster is not None
        return driver.cluster, await self.ask("look", None, ClusterFacts)

    async def kill(self, name: ActorName) -> None:
        """Have an actor ended; without a driver it is."""
        if self._process is None:
            return
        try:
            await self.ask("kill", name, type(None), timeout=KILL_SECONDS)
        except TimeoutError:
            await self.renew()
        except (ChildDied, ChildError):
            return  # its actors have ended with the driver, or the actor has ended

    async def _prepare(self, process: DriverProcess) -> None:
        if process.cluster is not None:
            return
        try:
            process.cluster = await process.call("join", JoinOrder(self._address), Cluster, timeout=JOIN_SECONDS)
        except (ChildError, TimeoutError):
            await self.renew()
            raise


class RemoteEngine(EngineProcess):
    """An engine on another host. `order`: its scorer; each engine gets a life of its own."""

    _lives: Final = itertools.count(time.time_ns())

    def __init__(self, cluster: RayCluster, name: str, run: str, number: int, device: str) -> None:
        super().__init__(name=name)
        self._cluster = cluster
        self._order = OpenOrder(run, number, device, next(self._lives))
        self._name = ActorName(number, self._order.life)
        self._opened = asyncio.Event()
        self._kill_task: asyncio.Task[None] | None = None
        self._must_end = asyncio.Event()

    @property
    def pid(self) -> int:
        """The id of the driver's process."""
        return self._cluster.pid or 0

    async def start(self) -> None:
        """Have it opened; the first call waits for that."""
        self._life = asyncio.create_task(self._live_remotely(), name=f"child {self.name}")

    async def call(
        self, method: str, body: msgspec.Struct | None, type_: type[T], *, timeout: float | None = None,
        withdraw: bool = False,
    ) -> T:  # fmt: skip
        """See `Child.call`."""
        await self._until_opened()
        loop = asyncio.get_running_loop()
        if not self.owes_answer:
            self._heard = loop.time()
        self._last_id += 1
        call_id, order = self._last_id, self._actor_call(method, body)
        self._pending[call_id] = loop.create_future()
        try:
            async with asyncio.timeout(timeout):
                reply = await self._ask("call", order, withdraw=method in WITHDRAWN)
        finally:
            self._pending.pop(call_id).cancel()
        self._heard = loop.time()
        if reply.fault is not None:
            raise error_of_fault(reply.fault)
        return await self._decode(reply.body, type_)

    async def stop(self, grace: float = 5.0) -> int:
        """End it, and have Ray end its actor's process."""
        self.kill()
        if self._kill_task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await asyncio.shield(self._kill_task)
        return await self.exited

    def kill(self, why: str = "") -> None:
        """End it, and have Ray end its actor's process, without waiting for that."""
        if not self._must_end.is_set():
            self._end(why)
            self._kill_task = asyncio.create_task(self._cluster.kill(self._name))

    def _end(self, why: str) -> None:
        self._stderr += f"\n{why}".encode()
        self._must_end.set()

    def _actor_call(self, method: str, body: msgspec.Struct | None) -> ActorCall:
        return ActorCall(self._name.number, self._name.life, method, msgspec.Raw(msgspec.msgpack.encode(body)))

    async def _until_opened(self) -> None:
        assert self._life is not None
        opened = asyncio.ensure_future(self._opened.wait())
        try:
            await asyncio.wait([opened, self._life], return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
        if self._life.done():
            raise self._death(self._life.result())

    async def _ask(self, method: str, body: msgspec.Struct, **options: Any) -> ActorReply:
        """Ask the driver, and raise `ChildDied` if this engine ends first, or by its answer."""
        asked = asyncio.ensure_future(self._cluster.ask(method, body, ActorReply, **options))
        ended = asyncio.ensure_future(self._must_end.wait())
        try:
            await asyncio.wait([asked, ended], return_when=asyncio.FIRST_COMPLETED)
            if asked.done() and not self._must_end.is_set():
                try:
                    reply = asked.result()
                    if not reply.ended:
                        return reply
                    self.kill(reply.ended)
                except ChildDied as death:
                    self._end(f"the driver of Ray is gone: {death}")
                except ChildError as error:
                    self._end(f"Ray: {error.message}")
                except TimeoutError:
                    self._end(f"Ray has no host for it within {PLACE_SECONDS:g} s")
                except msgspec.MsgspecError as error:
                    self.kill(f"its answer does not decode: {error}")
        finally:
            ended.cancel()
            if not asked.cancel():
                asked.exception()  # its engine has ended: nobody else looks at the error
        raise self._death(1)

    async def _decode(self, body: msgspec.Raw, type_: type[T]) -> T:
        try:
            return msgspec.msgpack.decode(body, type=type_)
        except msgspec.MsgspecError as error:
            self.kill(f"its answer does not decode: {error}")
            raise self._death(1) from error

    async def _live_remotely(self) -> int:
        """Open the engine and take its notices, until it ends; return 1."""
        try:
            await self._ask("open", self._order, timeout=PLACE_SECONDS, withdraw=True)
            self._opened.set()
            while True:
                reply = await self._ask("notices", self._name, withdraw=True)
                self._heard = asyncio.get_running_loop().time()
                for notice in await self._decode(reply.body, list[Notice]):
                    if notice.method != SIGN and self._callback is not None:
                        self._callback(notice.method, bytes(notice.body))
        except msgspec.MsgspecError as error:
            self.kill(f"its notice does not decode: {error}")
        except ChildDied:
            pass
        return 1
