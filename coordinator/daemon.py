"""The coordinator's main process, composed: network, books, publisher, and the two model processes.

    control ── books ──┬── scoring ── scorer process
                       └── training ─ learner process ── publisher ── network

Rules
1. Everything long-lived is a task of one group: what fails ends the daemon, with every `finally` run.
2. No torch here: this process answers peers while models compute.
3. A restart finds everything in run.sqlite, the store, the learner's checkpoint and history.jsonl. Open leases are
   extended by the time it was away, known peers are dialled again, and a new Head goes out.
"""

import asyncio
import itertools
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from coordinator import https, keys, modelfolder
from coordinator.admission import submission_limit
from coordinator.books import Books
from coordinator.config import CoordinatorConfig, LearnerSection
from coordinator.control import Control
from coordinator.database import Database
from coordinator.evaluation import Exam
from coordinator.feeding import Feeding
from coordinator.folder import locked
from coordinator.held import ScorerWeights
from coordinator.history import History
from coordinator.learner.calls import Hyper
from coordinator.leases import Entropy, Seal, Terms
from coordinator.picture import Painter
from coordinator.processes import Learner, LearnerChild, Scorer, ScorerChild, Supervised
from coordinator.prompts import TaskPrompts
from coordinator.publisher import Publisher, Signing
from coordinator.roster import Roster
from coordinator.scoring import Scoring
from coordinator.setup import Run
from coordinator.training import Course, Training
from coordinator.web.site import application, serve_web
from engines.remote import python_path
from p2p import mdns
from p2p.addresses import listenable, peer_of
from p2p.envelope import ROLES, seal
from p2p.errors import LocalFault, Unreachable
from p2p.identity import public_bytes, public_key
from p2p.invite import Invite
from p2p.messages import Acknowledgement, LeaseAsk, Refusal, SubmitAnswer, VerdictsAsk
from p2p.messages import Verdicts as VerdictsAnswer
from p2p.network import Network
from p2p.relay import MBIT, RelayLimits
from p2p.strangers import Strangers
from tasks.task import Text
from weights.store import Store

FIRST_ERA = 1
TICK = 1.0
"""Seconds from one look at expired leases to the next."""
STOPPED = 5_000
"""Milliseconds between two ticks from which on this process was not there: stopped, or its machine suspended."""
REDIALS = (0.0, 35.0, 70.0)
"""Seconds before each attempt at nodes of an earlier life; p2p/outgoing.py leaves who did not answer alone so long."""
RELAY_RETRY = 30.0
"""Seconds between two attempts at a relay that does not answer."""
TIDY = 30.0
"""Seconds from one look at what may be dropped to the next."""
CHALLENGE_WINDOW = 24 * 3600 * 1000
"""Milliseconds for which the tokens of a decided group are kept, so that a verdict can be run again."""

log = structlog.get_logger("coordinator")


@dataclass
class Desk:
    """The books as nodes reach them: what a node brings wakes whoever waits for it."""

    books: Books
    history: History
    arrived: asyncio.Event
    _here: int | None = None

    def here(self, now: int) -> None:
        """At each tick, and before an answer: after a stop, open leases get its time back, as after a restart."""
        if self._here is not None and now - self._here > STOPPED:
            log.warning("was stopped", away_seconds=self.books.leases.resume(now) / 1000)
        self._here = now

    @property
    def roster(self) -> Roster:
        return self.books.roster

    def lease(self, node: bytes, ask: LeaseAsk, now: int) -> bytes | Refusal:
        self.here(now)
        self.history.first_asked(ask.version, now)
        return self.books.lease(node, ask, now)

    def submit(self, node: bytes, data: bytes, now: int) -> SubmitAnswer | Refusal:
        self.here(now)
        answer = self.books.submit(node, data, now)
        self.arrived.set()
        return answer

    def verdicts(self, node: bytes, ask: VerdictsAsk) -> VerdictsAnswer:
        return self.books.verdicts(node, ask)

    def acknowledge(self, node: bytes, message: Acknowledgement, now: int) -> None:
        self.books.acknowledge(node, message, now)


@dataclass
class Papers:
    """What a hello is answered with."""

    run: Run
    publisher: Publisher
    books: Books

    def roots(self) -> list[bytes]:
        return list(self.run.roots)

    def runspec(self) -> bytes:
        return self.run.runspec_sealed

    def head(self) -> bytes | None:
        return self.publisher.sealed_head

    def peers(self, now: int) -> list[bytes]:
        return [known.sealed for known in self.books.roster.records(now)]


