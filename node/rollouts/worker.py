"""The rollout loop: ask for a lease, generate, hand over to the outbox, again.

Rules
1. A lease is asked for, worked off and handed over within one turn of the engine: the version never changes under it.
   So that the engine need not wait for the coordinator, the next lease is asked for in the same turn, shortly before
   the group at hand is done (node/rollouts/lease_prefetch.py), unless somebody waits for the engine: a newer version
   comes first. Who asks for it later waits for one group more, at most.
2. Work stops before the next lease when the owner pauses or finishes, when the outbox is full, when the run is
   finished, and while the newest Root known here has expired. A lease that was asked for ahead is worked off before an
   end, and kept over a pause while it fits.
3. After a crash of the engine the same lease is generated again, from the same seeds under the same version, for as
   long as it has not expired: the tokens are the same.
4. A refusal is waited out as long as the coordinator says and up to a fifth longer, at random, or until a newer version
   is held; a newer version makes no place where too many nodes ask. Where it speaks of a version that this node has
   not heard of, the newest Head is asked for. A refusal that no repetition can change ends the node.
5. What blocks now is in `blocked`, one sentence; empty while work goes on.
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
from node.rollouts.outbox import Outbox
from node.rollouts.outbox_relay import OutboxRelay
from node.run_state import NodeRunState
from node.trust.run_clock import RunClock
from node.trust.trust_store import TrustStore
from node.versions.follower import Follower
from p2p.errors import P2PError, PeerFault, Stale, Unreachable
from protocol import refusals
from protocol.leases import Lease, LeaseRequest
from protocol.methods import LEASE
from protocol.requests import Refusal
from runtime.child import ChildDied, ChildError

MOST_WAIT: Final = 1800.0
"""Seconds that a refusal is waited out, at most, before asking again: no coordinator sends a node to sleep for good."""
UNSAID: Final = 30.0
"""Seconds where the refusal does not say how long."""
STARTING: Final = "starting"
EXPIRED: Final = "the run's Root has expired: the operator must sign a new one"

_log = structlog.get_logger("node")


class RolloutWorker:
    """`done`: leases worked off since start. `refusals`: the last ones, newest last."""

    def __init__(
        self,
        engine: VersionedEngine,
        follower: Follower,
        link: CoordinatorClient,
        outbox: Outbox,
        outbox_relay: OutboxRelay,
        records: TrustStore,
        clock: RunClock,
        run_state: NodeRunState,
        *,
        node: bytes,
        seed: int,
        once: bool,
    ) -> None:
        """`node`: this node's public key. `once`: finish after one group."""
        self._engine, self._follower, self._link, self._outbox = engine, follower, link, outbox
        self._outbox_relay, self._records, self._clock, self._run_state = outbox_relay, records, clock, run_state
        self._node, self._random, self._once = node, random.Random(seed), once
        self._prefetch = LeasePrefetch()
        self._kept: Lease | None = None
        self._crowded = False
        """Whether the pause at hand is for a coordinator of which too many nodes ask."""
        self.blocked = STARTING
        self.working = False
        self.done = 0
        self.refusals: list[Refusal] = []

    async def run(self) -> None:
        """Work until told to finish, or until the run is finished. Raises `RefusedByRun`, `EngineUnusable`."""
        while await self._allowed():
            self._follower.changed.clear()
            pause = await self._round()
            if pause is not None:
                if self._told_of_news():
                    await self._follower.search()
                await self._wait(pause)

    async def _allowed(self) -> bool:
        """Wait until nothing forbids work; False when there shall be none any more."""
        while not self._run_state.finishing:
            missing = f"no version to work with: {self._follower.trouble}"
            waits: list[tuple[bool, str, Callable[[], Awaitable[object]]]] = [
                (self._run_state.paused, self._run_state.why_paused, self._run_state.until_resumed),
                (self._outbox.full, "the outbox is full: the coordinator has not answered yet", lambda: self._nap(1.0)),
                (self._expired(), EXPIRED, lambda: asyncio.sleep(1.0)),
                (self._follower.current is None, missing, lambda: self._nap(0.2)),
                (self._link.peer is None, self._link.trouble, self._connected),
            ]
            blocking = next((wait for wait in waits if wait[0]), None)
            if blocking is None:
                return True
            self.blocked = blocking[1]
            await self._run_state.unless_finishing(blocking[2]())
        return False

    def _expired(self) -> bool:
        root = self._records.trusted.root
        return root is not None and self._clock.now() >= root.expires

    async def _round(self) -> float | None:
        """Leases of one version, worked off; or the seconds to wait before the next question."""
        async with self._engine.exclusive():
            current, serial = self._engine.current, self._records.serial
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
                if not await self._link.behind(serial):
                    self.blocked = f"a false lease: {error}"
                    self._link.distrust(self.blocked)
            finally:
                self.working = False
        return self._random.uniform(0.5, 1.5)

    async def _ask(self, current: LoadedVersion) -> Lease:
        spec, probed = self._records.trusted.runspec, self._engine.probed
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
        verified = self._records.trusted.message(await self._link.call(LEASE, ask), "lease", Lease)
        lease = check_lease(
            verified, ask=ask, node=self._node, current=current, runspec=spec.value, now=self._clock.now(),
            context=self._engine.context,
        )  # fmt: skip
        self._clock.observe(lease.sent, asked, signed=True)
        self._prefetch.answered(asyncio.get_running_loop().time() - began)
        _log.debug("lease received", version=lease.version, lease=lease.id.hex())
        return lease

    def _fitting(self, current: LoadedVersion) -> Lease | None:
        """What was kept over a pause, if it still binds the version held."""
        kept, self._kept = self._kept, None
        if kept is None or (kept.era, kept.version, kept.root) != (current.era, current.version, current.root):
            return None
        return kept if self._clock.now() < kept.expires else None

    async def _work_and_ask(self, lease: Lease, current: LoadedVersion) -> Lease | None:
        """Work a lease off; the next one, where it was asked for in time."""
        done = asyncio.Event()
        asking = asyncio.create_task(self._ask_ahead(current, done))
        try:
            await self._work(lease)
            done.set()
            return await asking
        finally:
            asking.cancel()

    async def _ask_ahead(self, current: LoadedVersion, done: asyncio.Event) -> Lease | None:
        """The second half of rule 1. Whatever comes in between, the next turn asks anyway."""
        if self._once or self._prefetch.wait is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._prefetch.wait):
                await done.wait()
                return None
        if self._engine.wanted or self._run_state.idle or self._outbox.full or self._expired():
            return None
        try:
            return await self._ask(current)
        except (RequestRefused, P2PError) as error:
            _log.debug("no lease ahead", reason=str(error))
            return None

    async def _work(self, lease: Lease) -> None:
        spec = self._records.trusted.runspec
        assert spec is not None
        while True:
            began = asyncio.get_running_loop().time()
            try:
                samples = await self._engine.generate(job_of(lease, spec.value))
                self._prefetch.generated(asyncio.get_running_loop().time() - began)
                break
            except ChildError as error:
                raise Stale(f"the engine cannot work for this lease: {error.message}") from error
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
            self._run_state.finish("one group was asked for")

    def _refused(self, refusal: Refusal) -> float:
        self.refusals.append(refusal)
        del self.refusals[:-16]
        self.blocked = f"no lease: {refusal.sentence}"
        then = refusals.then(refusal)
        self._crowded = then == "wait"
        if then == "finish":
            self._run_state.finish("the run is finished")
        elif then in ("end", "other engine"):
            raise RefusedByRun(refusal.sentence)
        _log.debug("no lease", code=refusal.code, reason=refusal.sentence)
        wait = UNSAID if refusal.retry_after is None else min(MOST_WAIT, refusal.retry_after / 1000)
        return wait * self._random.uniform(1.0, 1.2)

    def _told_of_news(self) -> bool:
        """Whether the last refusal speaks of another version than any that this node has heard of: then gossip does not
        reach it, and nothing but asking would tell."""
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
        """Sleep, but wake for an order of the owner, or for a newer version that may bring a lease."""
        crowded, self._crowded = self._crowded, False
        await self._run_state.unless_finishing(asyncio.sleep(seconds) if crowded else self._nap(seconds))

    async def _connected(self) -> None:
        """Wait for the coordinator, but not long: what keeps it away is said anew."""
        try:
            async with asyncio.timeout(1.0):
                await self._link.connected()
        except TimeoutError:
            return

    async def _nap(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._follower.changed.wait()
        except TimeoutError:
            return
