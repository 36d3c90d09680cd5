"""Measure how a node gives way to its owner: `python -m benchmarks.yielding [--quick]`.

A node works with a real engine's process on the CPU, for a coordinator in this process, while an owner comes and goes:
in turn as a program of the setting yield_to, a process that the node did not start, and as a probe that sees a GPU in
use. Per cycle, by the clock, in seconds:

    last lease      from the owner's begin to the last lease that was asked for
    memory          from there to the end of the engine's process, and with it of its memory
    back            from the owner's end, less `quiet`, until the node works again

A group is lost where its lease was neither submitted nor given back before it expired. The cost of looking is that of
the probes which this machine has, alone in this process.
"""

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import psutil

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim

bench.one_thread()

from benchmarks.memory_network.transport import MemoryNetwork  # noqa: E402
from benchmarks.turns_cost import make_model  # noqa: E402
from echo2.node.config import load_config  # noqa: E402
from echo2.node.daemon import NodeDaemon  # noqa: E402
from echo2.node.engine_child import engine_child  # noqa: E402
from echo2.node.owner.owner_probes import Probe, probes_of  # noqa: E402
from echo2.node.owner.owner_rules import OwnerRules  # noqa: E402
from echo2.node.owner.owner_watch import REST_SECONDS, OwnerWatch  # noqa: E402
from echo2.node.owner.work_hours import WorkHours  # noqa: E402
from echo2.node.run_context import RunContext  # noqa: E402
from echo2.node.run_state import NodeRunState  # noqa: E402
from echo2.p2p.identity import generate_key, peer_id, public_bytes  # noqa: E402
from echo2.p2p.network import Network  # noqa: E402
from echo2.p2p.peer.peer import Peer  # noqa: E402
from echo2.protocol.leases import Lease, LeaseRequest  # noqa: E402
from echo2.protocol.requests import Refusal  # noqa: E402
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, char_tokenizer  # noqa: E402
from echo2.weights.documents import Version  # noqa: E402
from echo2.weights.snapshot import Snapshot  # noqa: E402
from tests.support.fake_coordinator import START, FakeCoordinator  # noqa: E402

GAME: Final = "a-game-of-the-owner"
LIMIT: Final = 64
LEASE_MS: Final = 300_000
WITHIN: Final = 240.0
"""Seconds for anything that a cycle waits for."""
LOOKS_SECONDS: Final = 20.0


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 cycles with 3 s of quiet instead of 50 with 60 s")
    options = parser.parse_args()
    bench.header("yielding: a node and its owner", ["torch", "transformers", "psutil"])
    cycles, quiet = (2, 3.0) if options.quick else (50, 60.0)
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        cost = runner.run(_cost_of_looking())
        cycle_rows, lost = runner.run(_cycles(Path(folder), cycles, quiet))
    return bench.close([
        Claim("last lease after the owner begins", max(one.last_lease for one in cycle_rows), "1 s", 1.0, at_most=True),
        Claim("memory back", max(one.memory for one in cycle_rows), "1 s", 5.0, at_most=True),
        Claim("work again after quiet, at the latest", max(one.back for one in cycle_rows), "1 s", REST_SECONDS + 2.0,
              at_most=True),
        Claim("work again after quiet, at the earliest", min(one.back for one in cycle_rows), "1 s", 0.0),
        Claim("groups lost", float(lost), "none", 0.0, at_most=True),
        Claim("CPU of looking", cost, "a core", 0.005, at_most=True),
    ])  # fmt: skip


class Cycle(NamedTuple):
    """The figures of one cycle, in seconds."""

    last_lease: float
    memory: float
    back: float


class PlainCoordinator(FakeCoordinator):
    """A coordinator whose run is of a real model, and which accepts any group. `asked_at`: when leases were asked for.
    `lost`: leases that expired open."""

    def __init__(self, folder: Path, snapshot: Path) -> None:
        began = time.monotonic()
        super().__init__(folder, now=lambda: START + 1000 + int(1000 * (time.monotonic() - began)))
        self.assets = []
        for name in ("config.json", "tokenizer.json"):
            self.add_asset(name, (snapshot.parent / name).read_bytes())
        self.runspec = self.sealed_runspec(
            model="llama", engines=["transformers"], vocabulary=CHAR_SIZE, eos=EOS, limit=LIMIT
        )
        self.asked_at = list[float]()
        self._snapshot = snapshot

    async def publish(self, version: int, table_seed: int | None = None, **lies: Any) -> None:
        """Publish the model."""
        snapshot = Snapshot(self._snapshot)
        await self.add_edge(None, version, None, snapshot)
        self.published[version] = Version(
            era=self.era, version=version, root=snapshot.root, tensors=snapshot.tensors, aliases=snapshot.aliases
        )
        await self.announce(version)

    def lease(self, node: bytes, body: bytes) -> bytes | Refusal:
        """Give a lease."""
        self.asked_at.append(time.monotonic())
        return super().lease(node, body)

    def make_lease(self, node: bytes, ask: LeaseRequest, /, **changes: Any) -> Lease:
        """Make a lease that a group of the model can be made in."""
        return super().make_lease(node, ask, limit=LIMIT, expires=self.now() + LEASE_MS, at_once=4, **changes)

    def judge(self, lease: Lease, body: bytes) -> bytes:
        """Accept a group."""
        return self.sealed_receipt(lease, body, "accepted")

    @property
    def lost(self) -> int:
        """Leases that were neither submitted nor given back, and have expired."""
        back = {lease for report in self.reports for lease in report.returned}
        return sum(
            lease.expires < self.now()
            for name, lease in self.leases.items()
            if name not in self.submitted.keys() | back
        )


