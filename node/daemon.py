"""The node's main process: build all parts, start them in order, end them in order. It never imports torch.

    network ─ connectivity (coordinator) ─ follower (versions) ─ engine (child) ─ rollouts (leases) ─ outbox relay

Rules
1. Parts are tasks of one group. The first that fails ends all of them, and its error names the fix.
2. To finish, the node requests no more leases, completes and delivers its work, and waits for answers for at most
   `drain` seconds. A second order to finish ends it at once; the outbox is delivered after the next start.
3. The coordinator may be absent at any time, also at a start, unless the node has never joined this run before.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import anyio
import structlog
from anyio.abc import TaskGroup
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engines.engine import EngineUnusable
from engines.process import EngineProcess
from engines.versioned import VersionedEngine
from node.config import NodeConfig
from node.connectivity import Connectivity
from node.control.commands import ControlCommands
from node.control.owner_socket import CommandServer, socket_path
from node.errors import BadConfig, NodeError, NoUsableDevice, TrustFailure, TryLater
from node.home import run_folder
from node.rollouts.outbox import Outbox
from node.rollouts.outbox_relay import OutboxRelay
from node.rollouts.worker import RolloutWorker
from node.run_state import NodeRunState
from node.trust.run_clock import RunClock
from node.trust.trust_store import TrustStore
from node.versions.acknowledgements import Acknowledger
from node.versions.document_exchange import DocumentExchange
from node.versions.follower import Follower
from node.versions.local_weights import LocalWeights
from node.versions.payload_fetcher import PayloadFetcher
from p2p.discovery.invite import Invite
from p2p.errors import Unreachable
from p2p.identity import public_bytes
from p2p.network import Network
from protocol.authority import WrongRoot
from protocol.broadcast_messages import Acknowledgement
from protocol.methods import ACKNOWLEDGE
from runtime.errors import DiskFull, LocalFault
from runtime.exception_groups import foremost
from runtime.exit_codes import Exit
from weights.errors import StoreBusy, StoreCorrupt
from weights.store import Store

FREED_WITHIN: Final = 4.0
"""Seconds from the start of a pause until the device's memory is free, at most."""

_log = structlog.get_logger("node")


