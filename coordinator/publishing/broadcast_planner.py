"""Plan the broadcast trees of the connected nodes: answer "plan" requests, and send "follow" when parents change.

Rules
1. The plan covers every connected node that requested one; disconnected nodes are dropped when it is rebuilt. It is
   rebuilt at most once per `PLAN_SETTLE_SECONDS` seconds, and planning takes at most `PLANNING_TIME_SHARE` of the time.
   New nodes wait for the next plan.
2. A node's uplink is estimated from other nodes' transfer reports (coordinator/metrics/broadcast_stats.py), and is at
   most the limit that the node set. Without reports it is p2p.plan.trees.UPLINK, at the coordinator `SOURCE_UPLINK`.
   A higher estimate is accepted at once. A lower one is accepted, in steps of `ESTIMATE_FADE`, only if the node sent
   less than `ENOUGH_RATE_SHARE` of its planned rate: a node with few children shows only a part of its uplink.
3. A node feeds others only if its record (p2p/discovery/peer_records.py) has a directly dialable address. A parent that
   a node reports as failed is excluded for that node for `EXCLUDED_PARENT_SECONDS` seconds. Other nodes keep it, so
   that a false report affects only its sender.
4. When a planned node disconnects, the plan is rebuilt, within rule 1. Every node whose parents change is told at once:
   between nodes that follow different plans there may be a cycle, in which each waits for the other.
5. The coordinator's own children in the plan have priority at its uplink (p2p/limits/bandwidth.py), if that is limited.
6. A node on HTTPS receives everything from the coordinator and feeds no peer: its plan is empty.
7. A plan is a hint: it is not signed, and a wrong one costs only time. It carries the parents' signed records.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import anyio.to_thread
import structlog

from echo2.p2p.discovery.peer_records import VerifiedRecord
from echo2.p2p.errors import P2PError, Unreachable
from echo2.p2p.multiaddr import route_of, route_of_requester
from echo2.p2p.network import Network
from echo2.p2p.plan.repair import Planner
from echo2.p2p.plan.trees import DEFAULT_LATENCY_SECONDS, DEFAULT_UPLINK, LinkCapacity, PayloadSize, Plan
from echo2.protocol.broadcast_messages import PlanRequest, PlanResponse
from echo2.protocol.methods import FOLLOW, PLAN

PLAN_SETTLE_SECONDS = 1.0
"""Least seconds between two plans."""
NODE_POLL_SECONDS = 0.25
"""Seconds between two checks for disconnected nodes."""
FOLLOW_SECONDS = 5.0
"""Timeout of a "follow", seconds. A node that misses a "follow" requests the plan later by itself."""
PLANNING_TIME_SHARE = 0.1
"""Largest share of the time that planning takes (rule 1)."""
EXCLUDED_PARENT_SECONDS = 300.0
"""Seconds for which a parent that a node reported as failed is excluded for it (rule 3)."""
ESTIMATE_FADE = 0.9
ENOUGH_RATE_SHARE = 0.8
"""Rule 2: a lower estimate is at least `ESTIMATE_FADE` times the former one, and accepted below `ENOUGH_RATE_SHARE` of
the plan's rate."""
SOURCE_UPLINK = 12_500_000.0
"""The coordinator's uplink if no limit is set, bytes per second: 100 Mbit/s."""
MOST_PLAN_NODES = 65_536
"""Nodes in a plan."""

log = structlog.get_logger("coordinator")


@dataclass
class _Node:
    ask: PlanRequest
    known: VerifiedRecord | None
    """Its record."""
    excluded: dict[str, float] = field(default_factory=dict)
    """Parent that the node reported as failed -> time at which the exclusion ends."""
    told: tuple[str, ...] = ()
    """The parents last sent to the node."""
    telling: bool = False
    """Whether a "follow" is under way."""


@dataclass(frozen=True)
class PlanInputs:
    """The planner's view of the run."""

    uplinks: Callable[[], Mapping[str, float]]
    """Returns the reported uplink per peer, bytes per second."""
    record: Callable[[str], VerifiedRecord | None]
    """Returns the record of a peer; None if it has announced none."""
    payload_size: Callable[[], PayloadSize | None]
    """Returns the payload size of a version; None before the first."""


