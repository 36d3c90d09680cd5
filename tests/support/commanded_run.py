"""A coordinator that the operator's commands reach: group service, watch and operator socket, as the daemon composes
them, in a thread."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from echo2.coordinator.nodes import operator_remarks
from echo2.coordinator.training.operator_socket import OperatorSocket
from echo2.coordinator.training.run_watch import Watch
from echo2.runtime.errors import LocalFault
from tests.support.group_world import World
from tests.support.operator_orders import orders


@contextmanager
def commanded(home: Path) -> Iterator[Callable[[], Watch]]:
    """Run one on the folder `home` until the block ends; yield a function that returns its watch."""
    there: list[Any] = []
    ready = threading.Event()

    async def serve() -> None:
        world = World(home)

        async def remark(word: str, peer: str, why: str) -> str:
            return operator_remarks.record_remark(world.group_service.accounts, word, peer, why, world.now)

        def roll_back(version: int | None, factor: float) -> str:
            if version == 7:
                raise LocalFault("version 7 is not kept whole; kept are 0, 40")
            return f"version {version} again at {factor:g}"

        watch = Watch(world.group_service, lambda: world.now / 1000, lambda: None)
        commands = OperatorSocket(home, watch, orders(remark=remark, roll_back=roll_back))
        task = asyncio.create_task(commands.run())
        there.extend([watch, asyncio.get_running_loop(), task])
        await commands.listening.wait()
        ready.set()
        try:
            await task
        except asyncio.CancelledError:
            world.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield lambda: there[0]
    finally:
        there[1].call_soon_threadsafe(there[2].cancel)
        thread.join(60)