class NodeDaemon:
    """One node of one run. The caller holds the lock of the home."""

    def __init__(
        self,
        config: NodeConfig,
        invite: Invite,
        key: Ed25519PrivateKey,
        network: Network,
        engine: Callable[[], EngineProcess],
        *,
        local: Callable[[], int],
        seed: int,
        once: bool = False,
    ) -> None:
        """`once`: end after one group. `local`: this machine's clock, milliseconds. `seed`: of waits and choices among
        peers. `engine`: makes the engine's process, not yet started. Raises `NodeError`."""
        self._config, self._network = config, network
        self._folder = run_folder(config.home, invite.run)
        disk = int(config.disk * 1e9)
        with _named_faults():
            self._records = TrustStore(self._folder / "trust", invite.run, invite.root_hash, local())
            self._store = Store(self._folder / "store")
        self.outbox = Outbox(self._folder / "outbox.sqlite", node=public_bytes(key), limit=config.outbox)
        self.run_state = NodeRunState(local)
        self.engine = VersionedEngine(engine, device=config.gpu, seed=seed)
        clock = RunClock(local)
        document_exchange = DocumentExchange(
            network.handlers, network.rpc, network.links, self._store, self._records,
            seed=seed, coordinator=self._coordinator, now=clock.now,
        )  # fmt: skip
        self.acknowledger = Acknowledger(self._tell)
        self.payloads = PayloadFetcher(
            network.exchange, network.rpc, network.links, self._store, self.acknowledger, coordinator=self._coordinator
        )
        self.follower = Follower(
            network.gossip, network.exchange, self._records, self._store, LocalWeights(self._folder / "weights"),
            self.payloads, document_exchange, self.engine, clock,
            run=invite.run, acknowledger=self.acknowledger, coordinator=self._coordinator, disk=disk, seed=seed,
        )  # fmt: skip
        self.connectivity = Connectivity(
            config, invite, key, network, self._folder, self._records, self.engine, self.follower, clock, seed
        )
        link = self.connectivity.link
        self.outbox_relay = OutboxRelay(self.outbox, link, self._records, local, seed)
        self.rollouts = RolloutWorker(
            self.engine, self.follower, link, self.outbox, self.outbox_relay, self._records, clock, self.run_state,
            node=public_bytes(key), seed=seed, once=once,
        )  # fmt: skip
        self.report = ControlCommands(
            config, network.links, network.exchange, self._records, self.engine, self.follower, self.payloads,
            link, self.rollouts, self.outbox, self.run_state, self.connectivity.reachability,
        )  # fmt: skip
        self._control = CommandServer(socket_path(config.home), self.report.commands())
        self._tasks: TaskGroup | None = None
        self._cut_short = False

    async def run(self) -> Exit:
        """Work until the owner or the run finishes. Return INTERRUPTED after a second order to finish. Raises
        `NodeError`."""
        try:
            with _named_faults():
                await self._run()
        finally:
            waiting = self.outbox.waiting()
            await self.engine.stop()
            self.close()
        _log.info("ended", why=self.run_state.why_finishing.partition(";")[0], undelivered=waiting)
        return Exit.INTERRUPTED if self._cut_short else Exit.OK

    def close(self) -> None:
        """Close the files of a daemon that does not run."""
        self.outbox.close()
        self._store.close()

    def interrupt(self, why: str) -> None:
        """Finish, on Ctrl-C or SIGTERM; the second time, end at once."""
        if self.run_state.finishing and self._tasks is not None:
            self._cut_short = True
            self._tasks.cancel_scope.cancel()
        self.run_state.finish(why)

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                for part in (self._network.host.run, self._control.run, self._rest_while_paused):
                    self._tasks.start_soon(part)
                await self._network.host.ready()
                await self.run_state.unless_finishing(self._start(self._tasks))
                await self.rollouts.run()
                await self._drain()
                self._tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            self._tasks = None

    async def _start(self, tasks: TaskGroup) -> None:
        """Start engine, coordinator, model files and versions, each once the one before is ready."""
        _log.info((await self.engine.start()).sentence())
        tasks.start_soon(self.connectivity.run)
        await self.connectivity.search()
        if self._records.trusted.runspec is None:
            await self.connectivity.link.connected()
        runspec = self._records.trusted.runspec
        assert runspec is not None
        await self.connectivity.fit(runspec.value)
        await self.follower.prepare(self._folder / "model", runspec.value.assets)
        self.follower.resume()
        tasks.start_soon(self.follower.run)
        tasks.start_soon(self.follower.keep_hearing)
        tasks.start_soon(self.outbox_relay.run)
        tasks.start_soon(self.acknowledger.run)

    async def _drain(self) -> None:
        self.rollouts.blocked = f"finishing: {self.run_state.why_finishing}"
        _log.info(self.rollouts.blocked, waiting=self.outbox.waiting())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain):
                while self.outbox.waiting() or self.outbox.unconfirmed(1):
                    self.outbox_relay.settled.clear()
                    self.outbox_relay.finish()
                    await self.outbox_relay.settled.wait()

    async def _rest_while_paused(self) -> None:
        while True:
            await self.run_state.until_paused()
            await self.engine.rest(FREED_WITHIN)
            _log.info("paused: the device is free")
            await self.run_state.unless_finishing(self.run_state.until_resumed())
            self.engine.wake()
            if self.run_state.finishing:
                return

    def _coordinator(self) -> str | None:
        return self.connectivity.link.peer

    async def _tell(self, make: Callable[[], Acknowledgement]) -> None:
        await self.connectivity.link.tell(ACKNOWLEDGE, make)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that ended the others; one that names its fix is preferred."""
    return foremost(group, [NodeError, EngineUnusable])


@contextlib.contextmanager
def _named_faults() -> Iterator[None]:
    """Translate, once, the errors of other packages that a person can fix."""
    try:
        yield
    except NodeError:
        raise
    except EngineUnusable as error:
        raise NoUsableDevice(str(error)) from error
    except WrongRoot as error:
        raise TrustFailure(str(error)) from error
    except (DiskFull, StoreBusy) as error:
        raise TryLater(str(error)) from error
    except (LocalFault, StoreCorrupt) as error:
        raise BadConfig(str(error)) from error
    except Unreachable as error:
        raise TryLater(str(error)) from error