class BroadcastPlanner:
    """The plan of the connected nodes, and the handler of "plan". `uplink`: the coordinator's own limit, bytes per
    second; None: no limit. `enabled`: if False, every plan is empty. `clock`: monotonic seconds. `seed`: seed of the
    planner (p2p/plan/repair.py)."""

    def __init__(
        self,
        network: Network,
        inputs: PlanInputs,
        *,
        uplink: float | None,
        enabled: bool,
        clock: Callable[[], float],
        seed: int,
    ) -> None:
        self._rpc = network.rpc
        self._links = network.links
        self._exchange = network.exchange
        self._inputs = inputs
        self._clock = clock
        self._enabled = enabled
        self._planner = Planner(self._links.peer_id, seed)
        self._nodes: dict[str, _Node] = {}
        self._shown: dict[str, float] = {}
        """Reported uplinks at the last plan, bytes per second."""
        self._believed = dict[str, float]()
        """Estimated uplinks, bytes per second."""
        self.limit(uplink)
        self._made_at = -math.inf
        self._due = -math.inf
        self.look_seconds = NODE_POLL_SECONDS
        self._making = asyncio.Lock()
        PLAN.serve(network.handlers, self.answer)

    @property
    def plan(self) -> Plan:
        """The present plan."""
        return self._planner.plan

    def limit(self, uplink: float | None) -> None:
        """Take another limit of the coordinator's own uplink, for plans from now on."""
        self._limit = math.inf if uplink is None else uplink
        self._believed[self._links.peer_id] = SOURCE_UPLINK if uplink is None else uplink

    @property
    def uplinks(self) -> Mapping[str, float]:
        """The estimated uplink per peer, bytes per second (rule 2)."""
        return MappingProxyType(self._believed)

    async def run(self) -> None:
        """Rebuild the plan after disconnects and tell nodes their new parents (rule 4), until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self.look_seconds)
                left = self._nodes.keys() - set(await self._links.peers())
                if left and self._clock() >= self._due:
                    async with self._making:
                        await self._make()
                for peer, parents in self.plan.parents.items():
                    node = self._nodes.get(peer)
                    if node is not None and parents != node.told and not node.telling:
                        node.telling = True
                        group.create_task(self._tell(peer, node))

    async def answer(self, peer: str, ask: PlanRequest) -> PlanResponse:
        """Return the parents of `peer` in the plan. Raises `Unreachable` if the plan is full."""
        if not self._enabled or route_of_requester(peer) == "https":
            return PlanResponse()
        node = self._nodes.get(peer)
        if node is None:
            if len(self._nodes) >= MOST_PLAN_NODES:
                raise Unreachable("the plan is full")
            node = self._nodes[peer] = _Node(ask, None)
        node.ask = ask
        node.known = self._inputs.record(peer)
        failed = set(ask.failed).intersection(self.plan.parents.get(peer, ()))
        node.excluded |= dict.fromkeys(failed, self._clock() + EXCLUDED_PARENT_SECONDS)
        await self._await_plan(peer, bool(failed))
        return self._place(peer, node)

    def _place(self, peer: str, node: _Node) -> PlanResponse:
        parents = node.told = self.plan.parents.get(peer, ())
        feeders = [self._nodes[parent] for parent in dict.fromkeys(parents) if parent in self._nodes]
        records = [feeder.known.sealed for feeder in feeders if feeder.known is not None]
        return PlanResponse(parents=list(parents), records=records)

    async def _tell(self, peer: str, node: _Node) -> None:
        try:
            await FOLLOW.ask(self._rpc, peer, self._place(peer, node), timeout=FOLLOW_SECONDS)
        except P2PError as error:
            log.debug("follow not delivered", node=peer, reason=str(error))
        finally:
            node.telling = False

    async def _await_plan(self, peer: str, changed: bool) -> None:
        """Wait until the plan includes `peer` and its reports."""
        asked_at = self._clock()
        async with self._making:
            if self._made_at > asked_at:
                return
            if not changed and peer in self.plan.parents and asked_at < self._due:
                return
            await asyncio.sleep(max(0.0, self._due - self._clock()))
            await self._make()

    async def _make(self) -> None:
        connected, now = set(await self._links.peers()), self._clock()
        self._nodes = {peer: node for peer, node in self._nodes.items() if peer in connected}
        self._believe(dict(self._inputs.uplinks()))
        for node in self._nodes.values():
            node.excluded = {parent: until for parent, until in node.excluded.items() if until > now}
        lines = {peer: self._link(peer, node) for peer, node in self._nodes.items()}
        apart = {peer: set(node.excluded) for peer, node in self._nodes.items() if node.excluded}
        load = self._inputs.payload_size() or PayloadSize(1 << 20, 1 << 14)
        uplink = min(self._believed[self._links.peer_id], self._limit)
        plan = await anyio.to_thread.run_sync(partial(self._planner.update, uplink, lines, load, apart))
        self._made_at = self._clock()
        self._due = self._made_at + max(PLAN_SETTLE_SECONDS, (self._made_at - now) / PLANNING_TIME_SHARE)
        source = self._links.peer_id
        await self._exchange.follow((), [peer for peer, parents in plan.parents.items() if source in parents])
        log.debug("plan made", nodes=len(lines), stripes=plan.stripes, seconds=round(plan.seconds, 2))

    def _believe(self, shown: dict[str, float]) -> None:
        """Update the estimated uplinks from the new reports in `shown` (rule 2)."""
        plan = self.plan
        fed = Counter(up for ups in plan.parents.values() for up in ups)
        for peer in (self._links.peer_id, *self._nodes):
            believed = self._believed.setdefault(peer, DEFAULT_UPLINK)
            rate = shown.get(peer)
            if rate is None or rate == self._shown.get(peer):
                continue
            if rate > believed:
                self._believed[peer] = rate
            elif rate < ENOUGH_RATE_SHARE * fed[peer] * plan.rate / plan.stripes:
                self._believed[peer] = max(rate, ESTIMATE_FADE * believed)
        here = {self._links.peer_id, *self._nodes}
        self._believed = {peer: rate for peer, rate in self._believed.items() if peer in here or peer in shown}
        self._shown = shown

    def _link(self, peer: str, node: _Node) -> LinkCapacity:
        ask, addresses = node.ask, node.known.addresses if node.known is not None else ()
        return LinkCapacity(
            uplink=min(self._believed[peer], ask.uplink if ask.uplink is not None else math.inf),
            downlink=ask.downlink or math.inf,
            latency=ask.latency / 1000 if ask.latency is not None else DEFAULT_LATENCY_SECONDS,
            dialable=any(route_of(address) == "direct" for address in addresses),
        )