class Coordinator:
    """One run, alive. `network`, `learner` and `scorer` may be real or in-process; `clock`: seconds since the epoch."""

    def __init__(
        self,
        run: Run,
        network: Network,
        learner: Learner,
        scorer: Scorer,
        *,
        store: Store,
        database: Database,
        clock: Callable[[], float] = time.time,
        entropy: Callable[[int], bytes] = os.urandom,
        faults: list[str] | None = None,
    ) -> None:
        self._run, self._network, self._clock = run, network, clock
        self._arrived, self._work = asyncio.Event(), asyncio.Event()
        self._reached: list[str] | None = None
        text = modelfolder.tokenizer(run.folder.model, run.runspec.eos)
        self.history = History(run.folder.path / "history.jsonl")
        self.books = books_of(run, database, text, self._seal, entropy)
        self.publisher = Publisher(
            Signing(run.id, run.keys.policy, run.keys.channel, run.root.serial),
            store,
            network,
            head_file=run.folder.path / "head",
            addresses=self.addresses,
            clock=clock,
            announcing=self.books.broadcasts.announced,
        )
        self.training = Training(
            course=course_of(run, FIRST_ERA),
            learner=learner,
            books=self.books,
            publisher=self.publisher,
            history=self.history,
            clock=clock,
            work=self._work,
            moved=self._arrived,
        )
        self.scoring = Scoring(
            scorer=scorer,
            books=self.books,
            publisher=self.publisher,
            history=self.history,
            exam=Exam(run.task, text, run.runspec.limit, run.config.run.heldout),
            weights=ScorerWeights(
                scorer, self.publisher, model=run.folder.model, folder=run.folder.scorer, oldest=self.books.oldest
            ),
            evaluate_every=run.config.run.evaluate_every,
            eos=run.runspec.eos,
            clock=clock,
            arrived=self._arrived,
            decided=self._work,
        )
        self.painter = Painter(
            run=run,
            books=self.books,
            training=self.training,
            scoring=self.scoring,
            publisher=self.publisher,
            faults=faults if faults is not None else [],
            started=self._now(),
            clock=clock,
        )
        papers, limit = Papers(run, self.publisher, self.books), run.config.network.uplink
        self.feeding = Feeding(
            network,
            uplinks=self.books.broadcasts.uplinks,
            record=lambda peer: self.books.roster.record(public_key(peer), self._now()),
            load=self.publisher.load,
            uplink=None if limit is None else limit * MBIT,
            enabled=run.config.network.plan,
            clock=clock,
            seed=int.from_bytes(run.id[:8], "big"),
        )
        self.desk = Desk(self.books, self.history, self._arrived)
        control = Control(self.desk, papers, run.runspec, public_bytes(run.keys.channel), self._now)
        control.serve(network, submission_limit(run.runspec))

    async def run(self) -> None:
        """Serve until cancelled."""
        away = self.books.start(self._now())
        if away:
            log.info("back again", away_seconds=round(away / 1000, 1))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._network.run(), name="network")
                await self._network.ready()
                for asset in self._run.runspec.assets:
                    await self._network.share(asset.manifest, self._run.folder.model / asset.name)
                group.create_task(self.publisher.run(), name="publisher")
                group.create_task(self.publisher.remake(), name="remake")
                group.create_task(self.training.run(), name="training")
                group.create_task(self.scoring.run(), name="scoring")
                group.create_task(self._tick(), name="tick")
                group.create_task(self._redial(), name="redial")
                group.create_task(self._reserve(), name="reserve")
                group.create_task(self._announce(), name="announce")
        finally:
            self.history.close()

    async def addresses(self) -> list[str]:
        """Where nodes reach this coordinator."""
        return https.reached(self._run.config, self._run.peer_id, await self._network.addresses())

    async def invite(self) -> str:
        return self._run.invite(await self._network.addresses())

    async def _tick(self) -> None:
        tidied = -math.inf
        while True:
            self.desk.here(self._now())
            self.books.tick(self._now())
            self.painter.connected = {*await self._network.peers(), *self.books.roster.over_https(self._now())}
            self.painter.invite = await self.invite()
            self.painter.relayed = (await self._network.traffic()).relayed
            await self._announce_moves()
            if self._clock() - tidied >= TIDY:
                tidied = self._clock()
                budget = self._run.config.store
                await self.publisher.retain(self.books.oldest(), budget.budget_bytes, budget.payload_bytes)
                self._forget_tokens()
            await asyncio.sleep(TICK)

    def _forget_tokens(self) -> None:
        """Tokens that neither a restarted learner nor an appeal can ask for."""
        latest = self.publisher.latest
        if latest is not None:
            covered = itertools.chain.from_iterable(self.training.covered)
            self.books.buffer.drop_payloads(covered, latest.version, latest.era, self._now() - CHALLENGE_WINDOW)

    async def _redial(self) -> None:
        """After the start: nodes of an earlier life learn that the coordinator is back, and where; the busy later."""
        strangers = Strangers(self._network, self._run.id, self._now)
        for wait in REDIALS:
            await asyncio.sleep(wait)
            connected = set(await self._network.peers())
            for known in self.books.roster.records(self._now()):
                if known.peer not in connected:
                    await strangers.find(known.addresses)

    async def _reserve(self) -> None:
        """Be reachable through the relays that the operator named; each is tried until it takes the coordinator."""
        waiting: dict[str, list[str]] = {}
        for address in self._run.config.network.relays:
            waiting.setdefault(peer_of(address), []).append(address)
        while waiting:
            for relay, addresses in list(waiting.items()):
                try:
                    await self._network.reserve(addresses)
                    del waiting[relay]
                    log.info("reachable through a relay", relay=relay)
                except Unreachable as error:
                    log.warning("a relay does not take this coordinator", relay=relay, reason=str(error))
            await asyncio.sleep(RELAY_RETRY)

    async def _announce(self) -> None:
        """On the local network, where there is one (rules: p2p/mdns.py)."""
        invite = Invite.from_text(await self.invite())
        hosts = mdns.private(invite.addresses)
        if not (self._run.config.network.mdns and hosts):
            return
        try:
            await mdns.announce(mdns.Nearby(name=self._run.config.run.name, invite=invite), hosts)
        except LocalFault as error:
            log.warning("no announcement", reason=str(error))

    async def _announce_moves(self) -> None:
        """A Head goes out at once where this coordinator's addresses have changed."""
        before, self._reached = self._reached, await self.addresses()
        if before not in (None, self._reached):
            log.info("addresses changed", addresses=self._reached)
            await self.publisher.announce()

    def _seal(self, kind: str, payload: bytes) -> bytes:
        keys = {"policy": self._run.keys.policy, "channel": self._run.keys.channel, "ledger": self._run.keys.ledger}
        return seal(kind, self._run.id, payload, keys[ROLES[kind]])

    def _now(self) -> int:
        return int(self._clock() * 1000)


