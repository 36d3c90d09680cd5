"""The node's connections: to the coordinator, neighbours, relays and broadcast parents.

    coordinator client ─ greeting ─┬─ neighbours: peers that the coordinator names
                                   ├─ reachability: how peers can dial this node
                                   └─ plan client: the parents that send payloads to this node

Rules
1. A greeting describes this node: its engine, its tasks, its addresses. When one of these changes, the node greets
   again.
2. Before the RunSpec is known, the engine computes in float32, or in the owner's type. If the run refuses that, each
   further type that the engine computes in is tried once, then the next engine that is installed, unless the owner
   names one.
3. While the coordinator is unreachable, the node dials remembered peers and asks them for a newer Head.
"""

from collections.abc import Callable

import anyio
import structlog
from anyio.abc import TaskGroup

from echo2.engines.engine import DTYPES, Dtype, dtype_named
from echo2.engines.process.engine_fleet import EngineFleet
from echo2.engines.registry import AUTO_ENGINE, choose, installed_engines
from echo2.node.config import NodeConfig
from echo2.node.engine_devices import dtype_for, sampling_fault
from echo2.node.errors import RefusedByRun
from echo2.node.key_change import SUCCESSION, disputes, record_replacement
from echo2.node.links.coordinator_client import CoordinatorClient
from echo2.node.links.neighbours import Neighbours
from echo2.node.links.plan_client import PlanClient, RateLimits
from echo2.node.links.reachability import Reachability, RelaySources
from echo2.node.run_context import RunContext
from echo2.node.versions.follower import Follower
from echo2.p2p.discovery.dialer import PeerDialer
from echo2.p2p.discovery.peer_records import RecordIssuer
from echo2.p2p.identity import public_bytes
from echo2.p2p.network import Network
from echo2.protocol import refusals
from echo2.protocol.authority import RunSpec, TaskReference
from echo2.protocol.engine_classes import parts
from echo2.protocol.ledger_heads import HeadReference
from echo2.protocol.numbers import SPOKEN_NUMBERS
from echo2.protocol.requests import Hello, Refusal, Welcome
from echo2.protocol.task_kinds import PLAYED_KINDS
from echo2.runtime.declared_requirements import version_of
from echo2.tasks.registry import list_tasks

_log = structlog.get_logger("node")


