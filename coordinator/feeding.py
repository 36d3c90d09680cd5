"""The plan of broadcasts, for the nodes that are connected: answers "plan".

Rules
1. In the plan is who asked for it and is connected; who leaves is out at the next making. It is made at most once in
   `SETTLE` seconds; whoever asks meanwhile waits for it.
2. An uplink is what others say that it sends them (coordinator/broadcasts.py), at most its owner's limit. That is
   a lower bound, since a planned feeder is asked for its share only: a lower one is believed in steps of `FADE` a
   making in which it is new, a higher one at once. Where nothing was shown it is p2p.plan.UPLINK.
3. Who names no address of its own that can be dialled directly feeds nobody. A parent that a node says does not feed it
   is not given to that node again for `APART` seconds; others keep it: a liar changes its own place only.
4. A plan is a hint: it is not signed, and a wrong one costs time alone.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import anyio.to_thread
import structlog

from p2p.addresses import way_of
from p2p.errors import Unreachable
from p2p.messages import Feeder, PlanAnswer, PlanAsk, decode, encode
from p2p.network import Network
from p2p.plan import LATENCY, UPLINK, Line, Load
from p2p.replan import Planner

METHOD = "plan"
LIMIT = 16 << 10
"""Bytes of an ask."""
SETTLE = 1.0
APART = 300.0
FADE = 0.9
SOURCE_UPLINK = 12_500_000.0
"""Bytes per second of the coordinator, where no limit is set: 100 Mbit/s."""
MOST = 65_536
"""Nodes in a plan."""

log = structlog.get_logger("coordinator")


@dataclass
class _Node:
    ask: PlanAsk
    uplink: float = UPLINK
    apart: dict[str, float] = field(default_factory=dict)
    """Parent that does not feed it -> until when to believe it."""


class Feeding:
    """`uplinks`: bytes per second that peers have shown. `load`: what a version brings, None before the first.
    `uplink`: the coordinator's own limit, bytes per second. `enabled`: False gives everybody an empty plan."""

    def __init__(
        self,
        network: Network,
        *,
        uplinks: Callable[[], Mapping[str, float]],
        load: Callable[[], Load | None],
        uplink: float | None,
        enabled: bool,
        clock: Callable[[], float],
        seed: int,
    ) -> None:
        self._network, self._uplinks, self._load, self._clock = network, uplinks, load, clock
        self._uplink, self._enabled = uplink or SOURCE_UPLINK, enabled
        self._planner = Planner(network.peer_id, seed)
        self._nodes: dict[str, _Node] = {}
        self._shown: dict[str, float] = {}
        self._made_at = -math.inf
        self._making = asyncio.Lock()
        network.serve(METHOD, self.answer, limit=LIMIT)

    async def answer(self, peer: str, data: bytes) -> bytes:
        """An encoded PlanAnswer. Raises `Malformed`, and `Unreachable` where there are too many nodes."""
        ask = decode(data, PlanAsk)
        if not self._enabled:
            return encode(PlanAnswer())
        node = self._nodes.get(peer)
        if node is None:
            if len(self._nodes) >= MOST:
                raise Unreachable("the plan is full")
            node = self._nodes[peer] = _Node(ask)
        node.ask = ask
        until = self._clock() + APART
        node.apart |= dict.fromkeys(ask.failed, until)
        await self._settled(peer, bool(ask.failed))
        parents = self._planner.plan.parents.get(peer, ())
        feeders = [
            Feeder(peer=parent, addresses=known.ask.addresses)
            for parent in dict.fromkeys(parents)
            if (known := self._nodes.get(parent)) is not None
        ]
        return encode(PlanAnswer(parents=list(parents), feeders=feeders))

    async def _settled(self, peer: str, changed: bool) -> None:
        """Wait until the plan has taken in what is new."""
        asked_at = self._clock()
        async with self._making:
            if self._made_at > asked_at:
                return
            due = self._made_at + SETTLE
            if not changed and peer in self._planner.plan.parents and asked_at < due:
                return
            await asyncio.sleep(max(0.0, due - self._clock()))
            await self._make()

    async def _make(self) -> None:
        connected, now = set(await self._network.peers()), self._clock()
        self._nodes = {peer: node for peer, node in self._nodes.items() if peer in connected}
        self._believe(dict(self._uplinks()))
        for node in self._nodes.values():
            node.apart = {parent: until for parent, until in node.apart.items() if until > now}
        lines = {peer: self._line(peer, node) for peer, node in self._nodes.items()}
        apart = {peer: set(node.apart) for peer, node in self._nodes.items() if node.apart}
        load = self._load() or Load(1 << 20, 1 << 14)
        plan = await anyio.to_thread.run_sync(partial(self._planner.update, self._uplink, lines, load, apart))
        self._made_at = self._clock()
        log.debug("plan made", nodes=len(lines), stripes=plan.stripes, seconds=round(plan.seconds, 2))

    def _believe(self, shown: dict[str, float]) -> None:
        """Rule 2."""
        for peer, node in self._nodes.items():
            rate = shown.get(peer)
            if rate is not None and rate != self._shown.get(peer):
                node.uplink = max(rate, FADE * node.uplink)
        self._shown = shown

    def _line(self, peer: str, node: _Node) -> Line:
        ask = node.ask
        direct = any(way_of(one) == "direct" and one.endswith(f"/p2p/{peer}") for one in ask.addresses)
        return Line(
            uplink=min(node.uplink, ask.uplink if ask.uplink is not None else math.inf),
            downlink=ask.downlink or math.inf,
            latency=ask.latency / 1000 if ask.latency is not None else LATENCY,
            dialable=direct,
        )