async def serve(run: Run) -> None:
    """One coordinator on libp2p with its model processes and its page, until cancelled."""
    from p2p.threaded import ThreadedPeer

    faults: list[str] = []
    section = run.config.learner
    threads = {"OMP_NUM_THREADS": str(section.threads)}

    def supervised(name: str, module: str) -> Supervised:
        argv = [sys.executable, "-m", module]
        return Supervised(argv, name=name, env=python_path(threads), clock=time.monotonic, on_death=faults.append)

    learner = LearnerChild(supervised("learner", "coordinator.learner.process"))
    scorer = ScorerChild(
        supervised("scorer", "engines.host"), device=section.device, dtype=run.config.run.compute_dtype
    )
    reach = run.config.network
    relay = RelayLimits(rate=reach.relay_rate * MBIT) if reach.relay else None
    up, down = (None if rate is None else rate * MBIT for rate in (reach.uplink, reach.downlink))
    peer = ThreadedPeer(run.keys.channel, listenable(reach.listen), relay=relay, uplink=up, downlink=down)
    network = with_https(peer, run, peer.turn if up is not None else None)
    with locked(run.folder), Store(run.folder.store) as store, Database.open(run.folder.database) as database:
        coordinator = Coordinator(run, network, learner, scorer, store=store, database=database, faults=faults)
        site = await serve_web(application(coordinator.painter.paint), run.config.web.host, run.config.web.port)
        try:
            await coordinator.run()
        finally:
            await site.stop()
            await learner.child.stop()
            await scorer.child.stop()


def with_https(network: Network, run: Run, turn: Callable[[str, int], Awaitable[None]] | None = None) -> Network:
    """`network`, and HTTPS beside it where the settings say so. `turn`: see `HttpsServer`. Raises `LocalFault`."""
    from p2p.certificate import server_context
    from p2p.https_server import HttpsServer

    if not run.config.https.listen:
        return network
    context = server_context(run.folder.https_certificate, run.folder.https_key, keys.passphrase())
    return HttpsServer(network, listenable(run.config.https.listen), context, turn=turn)


def books_of(run: Run, database: Database, text: Text, seal: Seal, entropy: Entropy) -> Books:
    """The books of a run, over its database."""
    return Books(
        database,
        spec=run.runspec,
        terms=terms_of(run),
        prompts=TaskPrompts([run.task], text, seed=int.from_bytes(run.id[:8], "big")),
        tasks={(run.task.name, run.task.version): run.task},
        text=text,
        seal=seal,
        entropy=entropy,
    )


def terms_of(run: Run) -> Terms:
    """What all leases have in common, from the signed RunSpec and the settings."""
    spec, config = run.runspec, run.config
    return Terms(
        staleness=spec.staleness,
        batch_groups=config.run.batch_groups,
        group_size=spec.group_size,
        limit=spec.limit,
        engines=list(spec.engines),
        per_node=config.leases.per_node,
        least_ms=int(config.leases.minimum_seconds * 1000),
        most_ms=int(config.leases.maximum_seconds * 1000),
    )


def course_of(run: Run, era: int) -> Course:
    """What the learner is told."""
    config: CoordinatorConfig = run.config
    section: LearnerSection = config.learner
    names = [name for name in Hyper.__struct_fields__ if hasattr(section, name)]
    hyper = Hyper(**{name: getattr(section, name) for name in names})
    folder: Path = run.folder.learner
    return Course(run.folder.model, folder, section.device, section.threads, hyper, config.run.steps, era)