@dataclass
class Owner:
    """The owner, who plays or computes on a GPU. `on_gpu`: what the probe of a GPU sees."""

    folder: Path
    on_gpu: str = ""
    game: psutil.Process | None = field(default=None)

    def probes(self) -> list[Probe]:
        """Return the probes through which a node sees this owner."""
        return [*probes_of((GAME,), ()), Probe("gpu", "a stand-in", lambda: self.on_gpu)]

    def begin(self, kind: str) -> None:
        """Begin to play or to compute."""
        if kind == "gpu":
            self.on_gpu = "a stand-in uses the GPU"
            return
        game = self.folder / GAME
        if not game.exists():
            game.symlink_to("/bin/sleep")
        started = f'"{game}" 3600 >/dev/null 2>&1 & echo $!'  # not a child of this process: that would be the node's
        shell = subprocess.run(["/bin/sh", "-c", started], stdout=subprocess.PIPE, check=True)
        self.game = psutil.Process(int(shell.stdout))

    def end(self) -> None:
        """End what was begun."""
        self.on_gpu = ""
        if self.game is not None:
            self.game.kill()
            self.game = None


async def _cycles(folder: Path, cycles: int, quiet: float) -> tuple[list[Cycle], int]:
    """Return the figures of each cycle, and the groups that were lost."""
    snapshot = make_model(folder / "model", CHAR_SIZE, char_tokenizer())
    coordinator, owner = PlainCoordinator(folder / "coordinator", snapshot), Owner(folder)
    try:
        async with _working(folder, coordinator, owner, quiet) as daemon:
            rows = [
                await _cycle(("program", "gpu")[one % 2], coordinator, owner, daemon, quiet) for one in range(cycles)
            ]
        return rows, coordinator.lost
    finally:
        owner.end()


@asynccontextmanager
async def _working(
    folder: Path, coordinator: PlainCoordinator, owner: Owner, quiet: float
) -> AsyncIterator[NodeDaemon]:
    """Run the coordinator and a node until the block ends."""
    network, key = MemoryNetwork(0), generate_key()
    settings = {"home": folder / "node", "gpu": "cpu", "engine": "transformers", "priority": "normal", "quiet": quiet}
    config, _ = load_config(settings, {"ECHO2_CONFIG": str(folder / "none.toml")})
    config.home.mkdir()
    async with coordinator.serving(network):
        await coordinator.publish(0)
        context = RunContext.open(config.home, coordinator.invite(), key, local=coordinator.now, seed=7)
        peer = Peer(network.transport(peer_id(public_bytes(key))), seed=1)
        daemon = NodeDaemon(config, context, Network.of(peer), partial(engine_child, config), owner=owner.probes())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(daemon.run)
            yield daemon
            tasks.cancel_scope.cancel()


async def _cycle(kind: str, coordinator: PlainCoordinator, owner: Owner, daemon: NodeDaemon, quiet: float) -> Cycle:
    submitted = len(coordinator.submitted)
    await _until(lambda: len(coordinator.submitted) > submitted and daemon.rollouts.working)
    process = daemon.engine._process
    assert process is not None
    engine = psutil.Process(process.pid)
    mebibytes = engine.memory_info().rss >> 20
    owner.begin(kind)
    began = time.monotonic()
    await _until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)
    memory = time.monotonic() - began
    await asyncio.sleep(3.0)
    late = [at - began for at in coordinator.asked_at if at > began]
    owner.end()
    ended = time.monotonic()
    await _until(lambda: not daemon.run_state.paused)
    one = Cycle(max(late, default=0.0), memory, time.monotonic() - ended - quiet)
    print(
        f"{kind}: last lease after {one.last_lease:.3f} s, {mebibytes} MiB free after {one.memory:.2f} s, "
        f"back {one.back:.2f} s after quiet",
        flush=True,
    )
    return one


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.02)


async def _cost_of_looking() -> float:
    """Return the CPU of all probes that this machine has, as a share of a core."""
    probes = await asyncio.to_thread(probes_of, ("steam",), ("gpu", "keyboard", "battery", "metered"))
    seen = [one.rule for one in probes if one.look is not None]
    print(
        f"seen here: {', '.join(seen)}; not: {', '.join(one.rule for one in probes if one.look is None)}\n", flush=True
    )
    probes = [one for one in probes if one.look is not None]
    watch = OwnerWatch(OwnerRules(WorkHours(((0, 10080),)), 60.0), probes, NodeRunState(lambda: 0), datetime.now)
    before = _cpu()
    with anyio.move_on_after(LOOKS_SECONDS):
        await watch.run()
    return (_cpu() - before) / LOOKS_SECONDS


def _cpu() -> float:
    """Return the CPU seconds of this process, and of the programs that it has asked."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in usages)


if __name__ == "__main__":
    sys.exit(main())