class Connectivity:
    """The node's connections, built and run together; the rules of each part are in its module."""

    def __init__(
        self,
        config: NodeConfig,
        context: RunContext,
        network: Network,
        engine: EngineFleet,
        follower: Follower,
    ) -> None:
        self._config, self._context, self._peer_id = config, context, network.links.peer_id
        self._engine, self._follower = engine, follower
        self._tasks: TaskGroup | None = None
        self._forgotten = False
        """Whether name, team and device are not told any more."""
        self._succeeded = ""
        """The coordinator's last answer to the succession."""
        self.on_calibrated: Callable[[list[str]], None] = lambda classes: None
        self.newest_head: Callable[[], HeadReference | None] = lambda: None
        """Returns the newest head of the ledger that this node took."""
        self.dialer = PeerDialer(network.links, context.run, context.clock.now)
        self.neighbours = Neighbours(network.links, self.dialer, context.folder / "peers", context.seed)
        self.coordinator_client = CoordinatorClient(network.rpc, network.links, context, self, routes=config.via)
        self.reachability = Reachability(
            network.rpc, network.links, network.inbound,
            RelaySources(list(config.relays), self._relay_candidates, self._dial_relay),
            RecordIssuer(context.key, context.run),
            coordinator=lambda: self.coordinator_client.peer, now=context.clock.now,
        )  # fmt: skip
        self.reachability.on_change = self.coordinator_client.greet_again
        self.plan_client = PlanClient(
            network.handlers, network.rpc, network.links, network.exchange, self.dialer,
            RateLimits.of_rates(config.uplink, config.downlink),
            connected=self.coordinator_client.wait_until_connected,
        )  # fmt: skip

    async def run(self) -> None:
        """Keep up all connections until cancelled. Raises `RefusedByRun`, `TrustFailure`."""
        async with anyio.create_task_group() as self._tasks:
            for part in (self.coordinator_client, self.reachability, self.plan_client):
                self._tasks.start_soon(part.run)

    async def search(self) -> None:
        """Dial remembered peers, and ask a few connected peers for newer Heads and Roots (rule 3)."""
        await self.neighbours.search()
        await self.learn()

    async def learn(self) -> None:
        """Ask a few peers and the coordinator for newer Heads and Roots."""
        await self._follower.heads.search()

    async def fit(self, runspec: RunSpec) -> None:
        """Switch the engine to the run's compute dtype, or where the run admits this engine in others only to the first
        of those; if the dtype changed, greet the coordinator again. Raises `RefusedByRun` for an engine without the
        run's rule of sampling."""
        probed = self._engine.probed or await self._engine.start()
        if not self._engine.chosen and (fault := sampling_fault(probed.engine_class, runspec)):
            raise RefusedByRun(fault)
        if self._config.dtype != "auto" or self._engine.chosen:
            return
        dtype = dtype_for(runspec, probed.engine_class)
        if dtype != self._engine.dtype:
            await self._compute_in(dtype)
            self.coordinator_client.drop_connection("the engine changed")

    async def hello(self) -> Hello:
        """Return a greeting that describes this node now (rule 1)."""
        probed = self._engine.probed if self._engine.choosing else None
        probed = probed or await self._engine.start()
        shown = self.own_words(probed.engine_class)
        return Hello(
            protocols=SPOKEN_NUMBERS,
            software=shown["software"],
            name=shown["name"],
            engine=probed.engine_class,
            device=shown["device"],
            tasks=[TaskReference(name=name, version=number) for name, number in list_tasks()],
            record=await self.reachability.record(),
            kinds=list(PLAYED_KINDS),
            succession=self._succession(),
            ledger=self.newest_head(),
            after=self._context.instance.after,
            disputes=disputes(self._context.folder, public_bytes(self._context.key)),
            team=shown["team"],
        )

    def own_words(self, engine_class: str) -> dict[str, str]:
        """Return what this node tells of itself, for the page: name, team, device and build. `engine_class`: the class
        of its engine."""
        config, names_device = self._config, self._config.show_hardware and not self._forgotten
        return {
            "name": (not self._forgotten and config.name) or self._peer_id[-8:],
            "team": "" if self._forgotten else config.team,
            "device": self._engine.hardware if names_device else engine_class.rpartition("/")[2],
            "software": f"echo2/{version_of('echo2') or 'source'}",
        }

    def forget(self) -> None:
        """Tell the run neither a name of the owner's nor team nor the device's name from now on."""
        self._forgotten = True
        self.coordinator_client.greet_again("it shows neither name nor team nor device any more")

    def _succession(self) -> bytes | None:
        """Return the statement that an earlier key of this node left for the present one (node/key_change.py)."""
        path = self._context.folder / SUCCESSION
        return path.read_bytes() if path.exists() else None

    async def reconsider(self, refusal: Refusal) -> bool:
        """Switch to the next type or engine if the refusal and rule 2 allow it; tell whether to greet again."""
        if refusals.then(refusal) != "other engine" or self._engine.chosen:
            return False
        if untried := self._untried_types():
            await self._compute_in(untried[0])
        elif others := self._untried_engines():
            await self._engine.stop()
            self._engine.place(others[0], self._config.gpu, self._first_dtype())
            _log.info((await self._engine.start()).sentence())
        else:
            return False
        return True

    def _untried_types(self) -> list[Dtype]:
        probed, tried = self._engine.probed, DTYPES.index(self._engine.dtype)
        if self._context.trust_store.trusted.runspec is not None or self._config.dtype != "auto" or probed is None:
            return []
        return [one for one in probed.dtypes if DTYPES.index(one) > tried]

    def _untried_engines(self) -> list[str]:
        """Return the engines after the present one that are installed and compute on the owner's device."""
        names, probed, kind = installed_engines(), self._engine.probed, self._config.gpu.partition(":")[0]
        present = parts(probed.engine_class)[0] if probed is not None else ""
        if self._config.engine != AUTO_ENGINE or present not in names or len(self._engine.engines) > 1:
            return []
        later = names[names.index(present) + 1 :]
        return [name for name in later if kind == "auto" or kind in choose(name).devices]

    def _first_dtype(self) -> Dtype:
        runspec = self._context.trust_store.trusted.runspec
        known = None if runspec is None else runspec.value.compute_dtype
        return dtype_named(known or self._config.dtype) or "float32"

    async def _compute_in(self, dtype: Dtype) -> None:
        await self._engine.stop()
        self._engine.dtype = dtype
        _log.info((await self._engine.start()).sentence())

    async def on_welcome(self, peer: str, welcome: Welcome) -> None:
        """Follow the Head in the answer to a greeting, and dial some of the peers that it names."""
        self.on_calibrated(welcome.calibrated)
        if welcome.succession is not None and welcome.succession != self._succeeded:
            self._succeeded = welcome.succession
            record_replacement(self._context.folder, public_bytes(self._context.key), self._context.clock.local())
            _log.info("standing of the old key", answer=welcome.succession)
        if welcome.shown:
            _log.warning("name changed by the run", shown=welcome.shown, name=self._config.name)
        if welcome.head is not None:
            await self._follower.heads.hear(peer, welcome.head)
        if self._tasks is not None:
            self._tasks.start_soon(self.neighbours.on_welcome, welcome.peers)

    def _relay_candidates(self) -> list[str]:
        return [*self.coordinator_client.addresses.all(), *self.neighbours.addresses()]

    async def _dial_relay(self, address: str) -> str:
        operators = self.coordinator_client.addresses
        return await (operators if address in operators.all() else self.dialer).dial(address)
