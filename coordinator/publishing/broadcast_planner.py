"""Plan the broadcast trees of the connected nodes: answer "plan", and send "follow" to nodes whose parents change.

Rules
1. The plan covers every connected node that requested one; disconnected nodes are dropped when it is rebuilt. It is
   rebuilt at most once per `SETTLE` seconds, and planning takes at most `SHARE` of the time. New nodes wait for the
   next plan.
2. A node's uplink is estimated from other nodes' transfer reports (coordinator/metrics/broadcast_stats.py), and is at
   most the limit that the node set. Without reports it is p2p.plan.trees.UPLINK, at the coordinator `SOURCE_UPLINK`.
   A higher estimate is accepted at once. A lower one is accepted, in steps of `FADE`, only if the node sent less than
   `ENOUGH` of its planned rate: a node with few children shows only a part of its uplink.
3. A node feeds others only if its record (p2p/discovery/peer_records.py) has a directly dialable address. A parent that
   a node reports as failed is excluded for that node for `APART` seconds. Other nodes keep it, so that a false report
   affects only its sender.
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

import anyio.to_thread
import structlog

from p2p.discovery.peer_records import VerifiedRecord
from p2p.errors import P2PError, Unreachable
from p2p.handlers import Handlers
from p2p.multiaddr import route_of, route_of_requester
from p2p.network import Links, PayloadExchange, Rpc
from p2p.plan.repair import Planner
from p2p.plan.trees import LATENCY, UPLINK, LinkCapacity, PayloadSize
from protocol.broadcast_messages import PlanRequest, PlanResponse
from protocol.methods import FOLLOW, PLAN

SETTLE = 1.0
"""Least seconds between two plans."""
LOOK = 0.25
"""Seconds between two checks for disconnected nodes."""
PATIENCE = 5.0
"""Timeout of a "follow", seconds; a node that misses it requests the plan later by itself."""
SHARE = 0.1
APART = 300.0
FADE = 0.9
ENOUGH = 0.8
SOURCE_UPLINK = 12_500_000.0
"""The coordinator's uplink if no limit is set, bytes per second: 100 Mbit/s."""
MOST = 65_536
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


