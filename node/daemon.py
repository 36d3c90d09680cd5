"""The node's main process: it builds all parts, starts them in order and ends them in order, and never imports torch.

    network ─ connectivity (coordinator) ─ follower (versions) ─ engine (child) ─ rollouts (leases) ─ outbox relay

Rules
1. Parts are tasks of one group. The first part that fails ends all of them, and its error names the fix.
2. To finish, the node requests no more leases, completes and delivers its work, and waits for answers for at most
   `drain` seconds. Ctrl-C while the node finishes ends it at once, and one before it has started waits for no answers.
   The outbox is then delivered after the next start.
   a. SIGTERM is the end of a service or a container, which is killed soon: groups that are whole within
      `WHOLE_SECONDS` are stored, the leases of the others are given back, and submissions are sent for
      `HAND_OVER_SECONDS`. A second one ends the node at once.
3. The coordinator may be absent at any time. Only the first start for a run waits for it.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from echo2.engines.engine import EngineUnusable, dtype_named
from echo2.engines.process.candidates import Candidate
from echo2.engines.process.device_list import device_list
from echo2.engines.process.engine_fleet import EngineFleet
from echo2.engines.process.messages import Probed
from echo2.engines.process.process import EngineProcess
from echo2.engines.process.versioned import VersionedEngine
from echo2.engines.registry import AUTO_ENGINE
from echo2.node import joined_run
from echo2.node.config import NodeConfig
from echo2.node.connectivity import Connectivity
from echo2.node.control.commands import ControlCommands, DaemonParts
from echo2.node.engine_child import engine_threads, starting_words
from echo2.node.engine_choice import EngineChoice
from echo2.node.engine_devices import engine_for
from echo2.node.error_translation import translated_errors
from echo2.node.errors import NodeError, own_code
from echo2.node.limits.caps import OwnerCaps
from echo2.node.limits.caps_watch import MONTH_FILE, CapsWatch
from echo2.node.limits.device_limits import DeviceLimits
from echo2.node.links.own_rank import OwnRank
from echo2.node.market.ask_keeper import AskKeeper
from echo2.node.market.market_words import MILLI
from echo2.node.market.payee_keeper import PayeeKeeper
from echo2.node.owner.device_sensors import DeviceSensors
from echo2.node.owner.owner_probes import Probe
from echo2.node.owner.owner_rules import OwnerRules
from echo2.node.owner.owner_watch import OwnerWatch
from echo2.node.owner.work_hours import parse_hours
from echo2.node.rollouts.engine_workers import EngineWorkers
from echo2.node.rollouts.ledger_exchange import LedgerExchange
from echo2.node.rollouts.ledger_sources import LedgerSources, Source, over_https
from echo2.node.rollouts.outbox import Outbox
from echo2.node.rollouts.outbox_relay import OutboxRelay
from echo2.node.rollouts.served_groups import ServedGroups
from echo2.node.rollouts.turn_store import TurnStore
from echo2.node.rollouts.worker import RolloutWorker
from echo2.node.run_context import RunContext
from echo2.node.run_state import DeviceRunState, NodeRunState
from echo2.node.trust import market_store
from echo2.node.trust.ledger_store import LedgerStore
from echo2.node.versions.acknowledgements import Acknowledger
from echo2.node.versions.base_copies import BaseCopies
from echo2.node.versions.document_exchange import DocumentExchange
from echo2.node.versions.follower import Follower
from echo2.node.versions.local_weights import LocalWeights, free_memory_of_others
from echo2.node.versions.payload_fetcher import PayloadFetcher
from echo2.p2p.network import Network
from echo2.protocol.broadcast_messages import Acknowledgement
from echo2.protocol.methods import ACKNOWLEDGE, MARKET, PAYEE, RANK
from echo2.runtime.control_client import socket_path
from echo2.runtime.control_socket import ControlSocket
from echo2.runtime.exception_groups import foremost
from echo2.runtime.exit_codes import Exit
from echo2.runtime.readiness import report_ready, report_stopping

FREED_WITHIN: Final = 2.5
"""Seconds from the start of a pause in which groups may be completed. With what it takes to notice an owner, and to end
a process, the device's memory is free within 5 s."""

