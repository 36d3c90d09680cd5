"""The rollout loop: request a lease, generate its group, store the submission in the outbox, repeat.

Rules
1. A lease is requested and completed, and its submission stored, while the engine is reserved. So the version never
   changes under a lease.
   a. The next lease is requested in the same reservation, shortly before the current group is done
      (node/rollouts/lease_prefetch.py), so that the engine need not wait for the coordinator.
   b. No lease is requested ahead while another part waits for the engine, to load a newer version. A part that begins
      to wait later waits for one more group at most.
2. No lease is requested while the node is paused or finishes, the outbox is full, or the newest Root known here has
   expired. A lease requested ahead is completed before an end, and kept over a pause while it is valid.
3. After a crash of the engine the group of the lease is generated again, unless the lease has expired. Seeds and
   version are the same, so the tokens are too.
4. After a refusal the node waits as long as the coordinator says, and at random up to a fifth longer.
   a. A newer version ends the wait early, unless the coordinator had too many requests of all nodes.
   b. If the refusal names a version that this node has not heard of, the node asks for the newest Head.
   c. A refusal that no retry can change ends the node. If the run is finished, the node finishes.
5. `blocked` is the one reason that blocks work now, as a sentence; it is empty during work.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from engines.versioned import LoadedVersion, VersionedEngine
from node.errors import RefusedByRun
from node.links.coordinator_client import CoordinatorClient, RequestRefused
from node.rollouts.lease_check import check_lease, job_of, submission_of
from node.rollouts.lease_prefetch import LeasePrefetch
from node.rollouts.outbox_relay import OutboxRelay
from node.run_context import RunContext
from node.run_state import NodeRunState
from node.versions.follower import Follower
from p2p.errors import P2PError, PeerFault, Stale, Unreachable
from protocol import refusals
from protocol.leases import Lease, LeaseRequest
from protocol.methods import LEASE
from protocol.requests import Refusal
from runtime.child import ChildDied, ChildError

MOST_WAIT: Final = 1800.0
"""Longest wait after a refusal, seconds: no `retry_after` can stop a node for good."""
UNSAID: Final = 30.0
"""Seconds to wait after a refusal that names no time."""
STARTING: Final = "starting"
EXPIRED: Final = "the run's Root has expired: the operator must sign a new one"

_log = structlog.get_logger("node")


class RolloutWorker:
    """The loop over leases. `done`: leases completed since the start. `working`: whether a group is being generated.
    `refusals`: the last 16, newest last. `blocked`: rule 5's sentence."""

    def __init__(
        self,
        context: RunContext,
        engine: VersionedEngine,
        follower: Follower,
        coordinator_client: CoordinatorClient,
        outbox_relay: OutboxRelay,
        run_state: NodeRunState,
        *,
        once: bool,
    ) -> None:
        """`once`: finish after one group."""
        self._trust_store, self._clock, self._node = context.trust_store, context.clock, context.node
        self._engine, self._follower = engine, follower
        self._coordinator_client, self._outbox_relay = coordinator_client, outbox_relay
        self._run_state, self._once = run_state, once
        self._random = random.Random(context.seed)
        self._prefetch = LeasePrefetch()
        self._kept: Lease | None = None
        self._crowded = False
        """Whether the last refusal was for too many requests of all nodes (rule 4a)."""
        self.blocked = STARTING
        self.working = False
        self.done = 0
        self.refusals: list[Refusal] = []

    async def run(self) -> None:
        """Work until the owner or the run finishes. Raises `RefusedByRun`, `EngineUnusable`, `TryLater`."""
        while await self._allowed():
            self._follower.changed.clear()
            pause = await self._round()
            if pause is not None:
                if self._newer_version_named():
                    await self._follower.search()
                await self._wait(pause)

    async def _allowed(self) -> bool:
        """Wait until work is allowed (rule 2); return False once the node finishes."""
        while not self._run_state.finishing:
            missing = f"no version to work with: {self._follower.trouble}"
            waits: list[tuple[bool, str, Callable[[], Awaitable[object]]]] = [
                (self._run_state.paused, self._run_state.why_paused, self._run_state.until_resumed),
                (
                    self._outbox_relay.full,
                    "the outbox is full: answers are outstanding",
                    lambda: self._nap(1.0),
                ),
                (self._expired(), EXPIRED, lambda: asyncio.sleep(1.0)),
                (self._follower.current is None, missing, lambda: self._nap(0.2)),
                (self._coordinator_client.peer is None, self._coordinator_client.trouble, self._connected),
            ]
            blocking = next((wait for wait in waits if wait[0]), None)
            if blocking is None:
                return True
            self.blocked = blocking[1]
            await self._run_state.unless_finishing(blocking[2]())
        return False

    def _expired(self) -> bool:
        root = self._trust_store.trusted.root
        return root is not None and self._clock.now() >= root.expires

    async def _round(self) -> float | None:
        """Complete leases of one version; return the seconds to wait before the next request, None for no wait."""
        async with self._engine.exclusive():
            current, serial = self._engine.current, self._trust_store.serial
            if current is None or self._run_state.idle or self._expired():
                return 0.0
            try:
                lease: Lease | None = self._fitting(current) or await self._ask(current)
                self.blocked, self.working = "", True
                while lease is not None and not self._run_state.paused:
                    lease = await self._work_and_ask(lease, current)
                self._kept = lease
                return None
            except RequestRefused as error:
                return self._refused(error.refusal)
            except Unreachable as error:
                self.blocked = str(error)
            except Stale as error:
                self.blocked = str(error)
                _log.warning("lease dropped", reason=str(error))
            except PeerFault as error:
                if not await self._coordinator_client.behind(serial):
                    self.blocked = f"invalid lease: {error}"
                    self._coordinator_client.distrust(self.blocked)
            finally:
                self.working = False
        return self._random.uniform(0.5, 1.5)

    async def _ask(self, current: LoadedVersion) -> Lease:
        """Request a lease for the loaded version, and check it. Raises `RequestRefused`, `P2PError`."""
        spec, probed = self._trust_store.trusted.runspec, self._engine.probed
        assert spec is not None
        assert probed is not None
        ask = LeaseRequest(
            nonce=os.urandom(16),
            era=current.era,
            version=current.version,
            root=current.root,
            engine=probed.engine_class,
        )
        asked, began = self._clock.local(), asyncio.get_running_loop().time()
        _log.debug("lease asked", version=current.version)
        verified = self._trust_store.trusted.message(await self._coordinator_client.call(LEASE, ask), "lease", Lease)
        lease = check_lease(
            verified, ask=ask, node=self._node, current=current, runspec=spec.value, now=self._clock.now(),
            context=self._engine.context,
        )  # fmt: skip
        self._clock.observe(lease.sent, asked, signed=True)
        self._prefetch.answered(asyncio.get_running_loop().time() - began)
        _log.debug("lease received", version=lease.version, lease=lease.id.hex())
        return lease

    def _fitting(self, current: LoadedVersion) -> Lease | None:
        """Return the lease kept over a pause, if it has not expired and binds the loaded version."""
        kept, self._kept = self._kept, None
        if kept is None or (kept.era, kept.version, kept.root) != (current.era, current.version, current.root):
            return None
        return kept if self._clock.now() < kept.expires else None

    async def _work_and_ask(self, lease: Lease, current: LoadedVersion) -> Lease | None:
        """Complete a lease; return the next one if it was obtained ahead."""
        done = asyncio.Event()
        asking = asyncio.create_task(self._ask_ahead(current, done))
        try:
            await self._work(lease)
            done.set()
            return await asking
        finally:
            asking.cancel()

    async def _ask_ahead(self, current: LoadedVersion, done: asyncio.Event) -> Lease | None:
        """Request the next lease shortly before the group is done (rules 1a and 1b). After a failure the next round
        requests one anyway."""
        if self._once or self._prefetch.wait is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._prefetch.wait):
                await done.wait()
                return None
        if self._engine.wanted or self._run_state.idle or self._outbox_relay.full or self._expired():
            return None
        try:
            return await self._ask(current)
        except (RequestRefused, P2PError) as error:
            _log.debug("no lease given ahead", reason=str(error))
            return None

    async def _work(self, lease: Lease) -> None:
        """Generate the group of a lease, again after a crash (rule 3), and store its submission. Raises `Stale`."""
        spec = self._trust_store.trusted.runspec
        assert spec is not None
        while True:
            began = asyncio.get_running_loop().time()
            try:
                samples = await self._engine.generate(job_of(lease, spec.value))
                self._prefetch.generated(asyncio.get_running_loop().time() - began)
                break
            except ChildError as error:
                raise Stale(f"the engine cannot generate this lease's group: {error.message}") from error
            except ChildDied:
                await self._engine.recover()
                if self._clock.now() >= lease.expires:
                    raise Stale("the lease expired while the engine was down") from None
                _log.info("generating the lease again", lease=lease.id.hex())
        longest = max(len(sample.tokens) for sample in samples)
        _log.debug("group generated", version=lease.version, lease=lease.id.hex(), longest=longest)
        self._outbox_relay.put(lease.id, submission_of(lease, samples))
        self.done += 1
        if self._once:
            self._run_state.finish("the one group of --once is generated")

    def _refused(self, refusal: Refusal) -> float:
        """Record a refusal; return the seconds to wait (rule 4). Raises `RefusedByRun`."""
        self.refusals.append(refusal)
        del self.refusals[:-16]
        self.blocked = f"no lease: {refusal.sentence}"
        then = refusals.then(refusal)
        self._crowded = then == "wait"
        if then == "finish":
            self._run_state.finish("the run is finished")
        elif then in ("end", "other engine"):
            raise RefusedByRun(refusal.sentence)
        _log.debug("no lease given", code=refusal.code, reason=refusal.sentence)
        wait = UNSAID if refusal.retry_after is None else min(MOST_WAIT, refusal.retry_after / 1000)
        return wait * self._random.uniform(1.0, 1.2)

    def _newer_version_named(self) -> bool:
        """Tell whether the last refusal names a version that this node has not heard of (rule 4b), because
        gossip does not reach the node."""
        current, newest = self._follower.current, self._follower.newest
        if (
            current is None
            or newest is None
            or not self.refusals
            or refusals.then(self.refusals[-1]) != "other version"
        ):
            return False
        return (newest.era, newest.version) == (current.era, current.version)

    async def _wait(self, seconds: float) -> None:
        """Sleep until `seconds` have passed, the owner finishes, or a newer version ends the wait (rule 4a)."""
        crowded, self._crowded = self._crowded, False
        await self._run_state.unless_finishing(asyncio.sleep(seconds) if crowded else self._nap(seconds))

    async def _connected(self) -> None:
        """Wait for the coordinator for at most 1 s, so that `blocked` stays up to date."""
        try:
            async with asyncio.timeout(1.0):
                await self._coordinator_client.connected()
        except TimeoutError:
            return

    async def _nap(self, seconds: float) -> None:
        """Sleep for `seconds`, or until another version is loaded."""
        try:
            async with asyncio.timeout(seconds):
                await self._follower.changed.wait()
        except TimeoutError:
            return