class BroadcastPlanner:
    """`uplinks`: bytes per second that peers have shown. `record`: of a peer, None where there is none. `load`: what a
    version brings, None before the first. `uplink`: the coordinator's own limit, bytes per second. `enabled`: False
    gives everybody an empty plan. `clock`: monotonic seconds."""

    def __init__(
        self,
        handlers: Handlers,
        rpc: Rpc,
        links: Links,
        exchange: PayloadExchange,
        *,
        uplinks: Callable[[], Mapping[str, float]],
        record: Callable[[str], VerifiedRecord | None],
        load: Callable[[], PayloadSize | None],
        uplink: float | None,
        enabled: bool,
        clock: Callable[[], float],
        seed: int,
    ) -> None:
        self._rpc, self._links, self._exchange = rpc, links, exchange
        self._uplinks, self._load, self._clock = uplinks, load, clock
        self._record = record
        self._limit, self._enabled = math.inf if uplink is None else uplink, enabled
        self._planner = Planner(links.peer_id, seed)
        self._nodes: dict[str, _Node] = {}
        self._shown: dict[str, float] = {}
        self._believed = {links.peer_id: SOURCE_UPLINK if uplink is None else uplink}
        """Uplinks, bytes per second."""
        self._made_at = self._due = -math.inf
        self._making = asyncio.Lock()
        PLAN.serve(handlers, self.answer)

    async def run(self) -> None:
        """Rebuild the plan after disconnects and tell nodes their new parents (rule 4), until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(LOOK)
                left = self._nodes.keys() - set(await self._links.peers())
                if left and self._clock() >= self._due:
                    async with self._making:
                        await self._make()
                for peer, parents in self._planner.plan.parents.items():
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
            if len(self._nodes) >= MOST:
                raise Unreachable("the plan is full")
            node = self._nodes[peer] = _Node(ask, None)
        node.ask, node.known = ask, self._record(peer)
        failed = set(ask.failed).intersection(self._planner.plan.parents.get(peer, ()))
        node.excluded |= dict.fromkeys(failed, self._clock() + APART)
        await self._settled(peer, bool(failed))
        return self._place(peer, node)

    def _place(self, peer: str, node: _Node) -> PlanResponse:
        parents = node.told = self._planner.plan.parents.get(peer, ())
        feeders = [self._nodes[parent] for parent in dict.fromkeys(parents) if parent in self._nodes]
        records = [feeder.known.sealed for feeder in feeders if feeder.known is not None]
        return PlanResponse(parents=list(parents), records=records)

    async def _tell(self, peer: str, node: _Node) -> None:
        try:
            await FOLLOW.ask(self._rpc, peer, self._place(peer, node), timeout=PATIENCE)
        except P2PError as error:
            log.debug("follow not delivered", node=peer, reason=str(error))
        finally:
            node.telling = False

    async def _settled(self, peer: str, changed: bool) -> None:
        """Wait until the plan includes `peer` and its reports."""
        asked_at = self._clock()
        async with self._making:
            if self._made_at > asked_at:
                return
            if not changed and peer in self._planner.plan.parents and asked_at < self._due:
                return
            await asyncio.sleep(max(0.0, self._due - self._clock()))
            await self._make()

    async def _make(self) -> None:
        connected, now = set(await self._links.peers()), self._clock()
        self._nodes = {peer: node for peer, node in self._nodes.items() if peer in connected}
        self._believe(dict(self._uplinks()))
        for node in self._nodes.values():
            node.excluded = {parent: until for parent, until in node.excluded.items() if until > now}
        lines = {peer: self._link(peer, node) for peer, node in self._nodes.items()}
        apart = {peer: set(node.excluded) for peer, node in self._nodes.items() if node.excluded}
        load = self._load() or PayloadSize(1 << 20, 1 << 14)
        uplink = min(self._believed[self._links.peer_id], self._limit)
        plan = await anyio.to_thread.run_sync(partial(self._planner.update, uplink, lines, load, apart))
        self._made_at = self._clock()
        self._due = self._made_at + max(SETTLE, (self._made_at - now) / SHARE)
        source = self._links.peer_id
        await self._exchange.follow((), [peer for peer, parents in plan.parents.items() if source in parents])
        log.debug("plan made", nodes=len(lines), stripes=plan.stripes, seconds=round(plan.seconds, 2))

    def _believe(self, shown: dict[str, float]) -> None:
        """Update the estimated uplinks from the new reports in `shown` (rule 2)."""
        plan = self._planner.plan
        fed = Counter(up for ups in plan.parents.values() for up in ups)
        for peer in (self._links.peer_id, *self._nodes):
            believed = self._believed.setdefault(peer, UPLINK)
            rate = shown.get(peer)
            if rate is None or rate == self._shown.get(peer):
                continue
            if rate > believed:
                self._believed[peer] = rate
            elif rate < ENOUGH * fed[peer] * plan.rate / plan.stripes:
                self._believed[peer] = max(rate, FADE * believed)
        here = {self._links.peer_id, *self._nodes}
        self._believed = {peer: rate for peer, rate in self._believed.items() if peer in here or peer in shown}
        self._shown = shown

    def _link(self, peer: str, node: _Node) -> LinkCapacity:
        ask, addresses = node.ask, node.known.addresses if node.known is not None else ()
        return LinkCapacity(
            uplink=min(self._believed[peer], ask.uplink if ask.uplink is not None else math.inf),
            downlink=ask.downlink or math.inf,
            latency=ask.latency / 1000 if ask.latency is not None else LATENCY,
            dialable=any(route_of(address) == "direct" for address in addresses),
        )