WHOLE_SECONDS: Final = 2.0
"""Seconds after SIGTERM in which groups under way may still become whole (rule 2a)."""
HAND_OVER_SECONDS: Final = 2.5
"""Most seconds for which their leases are given back and submissions sent after that."""
END_SECONDS: Final = 7.5
"""Most seconds from SIGTERM to the end of the process: docker kills after 10."""
SLOW_START: Final = 20.0
"""Seconds without a ready engine after which the log says so."""
LAST_PROOFS: Final = 5.0
"""Most seconds for which a node that ends waits for the proofs of its last Receipts."""

_log = structlog.get_logger("node")


class NodeDaemon:
    """The daemon of one node in one run. The caller holds the lock of the home."""

    def __init__(
        self,
        config: NodeConfig,
        context: RunContext,
        network: Network,
        engine: Callable[[], EngineProcess],
        *,
        once: bool = False,
        choice: EngineChoice | None = None,
        owner: Sequence[Probe] = (),
        sensors: DeviceSensors | None = None,
        copies: BaseCopies | None = None,
    ) -> None:
        """`once`: end after one group. `engine`: returns a new engine process, not yet started. `choice`: times the
        engines, unless the settings name devices; None: the first that is installed generates. `owner`: probes of what
        the owner does. `sensors`: sensors of the devices; None: none is read. `copies`: copies of the base; None: none
        is looked for. Raises `NodeError`."""
        self._config = config
        self.context, self.network = context, network
        self.outbox = Outbox(context.folder / "outbox.sqlite", node=context.node, limit=config.outbox)
        self.run_state = NodeRunState(context.clock.local)
        self._watch = OwnerWatch(
            OwnerRules(parse_hours(config.hours), config.quiet), owner, self.run_state, self._local_time,
        )  # fmt: skip
        self.fleet = EngineFleet([
            VersionedEngine(engine, device=device, engine=engine_for(device, config), seed=context.seed + number)
            for number, device in enumerate(device_list(config.gpu)[: 1 if once else None])
        ])  # fmt: skip
        self.engine = self.fleet.engines[0]
        self.fleet.dtype = dtype_named(config.dtype) or "float32"
        self._follow_versions(copies)
        self.connectivity = Connectivity(config, context, network, self.fleet, self.follower)
        if choice is not None:
            self.connectivity.on_calibrated = choice.on_calibrated_classes
        if choice is not None and config.gpu == AUTO_ENGINE:
            self._times(choice, once=once)
        self._keep_ledger()
        self._make_workers(choice, once=once)
        caps = OwnerCaps(config, self._local_time)
        self.device_limits = DeviceLimits(config, self.fleet.engines, self.device_states, sensors, caps)
        self.caps_watch = CapsWatch(
            caps, network.exchange, self.connectivity.plan_client, self.run_state, context.folder / MONTH_FILE,
            self.device_limits.put_duties,
        )  # fmt: skip
        self._answer_owner(sensors)
        self._tasks: TaskGroup | None = None
        self._patience: anyio.CancelScope | None = None
        """Scope of the start, the work and the drain; `end_soon` gives it a deadline."""
        self._cut_short = False
        self.begins_again = False
        """Whether it ended to begin again, with an engine on each of the equal cards."""
        self._delivers = False
        """Whether the relay of the outbox was started."""

    def _local_time(self) -> datetime:
        return datetime.fromtimestamp(self.context.clock.local() / 1000)

    def _follow_versions(self, copies: BaseCopies | None) -> None:
        """Make the parts that fetch versions and bring them to the engines."""
        context, network = self.context, self.network
        self.acknowledger = Acknowledger(self._tell)
        self.payloads = PayloadFetcher(
            network.exchange, network.rpc, network.links, context.store, self.acknowledger,
            coordinator=self._coordinator,
        )  # fmt: skip
        documents = DocumentExchange(
            network.handlers, network.rpc, network.links, context, coordinator=self._coordinator
        )
        self._weights = LocalWeights(context.folder / "weights", quota=int(self._config.disk * 1e9))
        self.follower = Follower(
            network.gossip, context, self._weights, self.payloads, documents, self.fleet, self.acknowledger, copies
        )
        self.follower.may_fetch = self.run_state.until_line_is_free

    def _keep_ledger(self) -> None:
        """Make the parts that know what the run owes the node: rank, proofs, ask and account."""
        context, network, client = self.context, self.network, self.connectivity.coordinator_client
        self.own_rank = OwnRank(lambda: client.call(RANK, None), lambda: self.outbox.work() > 0)
        self.ledger_store = LedgerStore(context.folder / "ledger.sqlite")
        sources = LedgerSources(
            network.rpc, network.links, self._coordinator, network.inbound.origin, context.seed, self._over_https()
        )
        self.ledger_exchange = LedgerExchange(
            network.handlers, sources, context, self.ledger_store, self.outbox, self.run_state
        )
        self.connectivity.newest_head = self.ledger_store.reference
        self.market_store = market_store.MarketStore(context.folder / market_store.FILE)
        self.ask_keeper = AskKeeper(
            context, lambda request: client.call(MARKET, request), self.market_store, self._config.ask
        )
        self.payee_keeper = PayeeKeeper(context, lambda request: client.call(PAYEE, request))

    def _make_workers(self, choice: EngineChoice | None, *, once: bool) -> None:
        """Make the parts that take leases, and hand groups in."""
        context, client = self.context, self.connectivity.coordinator_client
        self.outbox_relay = OutboxRelay(self.outbox, client, context)
        self.turn_store = TurnStore(context.folder / "turns.sqlite")
        served = ServedGroups(self.turn_store, client, seed=context.seed)
        self.device_states = [DeviceRunState(self.run_state) for _ in self.fleet.engines]
        workers = [
            RolloutWorker(context, one, self.follower, client, self.outbox_relay, state, served, once=once)
            for one, state in zip(self.fleet.engines, self.device_states, strict=True)
        ]
        if choice is not None:
            for worker in workers:
                worker.group_milliseconds = choice.group_milliseconds
        self.rollouts = EngineWorkers(self.fleet, workers, client, self.outbox_relay, self.run_state, served)
        self.follower.work_facts = self.rollouts.work_facts

    def _answer_owner(self, sensors: DeviceSensors | None) -> None:
        """Make the socket at which the owner's commands ask, and what answers them."""
        self.commands = ControlCommands(
            DaemonParts(
                config=self._config, context=self.context, network=self.network, fleet=self.fleet,
                follower=self.follower, payloads=self.payloads, connectivity=self.connectivity, rollouts=self.rollouts,
                outbox=self.outbox, ledger_store=self.ledger_store, ledger_exchange=self.ledger_exchange,
                run_state=self.run_state, own_rank=self.own_rank, caps_watch=self.caps_watch, sensors=sensors,
                device_limits=self.device_limits, ask_keeper=self.ask_keeper, payee_keeper=self.payee_keeper,
            )
        )  # fmt: skip
        self._control = ControlSocket(
            socket_path(self._config.home), self.commands.by_name(), logger="node", own_code=own_code
        )

    async def run(self) -> Exit:
        """Work until the owner or the run finishes. Return INTERRUPTED if a signal cut that short (rule 2). Raises
        `NodeError`."""
        try:
            with translated_errors():
                await self._run()
        finally:
            waiting, points = self.outbox.waiting(), self.outbox.work() / MILLI
            await self.fleet.stop()
            self.close()
        if self.begins_again:
            return Exit.OK
        why = self.run_state.why_finishing.partition(";")[0]
        _log.info(
            "ended", why=why, undelivered=waiting, points=points, rank=self.own_rank.words(), page=self._own_page()
        )
        return Exit.INTERRUPTED if self._cut_short else Exit.OK

    @property
    def several(self) -> bool:
        """Whether it has several engines."""
        return len(self.fleet.engines) > 1

    def _own_page(self) -> str:
        """Return the address of this node's part of the run's page; empty: it is not known, or the run has none."""
        spec = self.context.trust_store.trusted.runspec
        return "" if spec is None else joined_run.permalink(spec.value, self.network.links.peer_id)

    def close(self) -> None:
        """Close the outbox and the stores, and free the weights' memory. The daemon must not run."""
        self._weights.free_memory()
        self.outbox.close()
        self.turn_store.close()
        self.ledger_store.close()
        self.market_store.close()
        self.context.store.close()

    def interrupt(self, why: str) -> None:
        """Finish because of a signal; if the node is already finishing, end at once. `why`: the reason for the log."""
        if self.run_state.finishing and self._tasks is not None:
            self._cut_short = True
            self._tasks.cancel_scope.cancel()
        self.run_state.finish(why)

    def end_soon(self, why: str) -> None:
        """Finish within `END_SECONDS` (rule 2a); if that has been asked for already, end at once. `why`: the reason for
        the log."""
        if self._patience is None or self._patience.deadline < math.inf:
            return self.interrupt(why)
        self._patience.deadline = asyncio.get_running_loop().time() + WHOLE_SECONDS
        self.run_state.finish(why)

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._watch.run)
                for part in (self.network.host.run, self._control.run, self._report_end):
                    self._tasks.start_soon(part)
                for number in range(len(self.fleet.engines)):
                    self._tasks.start_soon(self._rest_while_paused, number)
                with anyio.CancelScope() as self._patience:
                    await self.network.host.ready()
                    self._tasks.start_soon(self.caps_watch.run)
                    report_ready("looks for the coordinator, or works: echo2-node status")
                    await self.run_state.unless_finishing(self._start(self._tasks))
                    await self.rollouts.run()
                    await self._drain()
                if self._patience.cancelled_caught and self._delivers:
                    await self._hand_over()
                self._tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            self._tasks = None

    async def _start(self, tasks: TaskGroup) -> None:
        """Start the engine, the connections, and the follower with the model's files, each once the one before is
        ready."""
        slow = asyncio.get_running_loop().call_later(SLOW_START, lambda: _log.warning(starting_words(self._config)))
        try:
            _log.info((await self._first_engine()).sentence(), threads=engine_threads(self._config))
        finally:
            slow.cancel()
        tasks.start_soon(self.device_limits.run)
        tasks.start_soon(self.connectivity.run)
        await self.connectivity.search()
        if self.context.trust_store.trusted.runspec is None:
            await self.connectivity.coordinator_client.wait_until_connected()
        runspec = self.context.trust_store.trusted.runspec
        assert runspec is not None
        for sentence in joined_run.sentences(
            runspec.value, self._config, self.context.invite.fingerprint, self.network.links.peer_id
        ):
            _log.info(sentence)
        await self.connectivity.fit(runspec.value)
        await self.follower.prepare(self.context.folder / "model", runspec.value.assets)
        await anyio.to_thread.run_sync(free_memory_of_others, self.context.folder)
        await self.follower.resume()
        tasks.start_soon(self.follower.run)
        for engine in self.fleet.engines:
            tasks.start_soon(self.fleet.keep_up, engine)
        tasks.start_soon(self.follower.heads.keep_hearing)
        tasks.start_soon(self.outbox_relay.run)
        tasks.start_soon(self.ledger_exchange.run)
        tasks.start_soon(self.ask_keeper.run)
        tasks.start_soon(self.payee_keeper.run)
        tasks.start_soon(self.payee_keeper.learn)
        tasks.start_soon(self.own_rank.run)
        self._delivers = True
        tasks.start_soon(self.acknowledger.run)

    async def _first_engine(self) -> Probed:
        """Start the engine. One that was kept from an earlier start may be gone: the choice is then made anew."""
        try:
            return await self.fleet.start()
        except EngineUnusable as error:
            if not self.engine.chosen:
                raise
            _log.warning("the engine chosen earlier cannot be used", reason=str(error))
            self.engine.reopen(self._config.engine, self._config.gpu)
            return await self.engine.start()

    async def _drain(self) -> None:
        self.rollouts.blocked = f"finishing: {self.run_state.why_finishing}"
        _log.info(self.rollouts.blocked, waiting=self.outbox.waiting())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain):
                while self._delivers and (self.outbox.waiting() or self.outbox.unconfirmed_leases(1)):
                    self.outbox_relay.settled.clear()
                    self.outbox_relay.finish()
                    await self.outbox_relay.settled.wait()
        if self._delivers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_PROOFS):
                    await self.ledger_exchange.finish()

    async def _hand_over(self) -> None:
        """Give back the leases that are open, and send submissions (rule 2a)."""
        with anyio.move_on_after(HAND_OVER_SECONDS):
            await self.rollouts.give_back()
            while self.outbox.unsent():
                self.outbox_relay.settled.clear()
                self.outbox_relay.finish()
                await self.outbox_relay.settled.wait()

    async def _report_end(self) -> None:
        await self.run_state.until_finishing()
        report_stopping(f"finishing: {self.run_state.why_finishing}")

    async def _rest_while_paused(self, number: int) -> None:
        """Free an engine's device while the device is paused. `number`: the engine's in the fleet."""
        engine, state = self.fleet.engines[number], self.device_states[number]
        while True:
            await state.until_paused()
            await engine.rest(FREED_WITHIN)
            pause: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
            if self.fleet.rests:
                pause = self.follower.pause(lambda: state.finishing)
            async with pause:
                _log.info("paused: the device is free", device=engine.device)
                await state.unless_finishing(self._until_resumed(number))
            engine.wake()
            if state.finishing:
                return

    async def _until_resumed(self, number: int) -> None:
        """Wait for the end of a pause; leases of groups that it outlasts are given back."""
        async with asyncio.TaskGroup() as tasks:
            giving = tasks.create_task(self._give_back_late(number))
            await self.device_states[number].until_resumed()
            giving.cancel()

    async def _give_back_late(self, number: int) -> None:
        while True:
            await self.rollouts.give_back_late(number, self.device_states[number].rests_until)
            await asyncio.sleep(1.0)

    def _times(self, choice: EngineChoice, *, once: bool) -> None:
        """Let `choice` say what computes: by what it kept, or once the weights are here. `once`: whether one card is to
        compute."""

        async def chosen(model: Path, weights: Path) -> Candidate | None:
            runspec = self.context.trust_store.trusted.runspec
            assert runspec is not None
            candidate = await choice.choose(model, weights, runspec.value)
            if len(choice.cards) > 1 and not once and self._tasks is not None:
                _log.info("the equal cards compute too: the node begins again", cards=len(choice.cards))
                self.begins_again = True
                self._tasks.cancel_scope.cancel()
            return candidate

        if choice.record is not None and choice.record.chosen is not None:
            self.engine.settle(choice.record.chosen)
        self.engine.chooser = chosen
        self.engine.on_choice = lambda: self.connectivity.coordinator_client.greet_again("the engine was chosen")

    def _over_https(self) -> Source | None:
        """Return the coordinator's ledger over HTTPS, where the owner admits it and the invite offers it."""
        pin = self.context.invite.https_key
        if "https" not in self._config.via or pin is None:
            return None
        addresses = self.connectivity.coordinator_client.addresses
        return over_https(self.network.links.peer_id, pin, lambda links: addresses.dial_over(links, "https"))

    def _coordinator(self) -> str | None:
        return self.connectivity.coordinator_client.peer

    async def _tell(self, make: Callable[[], Acknowledgement]) -> None:
        await self.connectivity.coordinator_client.tell(ACKNOWLEDGE, make)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that ended the group; one that names its fix is preferred."""
    return foremost(group, [NodeError, EngineUnusable])
