"""Compose the coordinator's main process: network, group service, publisher, and the two model processes.

    request handler ─ group service ── learning ─┬─ scoring ── scorer process
                                                 └─ training ─ learner process ── publisher ── network ── advertiser

Rules
1. Everything long-lived is a task of one group: a failing task ends the daemon, and every `finally` runs.
2. No torch here: this process answers peers while models compute.
3. A restart finds everything in run.sqlite, the store, the learner's checkpoint and history.jsonl. Open leases are
   extended by the downtime, known peers are dialled again, and a new Head is published.
4. Under `run`, one iteration of the event loop is one commit (coordinator/database/group_commit.py). A failed commit
   ends the daemon.
"""

import asyncio
import itertools
import math
import os
import sqlite3
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import msgspec
import structlog

from echo2.coordinator.accounts.end_proofs import EndProofs
from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.accounts.ledger_check import LedgerCheck
from echo2.coordinator.accounts.ledger_service import LedgerService
from echo2.coordinator.accounts.run_logs import RunLogs
from echo2.coordinator.calibration.recalibration import Recalibration, VersionNumber
from echo2.coordinator.database.database import CHECK_EVERY, Database, check
from echo2.coordinator.database.group_commit import GroupCommit
from echo2.coordinator.environments.task_host import LocalTask, TaskHost
from echo2.coordinator.epochs.market_of_run import market_of
from echo2.coordinator.leases.absence import Absence
from echo2.coordinator.leases.rollout_context import Sealing
from echo2.coordinator.metrics.history import History
from echo2.coordinator.metrics.views import LinksView
from echo2.coordinator.nodes import operator_remarks, trusted_parties
from echo2.coordinator.publishing.advertiser import Advertiser
from echo2.coordinator.publishing.broadcast_planner import BroadcastPlanner, PlanInputs
from echo2.coordinator.publishing.foreign_heads import ForeignHeads
from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.run import keys, model_folder
from echo2.coordinator.run.sealing import Sealer
from echo2.coordinator.run.setup import Run, read_again
from echo2.coordinator.run.signing import ends_soon
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.coordinator.submissions import verdict_commands
from echo2.coordinator.submissions.request_handler import GreetingPorts, RequestHandler
from echo2.coordinator.submissions.run_records import RunRecords
from echo2.coordinator.training.live_settings import LiveSettings
from echo2.coordinator.training.model_loops import Learning
from echo2.coordinator.training.model_processes import Models
from echo2.coordinator.training.operator_socket import OperatorSocket, Orders
from echo2.coordinator.training.run_services import feeds_of, group_service_of, prompts_of, pure_tasks_of, signing_of
from echo2.coordinator.verdicts.lease_expiries import EXPIRED_AT_ONCE
from echo2.coordinator.verification.open_classes import ledger_keys
from echo2.coordinator.web.run_view_builder import RunViewBuilder
from echo2.ledger.ledger_entries import Tampered
from echo2.p2p.identity import public_key
from echo2.p2p.limits.origin import Origin
from echo2.p2p.limits.party import Parties
from echo2.p2p.network import Network
from echo2.protocol.ledger_heads import LedgerHead
from echo2.protocol.methods import LEDGER
from echo2.protocol.root_chain import Untrusted
from echo2.runtime import descriptors
from echo2.runtime.errors import DiskFull
from echo2.runtime.files import writing
from echo2.runtime.installation import public_install_command
from echo2.runtime.readiness import report_ready, report_stopping
from echo2.runtime.running_time import RunningTime
from echo2.runtime.units import DAY, bytes_per_second
from echo2.weights.store import Store

if TYPE_CHECKING:
    from echo2.coordinator.payouts.payout_book import LedgerBook

EXPIRY_POLL_SECONDS = 1.0
"""Seconds between two checks for expired leases."""
TIDY_SECONDS = 30.0
"""Seconds between two checks for files of old versions that may be deleted."""
FORGOTTEN_AT_ONCE = 4
"""Slices that one tick deletes of the data older than the challenge window (coordinator/verdicts/token_storage.py)."""

log = structlog.get_logger("coordinator")


