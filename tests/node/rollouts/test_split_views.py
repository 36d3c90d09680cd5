"""Two histories of one ledger, each shown to a part of 200 nodes: they find it, and all of them end."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from echo2.node.errors import TrustFailure
from echo2.node.rollouts.ledger_exchange import ASK_EVERY, LedgerExchange
from echo2.node.rollouts.ledger_sources import PeerSource
from echo2.node.rollouts.outbox import Outbox
from echo2.node.run_state import NodeRunState
from echo2.node.trust.ledger_store import LedgerStore
from echo2.node.trust.ledger_witness import WitnessedHead
from echo2.p2p.errors import Unreachable
from echo2.p2p.handlers import Handlers
from echo2.protocol.ledger_heads import GrownHead, LedgerRequest, LedgerResponse
from tests.support.witnessed_log import CHAIN, RUN, Log

NODES, NEIGHBOURS, EPOCH = 200, 8, 900.0
"""Nodes, the peers to which each is connected, and seconds between two heads."""
JOINS = 22 * ASK_EVERY
"""When the late node comes."""
PER_HEAD, COMMON = 4, 3
"""Entries per head, and the heads that both histories share."""
MEMORY = Path(":memory:")


class History:
    """The heads of a ledger in order, each with the proof that it continues the one before."""

    def __init__(self, other: int | None = None) -> None:
        """`other`: the number of an entry that differs."""
        log, before = Log(40, other=other), list[WitnessedHead]()
        self.heads = list[GrownHead]()
        for number in range(1, 10):
            one = log.head(number, number * PER_HEAD, before[-1] if before else None)
            self.heads.append(log.heads_after(before[-1], one) if before else GrownHead(sealed=one.sealed))
            before.append(one)

    def answer(self, request: LedgerRequest, reached: int) -> LedgerResponse:
        """Answer as a coordinator does that has signed `reached` heads."""
        if request.after is None:
            heads = [GrownHead(sealed=self.heads[reached - 1].sealed)]
        else:
            heads = self.heads[request.after : reached]
        return LedgerResponse(heads=heads, every=int(1000 * EPOCH))


TRUE, FALSE = History(), History(other=COMMON * PER_HEAD + 1)


@dataclass
class Run:
    """All nodes, and the coordinator of two faces. `now`: seconds. `signed`: heads of each history at that time."""

    dice: random.Random
    now: float = 0.0
    nodes: list["Witness"] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    """When the coordinator was shown evidence."""

    @property
    def signed(self) -> int:
        return COMMON + int(self.now // EPOCH)

    @property
    def working(self) -> list["Witness"]:
        return [one for one in self.nodes if one.ended is None]


class Witness:
    """One node: its own exchange and files, and its connections in place of a network."""

    def __init__(self, run: Run, shown: History) -> None:
        self.run, self.shown = run, shown
        self.neighbours = list[Witness]()
        self.ended: float | None = None
        self.phase = run.dice.uniform(0, ASK_EVERY)
        trust = SimpleNamespace(trusted=SimpleNamespace(chain=CHAIN, head=None), serial=0)
        clock = SimpleNamespace(local=lambda: int(1000 * run.now), now=lambda: int(1000 * run.now))
        context: Any = SimpleNamespace(trust_store=trust, run=RUN, clock=clock)
        outbox, state = Outbox(MEMORY, node=bytes(32), limit=9), NodeRunState(lambda: int(1000 * run.now))
        sources: Any = self
        self.exchange = LedgerExchange(Handlers(), sources, context, LedgerStore(MEMORY), outbox, state)

    def coordinator(self) -> Any:
        return self._ask_coordinator

    async def _ask_coordinator(self, request: LedgerRequest) -> LedgerResponse:
        if request.fork:
            self.run.told.append(self.run.now)
        return self.shown.answer(request, self.run.signed)

    async def peers(self, most: int = 2) -> list[Any]:
        chosen = self.run.dice.sample(self.neighbours, min(most, len(self.neighbours)))
        return [PeerSource("party", one.answer) for one in chosen]

    async def instead(self, *, entries: bool) -> AsyncIterator[Any]:
        for one in [] if entries else await self.peers():
            yield one.ask

    async def answer(self, request: LedgerRequest) -> LedgerResponse:
        if self.ended is not None:
            raise Unreachable("this node has ended")
        return await self.exchange._answer("peer", request)

    async def round(self) -> None:
        """Do a round, unless this node has ended, and let those end at once that were told a fork by it."""
        if self.ended is not None:
            return
        try:
            await self.exchange.fetch()
        except TrustFailure:
            self.ended = self.run.now
            for one in self.run.working:
                if one.exchange._forks.known.is_set():
                    await one.round()


async def play(view: str, seed: int) -> Run:
    """Play until all nodes have ended, or for four epochs. The histories differ from the first epoch's end on."""
    run = Run(random.Random(seed))
    deceived = {"halves": NODES // 2, "single": 1, "late": 0}[view]
    run.nodes = [Witness(run, FALSE if number < deceived else TRUE) for number in range(NODES)]
    for one in run.nodes:
        one.neighbours = run.dice.sample([other for other in run.nodes if other is not one], NEIGHBOURS)
    for start in range(0, int(4 * EPOCH), int(ASK_EVERY)):
        if view == "late" and start == JOINS:
            late = Witness(run, FALSE)
            late.neighbours = run.dice.sample(run.nodes, NEIGHBOURS)
            run.nodes.append(late)
        for one in sorted(run.working, key=lambda one: one.phase):
            run.now = start + one.phase
            await one.round()
        if not run.working:
            break
    return run


@pytest.mark.parametrize("view", ["halves", "single", "late"])
@pytest.mark.slow
def test_a_split_view_of_200_nodes_is_found_within_two_epochs_and_ends_all(view: str) -> None:
    run = asyncio.run(play(view, seed=7))
    shown = JOINS if view == "late" else EPOCH
    ended = sorted(one.ended for one in run.nodes if one.ended is not None)
    print(f"\n{view}: found {ended[0] - shown:.0f} s after it was shown; {len(ended)} nodes have ended after "
          f"{ended[-1] - shown:.0f} s")  # fmt: skip
    assert len(ended) == len(run.nodes)
    assert ended[0] >= shown, "nothing is found in one history"
    assert ended[0] - shown <= 2 * EPOCH
    assert ended[-1] - shown <= 2 * EPOCH
    assert run.told[0] == ended[0], "the finder tells the coordinator before it ends"


@pytest.mark.slow
def test_one_history_is_no_fork_to_200_nodes() -> None:
    async def honest() -> Run:
        run = Run(random.Random(7))
        run.nodes = [Witness(run, TRUE) for _ in range(NODES)]
        for one in run.nodes:
            one.neighbours = run.dice.sample([other for other in run.nodes if other is not one], NEIGHBOURS)
        for start in range(0, int(2 * EPOCH), 5 * int(ASK_EVERY)):
            for one in run.nodes:
                run.now = start + one.phase
                await one.round()
        return run

    assert len(asyncio.run(honest()).working) == NODES
