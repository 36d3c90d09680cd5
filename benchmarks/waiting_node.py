"""A node that waits, with its coordinator in another process, and the CPU time that it takes meanwhile.

The node is a whole daemon over libp2p, but for its engine, which computes nothing. The coordinator gives four leases,
and then none, as one whose run is paused.
"""

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

LISTEN: Final = "/ip4/127.0.0.1/tcp/0"
SETTLING_SECONDS: Final = 20.0
START_SECONDS: Final = 60.0


def share_of_a_core(folder: Path, seconds: float) -> float:
    """Return the CPU time of a waiting node's process as a share of a core, over `seconds`. Raises RuntimeError where
    it does not come to wait."""
    processes = multiprocessing.get_context("spawn")
    ours, theirs = processes.Pipe()
    coordinator = processes.Process(target=_serve, args=(folder / "coordinator", theirs), daemon=True)
    coordinator.start()
    node = processes.Process(target=_wait, args=(folder / "node", _receive(ours), seconds, theirs), daemon=True)
    node.start()
    try:
        used, blocked = _receive(ours, START_SECONDS + SETTLING_SECONDS + seconds)
    finally:
        for process in (node, coordinator):
            process.kill()
            process.join()
    if "paused" not in blocked:
        raise RuntimeError(f"the node does not wait for a lease: {blocked}")
    return float(used) / seconds


def _receive(pipe: Connection, seconds: float = START_SECONDS) -> tuple[str, str]:
    if not pipe.poll(seconds):
        raise RuntimeError(f"no answer of a process within {seconds:.0f} s")
    first, second = pipe.recv()
    return first, second


def _serve(folder: Path, pipe: Connection) -> None:
    from echo2.p2p.libp2p.threaded_network import ThreadedPeer
    from echo2.protocol.refusals import refusal
    from echo2.protocol.requests import Refusal
    from tests.support.fake_coordinator import FakeCoordinator

    class WithoutWork(FakeCoordinator):
        def lease(self, node: bytes, body: bytes) -> bytes | Refusal:
            paused = refusal("paused", retry_after=10_000)
            return paused if len(self.leases) > 3 else super().lease(node, body)

    async def serve() -> None:
        coordinator = WithoutWork(folder)
        peer = ThreadedPeer(coordinator.identity, [LISTEN])
        async with coordinator.serving_as(peer):
            await coordinator.publish(0)
            pipe.send((coordinator.invite(*await peer.addresses()).to_text(), ""))
            await asyncio.Event().wait()

    asyncio.run(serve())


def _wait(home: Path, invite: tuple[str, str], seconds: float, pipe: Connection) -> None:
    from echo2.node.config import load_config
    from echo2.node.daemon import NodeDaemon
    from echo2.node.main import network_of, set_up_log
    from echo2.node.owner.owner_probes import probes_of
    from echo2.node.run_context import RunContext
    from echo2.p2p.discovery.invite import Invite
    from echo2.p2p.identity import generate_key
    from echo2.runtime.units import unix_milliseconds
    from tests.support.fake_coordinator import InProcessEngine

    home.mkdir()

    async def wait() -> None:
        settings = {"home": home, "gpu": "cpu", "priority": "normal", "listen": [LISTEN], "log": "error"}
        config, _ = load_config(settings, {"ECHO2_CONFIG": str(home / "none.toml")})
        set_up_log(config)
        run, key = Invite.from_text(invite[0]), generate_key()
        context = RunContext.open(home, run, key, local=unix_milliseconds, seed=7)
        owner = probes_of(config.yield_to, config.yield_when)
        daemon = NodeDaemon(config, context, network_of(config, run, key), InProcessEngine, owner=owner)
        working = asyncio.create_task(daemon.run())
        await asyncio.sleep(SETTLING_SECONDS)
        before = time.process_time()
        await asyncio.sleep(seconds)
        used = time.process_time() - before
        pipe.send((str(used), str((await daemon.commands.status({}))["blocked"])))
        await working

    asyncio.run(wait())