class Coordinator:
    """One running coordinator. `network`, `models`: real ones, or stand-ins within this process. `clock`: seconds since
    the Unix epoch. `entropy`: returns that many random bytes."""

    def __init__(
        self,
        run: Run,
        network: Network,
        models: Models,
        *,
        store: Store,
        database: Database,
        hosts: Sequence[TaskHost] | None = None,
        parties: Parties | None = None,
        clock: Callable[[], float] = time.time,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """`hosts`: hosts of the run's tasks, open; None: in this process, which only pure tasks can be. `parties`:
        those of the network's entrances."""
        self._run, self._network, self._clock = run, network, clock
        self.parties = parties or Parties()
        self.tick_seconds, self.tidy_seconds = EXPIRY_POLL_SECONDS, TIDY_SECONDS
        self._running_time = RunningTime()
        self._reminded: int | None = None
        self._payments: LedgerBook | None = None
        self.beside: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Parts that run beside this daemon, and whose end does not end it."""
        self.page_refused: Callable[[], dict[str, int]] = dict
        """Returns the number of refused connections with the page, by limit."""
        self.history = History(run.folder.path / "history.jsonl")
        records, sealer = RunRecords(database, run.runspec.price_mode, entropy), Sealer(run)

        self.run_logs = RunLogs(run.folder, lambda: run.chain, database)
        self.ledger_heads = LedgerHeads(
            database, records.accounting.ledger, run.id, sealer, sealer.note,
            every=run.config.ledger.head_seconds * 1000, logs=lambda: self.run_logs.logs, holds=self._holds_heads,
        )  # fmt: skip
        self._recalibration = Recalibration(
            run, records.classes.newest, self._published_version, self._open_classes, self.now
        )
        self.market = market_of(run, records, self.ledger_heads, lambda: self.view_builder.need(), entropy)

        text = model_folder.tokenizer(run.folder.model, run.runspec.ends)
        hosts = hosts if hosts is not None else [LocalTask(task, text) for task in pure_tasks_of(run)]
        feeds = feeds_of(run, hosts)
        self._feeds = list(feeds.values())
        self.group_service = group_service_of(
            run, records, prompts_of(run, feeds, text), text, Sealing(sealer, sealer.again), entropy,
            paid_work=None if self.market is None else self.market.gate, to_come=self._recalibration.to_come,
        )  # fmt: skip
        self.absence = Absence(self.group_service.leases, self._running_time)

        self._publish(store)
        self.learning = Learning(
            run, hosts, self.group_service, self.publisher, self.history, models, clock, lambda: self.settings.finish()
        )
        self.settings = LiveSettings(run, [host.facts for host in hosts], self.group_service, self.learning, clock)
        self.settings.others.append(self._take_settings)

        self._check_ledger()
        self._control = self._answer_nodes()
        self._answer_operator(models)

    def _publish(self, store: Store) -> None:
        """Make the parts that sign versions, and bring them to the nodes."""
        run, network, service = self._run, self._network, self.group_service
        self.advertiser = Advertiser(run, network.links, network.inbound, service.registry.records, self.now)
        self.publisher = Publisher(
            signing_of(run), store, network, head_file=run.folder.head, addresses=self.advertiser.addresses,
            clock=self._clock, on_announce=service.broadcasts.on_announcement,
        )  # fmt: skip
        self.feeding = self._planner()

    def _check_ledger(self) -> None:
        """Make the parts that compare the ledger with the heads that nodes hold, and with itself."""
        database, watch = self.group_service.database, self.learning.training.watch
        self.foreign_heads = ForeignHeads(
            self._run, database, self._network.rpc, watch.stop, self.now, lambda: self.run_logs.logs, self._works,
            lambda: trusted_parties.trusted_nodes(database),
        )  # fmt: skip
        self.ledger_check = LedgerCheck(database.path, watch.stop)

    def _answer_operator(self, models: Models) -> None:
        """Make the parts that show the run, and do what the operator asks."""
        self.view_builder = RunViewBuilder(
            run=self._run, group_service=self.group_service, training=self.learning.training,
            scoring=self.learning.scoring, publisher=self.publisher, faults=models.faults, started=self.now(),
            clock=self._clock, installing=public_install_command(),
            market=None if self.market is None else self.market.figures,
        )  # fmt: skip
        orders = Orders(
            self.renew, self.remark, self.learning.guarding.order, self.on_verdict, self.pay, self.payments_wait,
            self.settings.finish, self.settings.change,
        )  # fmt: skip
        self.operator = OperatorSocket(self._run.folder.path, self.learning.training.watch, orders)

    def _answer_nodes(self) -> RequestHandler:
        """Answer the requests of nodes, and of whoever reads the ledger."""
        network, ports = self._network, GreetingPorts(self.foreign_heads.on_claim)
        if self.market is not None:
            ports = ports._replace(on_replaced=self.market.replaced_keys.on_greeting)
        control = RequestHandler(
            self._run, self.group_service, self.publisher, self.history, self.absence, self.now, ports
        )  # fmt: skip
        control.serve(network.handlers, network.inbound.origin)
        ledger = LedgerService(
            self.ledger_heads, EndProofs(self.group_service.database), network.inbound.origin, self._works,
            self.group_service.durable, time.monotonic, self.foreign_heads.on_evidence, self.foreign_heads.on_claim,
        )  # fmt: skip
        LEDGER.serve(network.handlers, ledger.answer)
        if self.market is not None:
            self.market.serve(control)
        return control

    def _planner(self) -> BroadcastPlanner:
        inputs = PlanInputs(
            uplinks=self.group_service.broadcasts.uplinks,
            record=lambda peer: self.group_service.registry.record(public_key(peer), self.now()),
            payload_size=self.publisher.payload_size,
        )
        return BroadcastPlanner(
            self._network,
            inputs,
            uplink=bytes_per_second(self._run.config.network.uplink),
            enabled=self._run.config.network.plan,
            clock=_elapsed_seconds,
            seed=int.from_bytes(self._run.id[:8], "big"),
        )

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            with self.group_service.database.group_commits() as commits, self._running_time:
                try:
                    await self._work(commits)
                finally:
                    report_stopping("ends in order")
                    self._sign_head(self.ledger_heads.sign)
                    self._keep_state()
        finally:
            self.history.close()

    def _take_settings(self, before: CoordinatorConfig, config: CoordinatorConfig) -> None:
        self.ledger_heads.every = config.ledger.head_seconds * 1000
        if config.network.uplink != before.network.uplink:
            self.feeding.limit(bytes_per_second(config.network.uplink))

    def _keep_state(self) -> None:
        """Write the state that the page would show, for `echo2-coord report` while no coordinator runs."""
        try:
            with writing(self._run.folder.last_state) as file:
                file.write(msgspec.json.encode(self.view_builder.build()))
        except (OSError, DiskFull, sqlite3.Error) as error:
            log.warning("last state not written", reason=str(error))

    async def _work(self, commits: GroupCommit) -> None:
        self._open_classes()
        self.settings.start()
        away = self.group_service.start(self.now())
        if away:
            log.info("coordinator restarted; open leases extended", away_seconds=round(away / 1000, 1))
        async with asyncio.TaskGroup() as group:
            group.create_task(commits.wait_for_fault(), name="commits")
            group.create_task(self._network.host.run(), name="network")
            await self._network.host.ready()
            report_ready("serves its page and nodes: echo2-coord status")
            for asset in self._run.runspec.assets:
                await self._network.exchange.share(asset.manifest, self._run.folder.model / asset.name)
            group.create_task(self.publisher.run(), name="publisher")
            group.create_task(self.publisher.rebuild(), name="remake")
            group.create_task(self.learning.run(), name="learning")
            for feed in self._feeds:
                group.create_task(feed.run(), name="prompts")
            group.create_task(self.advertiser.run(), name="presence")
            group.create_task(self.feeding.run(), name="feeding")
            group.create_task(self._tick(), name="tick")
            group.create_task(self.operator.run(), name="operator")
            group.create_task(self._check(), name="check")
            group.create_task(self.ledger_check.run(), name="ledger check")
            group.create_task(self._recalibration.run(), name="calibration")
            group.create_task(self.foreign_heads.run(), name="foreign heads")
            for part in self.beside:
                group.create_task(part(), name="beside")

    async def remark(self, word: str, peer: str, why: str) -> str:
        """Record the operator's remark on a key; return the key's new state as a sentence. `word`: vouch, ban, unban or
        note. Raises `LocalFault`."""
        said = operator_remarks.record_remark(self.group_service.accounts, word, peer, why, self.now())
        await self.group_service.durable()
        return said

    async def on_verdict(self, word: str, lease: str, why: str) -> str:
        """Have a verdict checked again, or reverse it; return the outcome as a sentence. Raises `LocalFault`."""
        may_load = self.learning.scoring.visits.weights.may_load  # of the scorer that checks verdicts again
        said = verdict_commands.carry_out(self.group_service, word, lease, why, self.now(), may_load=may_load)
        self.learning.arrived.set()
        await self.group_service.durable()
        return said

    async def pay(self, kind: str, facts: str) -> int:
        """Write an entry about a payment in money; return its time, ms. `facts`: facts as hexadecimal digits. Raises
        `LocalFault`."""
        from echo2.coordinator.payouts import payout_book  # most runs pay no money, and load none of it

        if self._payments is None:  # read when the first command comes: most runs have none
            self._payments = payout_book.LedgerBook(self.group_service.ledger, self.now)
        at = self._payments.write(kind, payout_book.decode_facts(kind, facts))
        await self.group_service.durable()
        return at

    def _works(self, origin: Origin) -> bool:
        return trusted_parties.works(self.group_service.database, origin, self.parties.known)

    def payments_wait(self) -> tuple[str, int]:
        """Return why payments wait, empty if they do not, and the newest head of the ledger that a node told."""
        return self.foreign_heads.payments_wait(self.now()), self.foreign_heads.witnesses.newest

    async def renew(self) -> int:
        """Load the newest Root from the run folder and switch to its keys; return its serial. Raises `LocalFault`."""
        fresh = await anyio.to_thread.run_sync(read_again, self._run, keys.passphrase())
        if fresh.roots != self._run.roots:
            self._run.take(fresh)
            self._control.take_keys()
            await self.publisher.sign_with(signing_of(self._run))
            log.info("newer Root taken", serial=fresh.root.serial)
        return fresh.root.serial

    def _remind(self) -> None:
        """Log once per day that the Root expires soon."""
        soon, day = ends_soon(self._run.root, self.now()), self.now() // DAY
        if soon and day != self._reminded:
            self._reminded = day
            log.warning("the run's Root ends soon", reason=soon)

    async def invite(self) -> str:
        """Return the invite with the network's present addresses."""
        return await self.advertiser.invite()

    async def _tick(self) -> None:
        tidied, fitted = -math.inf, self.publisher.latest
        while True:
            self.absence.check(self.now())
            ended = EXPIRED_AT_ONCE
            while ended == EXPIRED_AT_ONCE:
                busy = {self._network.inbound.origin(peer).connection for peer in self._network.handlers.take_busy()}
                ended = self.group_service.tick(self.now(), busy)
                await asyncio.sleep(0)
            left = self.market is not None
            while self.market is not None and left:
                left = self.market.tick(self.now(), finished=self._is_settled())
                await asyncio.sleep(0)
            self._follow_log()
            self._sign_head(self._due_head)
            if self.group_service.classes.waiting:
                self._open_classes()
            self.learning.training.watch.look()
            self._remind()
            await self._look_at_network()
            if await self.advertiser.has_moved():
                await self.publisher.announce()
            if fitted != self.publisher.latest or _elapsed_seconds() - tidied >= self.tidy_seconds:
                fitted = self.publisher.latest
                await self._fit_store()
            if _elapsed_seconds() - tidied >= self.tidy_seconds:
                tidied = _elapsed_seconds()
                self._open_classes()
                trusted = trusted_parties.trusted_nodes(self.group_service.database)
                self.parties.keep(trusted_parties.parties_of(trusted))
                self.parties.tell_addresses(await self.advertiser.addresses())
                self.group_service.registry.keep(one.node for one in trusted)
            await self._forget()
            await asyncio.sleep(self.tick_seconds)

    async def _fit_store(self) -> None:
        """Drop what the store need not keep, after each version and from time to time."""
        budget = self._run.config.store
        oldest, kept = self.group_service.oldest_needed(), self.learning.guarding.kept_versions()
        await self.publisher.retain(oldest, budget.budget_bytes, budget.payload_bytes, kept)

    def _is_settled(self) -> bool:
        progress = self.group_service.progress
        return progress is not None and progress.finished and self.learning.scoring.is_settled()

    def _due_head(self, now: int) -> LedgerHead | None:
        progress = self.group_service.progress
        return self.ledger_heads.tick(now, at_once=progress is not None and progress.finished)

    def _holds_heads(self, now: int) -> bool:
        return self.ledger_check.holds() or bool(self.run_logs.behind()) or self.foreign_heads.holds(now)

    def _follow_log(self) -> None:
        """Take a restored log whose document was put into the run folder, and go on."""
        watch = self.learning.training.watch
        try:
            begun = self.run_logs.look(self.now())
        except Untrusted as error:
            if watch.pause is None:
                watch.stop(str(error))
            return
        if begun is not None:
            log.warning("restored log begun", serial=begun.document.serial, entries=begun.document.size)
            watch.resume()
        elif watch.pause is None and (behind := self.run_logs.behind()):
            watch.stop(behind)

    def _sign_head(self, sign: Callable[[int], LedgerHead | None]) -> None:
        """Sign a head of the ledger if it is due. A ledger that contradicts its last head gets none."""
        try:
            head = sign(self.now())
        except Tampered as error:
            log.error("ledger is not the one that was signed; no head is signed", reason=str(error))
        else:
            if head is not None:
                log.info("ledger head signed", number=head.number, entries=head.size)

    def _open_classes(self) -> None:
        """Read Calibrations that were written since (coordinator/verification/open_classes.py)."""
        folder, ledger = self._run.folder.calibrations, ledger_keys(self._run.chain)
        classes, root_of = self.group_service.classes, self.group_service.leases.root_of
        for rounding in classes.read(folder, self._run.id, ledger, root_of):
            log.info("engine classes opened by a calibration", rounding=rounding)
        for costs in self.group_service.costs.read(folder, self._run.id, ledger, self.now()):
            log.info("costs in force from here on", decode=costs.decode, denominator=costs.denominator)

    def _published_version(self) -> VersionNumber | None:
        latest = self.publisher.latest
        return None if latest is None else VersionNumber(latest.era, latest.version)

    async def _check(self) -> None:
        """Check the database for damage when that is due, in a thread, and once per day. After an unclean stop verdicts
        wait for the check. Raises `Corrupt`."""
        database = self.group_service.database
        if not database.checked:
            log.info("database check begun; verdicts wait for it", file=database.path.name)
        while True:
            if not database.checked:
                await anyio.to_thread.run_sync(check, database.path, abandon_on_cancel=True)
                database.found_sound(self.now())
                log.info("database checked", file=database.path.name)
            self.learning.sound.set()
            await asyncio.sleep(CHECK_EVERY / 1000)
            database.checked = False

    async def _look_at_network(self) -> None:
        """Give the run view the connected peers, the refused connections and the relayed bytes."""
        peers, traffic = await self._network.links.peers(), await self._network.exchange.traffic()
        self.view_builder.connected = {*peers, *self.group_service.registry.sightings.over_https(self.now())}
        self.view_builder.invite = await self.invite()
        self.view_builder.relayed = traffic.relayed
        refused = {**traffic.refused, **self.page_refused()}
        self.view_builder.links = LinksView(
            open=len(peers),
            outside=self.parties.accepted[True],
            refused=refused,
            shortages=descriptors.SHORTAGES.count,
            hidden=trusted_parties.describe_hidden(self.parties),
        )

    async def _forget(self) -> None:
        """Delete a few slices of data that no restarted learner needs and whose challenge window has passed, or of
        groups beyond their bound on disk. A long backlog is deleted over hours, so that other work gets its time."""
        latest = self.publisher.latest
        if latest is None:
            return
        training = self.learning.training
        covered = frozenset(itertools.chain.from_iterable(training.covered))
        step = min(latest.version, training.covered_step)
        service = self.group_service
        for _ in range(FORGOTTEN_AT_ONCE):
            gone = service.forget(covered, step, latest.era, self.now())
            most = self._run.config.store.rollout_bytes
            if not gone + service.tokens.make_room(most, step, latest.era, service.terms.staleness):
                return
            await asyncio.sleep(0)

    def newest_head(self) -> bytes | None:
        return self.publisher.sealed_head

    def now(self) -> int:
        """Return the time, ms since the Unix epoch."""
        return int(self._clock() * 1000)


def _elapsed_seconds() -> float:
    """Return monotonic seconds, for intervals: setting the wall clock back stops none of them."""
    return asyncio.get_running_loop().time()
