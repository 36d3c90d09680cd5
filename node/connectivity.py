"""The node's connections: coordinator, neighbours, relays, broadcast parents.

    coordinator client ─ greeting ─┬─ neighbours: peers that the coordinator names
                                   ├─ reachability: how peers can dial this node
                                   └─ plan client: the parents that send payloads to this node

Rules
1. A greeting describes this node: its engine, its tasks, its addresses. When one of these changes, the node greets
   again.
2. Before the RunSpec is known, the compute dtype is a guess. If the run refuses it, the other dtype is tried once.
3. While the coordinator is unreachable, remembered peers are dialled and asked for a newer Head.
"""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskGroup
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engines.engine import Dtype
from engines.versioned import VersionedEngine
from node.config import NodeConfig
from node.links.coordinator_client import CoordinatorClient
from node.links.neighbours import Neighbours
from node.links.plan_client import PlanClient
from node.links.reachability import Reachability
from node.trust.run_clock import RunClock
from node.trust.trust_store import TrustStore
from node.versions.follower import Follower
from p2p.discovery.dialer import PeerDialer
from p2p.discovery.invite import Invite
from p2p.discovery.peer_records import RecordIssuer
from p2p.envelope import PROTOCOL
from p2p.network import Network
from protocol import refusals
from protocol.authority import RunSpec, TaskReference
from protocol.requests import Hello, Refusal, Welcome
from runtime.units import MBIT
from tasks.registry import known

_log = structlog.get_logger("node")


class Connectivity:
    """The node's connections, built and run together: each part has its own rules in its own module."""

    def __init__(
        self,
        config: NodeConfig,
        invite: Invite,
        key: Ed25519PrivateKey,
        network: Network,
        folder: Path,
        records: TrustStore,
        engine: VersionedEngine,
        follower: Follower,
        clock: RunClock,
        seed: int,
    ) -> None:
        """`folder`: of this run. `seed`: of waits and choices among peers."""
        self._config, self._invite, self._peer_id = config, invite, network.links.peer_id
        self._records, self._engine, self._follower = records, engine, follower
        self._tasks: TaskGroup | None = None
        dialer = PeerDialer(network.links, invite.run, clock.now)
        self.neighbours = Neighbours(network.links, dialer, folder / "peers", seed)
        self.link = CoordinatorClient(
            network.rpc, network.links, key, records, clock,
            run=invite.run, addresses=invite.addresses, via=config.via, seed=seed,
            hello=self._hello, reconsider=self._reconsider, welcomed=self._welcomed,
            search=self.search, learn=follower.search,
        )  # fmt: skip
        self.reachability = Reachability(
            network.rpc, network.links, network.inbound,
            relays=list(config.relays), coordinator=lambda: self.link.peer, candidates=self._relay_candidates,
            changed=self.link.lost, own=RecordIssuer(key, invite.run), now=clock.now,
        )  # fmt: skip
        self.parents = PlanClient(
            network.handlers, network.rpc, network.links, network.exchange, dialer,
            uplink=_bytes(config.uplink), downlink=_bytes(config.downlink),
            connected=self.link.connected,
        )  # fmt: skip

    async def run(self) -> None:
        """Keep up all connections until cancelled. Raises `RefusedByRun`, `TrustFailure`."""
        async with anyio.create_task_group() as self._tasks:
            for part in (self.link, self.reachability, self.parents):
                self._tasks.start_soon(part.run)

    async def search(self) -> None:
        """Dial remembered peers, and ask connected ones for a newer Head (rule 3)."""
        await self.neighbours.search()
        await self._follower.search()

    async def fit(self, runspec: RunSpec) -> None:
        """Switch the engine to the run's compute dtype, and greet again if it changed."""
        dtype: Dtype = "bfloat16" if runspec.compute_dtype == "bfloat16" else "float32"
        if dtype != self._engine.dtype:
            await self._compute_in(dtype)
            self.link.lost("the engine changed")

    async def _hello(self) -> Hello:
        probed = await self._engine.start()
        return Hello(
            protocols=(PROTOCOL, PROTOCOL),
            software=f"echo2/{_software()}",
            name=self._config.name or self._peer_id[-8:],
            engine=probed.engine_class,
            device=probed.hardware,
            tasks=[TaskReference(name=name, version=number) for name, number in known()],
            record=await self.reachability.record(),
        )

    async def _reconsider(self, refusal: Refusal) -> bool:
        """Switch to the other compute dtype if the refusal and rule 2 allow it; tell whether to greet again."""
        tried = self._records.trusted.runspec is not None or self._engine.dtype == "bfloat16"
        if tried or refusals.then(refusal) != "other engine":
            return False
        await self._compute_in("bfloat16")
        return True

    async def _compute_in(self, dtype: Dtype) -> None:
        await self._engine.stop()
        self._engine.dtype = dtype
        _log.info((await self._engine.start()).sentence())

    async def _welcomed(self, peer: str, welcome: Welcome) -> None:
        if welcome.head is not None:
            await self._follower.hear(peer, welcome.head)
        if self._tasks is not None:
            self._tasks.start_soon(self.neighbours.welcomed, welcome.peers)

    def _relay_candidates(self) -> list[str]:
        head = self._records.trusted.head
        return [*(head.value.addresses if head else []), *self._invite.addresses, *self.neighbours.addresses()]


def _bytes(mbit: float | None) -> int | None:
    """Convert Mbit/s to whole bytes per second, at least 1."""
    return None if mbit is None else max(1, int(mbit * MBIT))


def _software() -> str:
    try:
        return version("echo2")
    except PackageNotFoundError:
        return "source"
