"""The rollout loop: request leases, generate their groups together, store the submissions in the outbox.

Rules
1. A lease is requested, completed and stored while the engine is shared (engines.process.versioned), so the version
   never changes under it. Once a newer version is to be loaded (engines/process/change_time.py), no lease is requested;
   the groups that have begun are finished first.
2. Leases are requested whenever the engine has a free place or is about to have one (node/rollouts/lease_prefetch.py).
   One is requested per group that it can take, up to `MOST_LEASE_REQUESTS` at a time while none is refused. So as many
   groups are under way as the device can use, and as the coordinator grants (node/rollouts/lease_bound.py). Each
   request says how many the device can use.
3. No lease is requested while the node is paused or finishes, while the outbox has no room for the groups under way
   and one more, while the newest Root known here has expired, and while the ledger is unproven for too long
   (node/trust/proof_watch.py). The groups under way are completed before an end, and kept over a pause, or given back
   where it leaves too little time of their leases for a group.
4. After a crash of the engine, and where the device has no memory for a moment, groups under way are generated again,
   or given back (node/rollouts/group_generation.py). While one waits for memory no lease is requested: each lease given
   back brings the node nearer to a pause. Served groups of an earlier process are taken up again.
5. After a refusal the node requests nothing for as long as the coordinator says, and at random up to a fifth longer.
   The groups under way go on. After a refusal for too many leases it requests nothing until it has fewer.
   a. A newer version ends the wait early, unless the coordinator had too many requests of all nodes.
   b. If the refusal names a version that this node has not heard of, the node asks for the newest Head.
   c. A refusal that no retry can change ends the node. If the run is finished, the node finishes.
6. Where other engines of the node step the folder of weights (engines/process/engine_fleet.py), a lease is requested
   only under the version that the folder has, and the folder stays as it is until the bytes that the lease asks for are
   read (weights/shown_ranges.py).
7. No lease is begun whose key was revoked (node/rollouts/lease_signers.py).
8. `blocked` is the one reason that blocks work now, a sentence; empty while groups are under way.
"""

import asyncio
import contextlib
import math
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from echo2.engines.process.versioned import LoadedVersion, VersionedEngine
from echo2.node.errors import RefusedByRun
from echo2.node.links.coordinator_client import CoordinatorClient, RequestRefused
from echo2.node.rollouts.group_generation import GroupGeneration
from echo2.node.rollouts.lease_bound import LeaseBound
from echo2.node.rollouts.lease_check import GroupDelays, check_lease, check_open, lengths_of, submission_of
from echo2.node.rollouts.lease_prefetch import LeasePrefetch
from echo2.node.rollouts.lease_refusals import is_newer_named, retry_seconds
from echo2.node.rollouts.lease_signers import LeaseSigners
from echo2.node.rollouts.outbox_relay import OutboxRelay
from echo2.node.rollouts.served_groups import ServedGroups
from echo2.node.rollouts.token_rate import TokenRate
from echo2.node.run_context import RunContext
from echo2.node.run_state import NodeRunState
from echo2.node.versions.follower import Follower
from echo2.p2p.errors import PeerFault, Stale, Unreachable
from echo2.protocol import refusals
from echo2.protocol.authority import RunSpec
from echo2.protocol.leases import Lease, LeaseRequest
from echo2.protocol.methods import LEASE
from echo2.protocol.requests import Refusal

LEASE_POLL_SECONDS: Final = 1.0
"""Longest wait for a place until the rules that forbid work are checked again, seconds."""
VERSION_POLL_SECONDS: Final = 0.1
"""Seconds until it is looked again whether the engine has the version of the folder."""
MOST_LEASE_REQUESTS: Final = 12
"""Most lease requests at a time: a large device is filled within a few round trips."""
MOST_AT_ONCE: Final = 1024
"""The bound of `LeaseRequest.at_once`."""
LEAST_LEFT: Final = 10.0
"""Seconds of a lease that a pause must leave at least, for the rest of its group."""
STARTING_REASON: Final = "starting"
RESUMED_REASON: Final = "resumed: the engine starts and loads the weights"
"""What blocks from the end of a pause on, at once; while it lasts, node/run_state.py says why."""
UNPUBLISHED_REASON: Final = "the coordinator has published no version yet"
EXPIRED_REASON: Final = "the run's Root has expired: the operator must sign a new one"

_log = structlog.get_logger("node")


class RolloutWorker:
    """The loop over leases. `done`: leases completed since the start. `rate`: rate of its
    tokens. `refusals`: the last 16, newest last."""

    def __init__(
        self,
        context: RunContext,
        engine: VersionedEngine,
        follower: Follower,
        coordinator_client: CoordinatorClient,
        outbox_relay: OutboxRelay,
        run_state: NodeRunState,
        served_groups: ServedGroups,
        *,
        once: bool,
    ) -> None:
        """`once`: finish after one group."""
        self._trust_store, self._clock, self._node = context.trust_store, context.clock, context.node
        self._engine, self._follower = engine, follower
        self._coordinator_client, self._outbox_relay = coordinator_client, outbox_relay
        self._run_state, self._once = run_state, once
        self._served_groups = served_groups
        self._generation = GroupGeneration(engine, served_groups, context)
        self._random = random.Random(context.seed)
        self._prefetch = LeasePrefetch()
        self._generation.on_given = self._prefetch.on_grant
        self._bound = LeaseBound()
        self._signers = LeaseSigners()
        self._trust_store.on_roots.append(self._give_up_revoked)
        self._together = 1
        """Lease requests that may be made at a time."""
        self._changed = asyncio.Event()
        """Set when the engine's rows or the open leases change."""
        self._crowded = False
        """Whether the last refusal was for too many requests of all nodes (rule 5a)."""
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        """By lease, the task that completes it."""
        self._given: dict[bytes, Lease] = {}
        self._took = 0.0
        """Seconds that the last complete group took."""
        self._dropped = False
        """Whether a group failed since the last request."""
        self._blocked = STARTING_REASON
        self.done = 0
        self.rate = TokenRate()
        self.refusals: list[Refusal] = []
        self._all: Sequence[RolloutWorker] = [self]
        """The loops of all engines of this node."""
        self._ready = False
        """Whether this loop asks for a lease as soon as it may."""
        self._refused_under: LoadedVersion | None = None
        """The last version under which a lease was refused, but for too many leases."""
        self.group_milliseconds: Callable[[RunSpec], int | None] = lambda spec: None
        """Returns how long a group takes at the run's limit; None: it was not measured."""
        engine.on_rows = self._on_change

    def share(self, bound: LeaseBound, workers: "Sequence[RolloutWorker]") -> None:
        """Keep to one bound on open leases together with the other loops of this node."""
        self._bound, self._all = bound, workers

    def look(self) -> None:
        """Look again for a place: leases that were open are not any more."""
        self._changed.set()

    @property
    def working(self) -> bool:
        """Whether groups are being generated."""
        return self._prefetch.under_way > 0

    @property
    def blocked(self) -> str:
        """Rule 8's sentence."""
        return "" if self.working else self._blocked

    @blocked.setter
    def blocked(self, sentence: str) -> None:
        self._blocked = sentence

    async def run(self) -> None:
        """Work until the owner or the run finishes. Raises a group of `RefusedByRun`, `EngineUnusable`."""
        try:
            async with asyncio.TaskGroup() as groups:
                self._take_up(groups)  # before the node follows to a newer version
                while await self._await_permission():
                    self._take_up(groups)
                    self._ready = True
                    if not await self._place():
                        continue
                    self._follower.changed.clear()
                    pause = await self._request_lacking(groups)
                    if pause is not None:
                        if is_newer_named(self.refusals, self._follower.current, self._follower.heads.newest):
                            await self._follower.heads.search()
                        await self._wait(pause)
        finally:
            self._ready = False

    async def _await_permission(self) -> bool:
        """Wait until work is allowed (rule 3); return False once the node finishes."""
        while not self._run_state.finishing:
            missing = f"no version to work with: {self._follower.trouble or UNPUBLISHED_REASON}"
            waits: list[tuple[bool, str, Callable[[], Awaitable[object]]]] = [
                (self._run_state.paused, RESUMED_REASON, self._run_state.until_resumed),
                (
                    self._outbox_relay.room <= 0,
                    "the outbox is full: answers are outstanding",
                    lambda: asyncio.sleep(1.0),
                ),
                (self._has_expired(), EXPIRED_REASON, lambda: asyncio.sleep(1.0)),
                (bool(self._run_state.withheld), self._run_state.withheld, lambda: asyncio.sleep(1.0)),
                (self._follower.current is None, missing, lambda: self._nap(0.2)),
                (self._coordinator_client.peer is None, self._coordinator_client.trouble, self._await_connection),
            ]
            blocking = next((wait for wait in waits if wait[0]), None)
            if blocking is None:
                return True
            self._blocked = blocking[1]
            await self._run_state.unless_finishing(blocking[2]())
        return False

    def _has_expired(self) -> bool:
        return self._clock.now() >= self._trust_store.trusted.expires

    async def _place(self) -> bool:
        """Return True if another group is to be requested now (rule 2); else wait until that may have changed."""
        self._changed.clear()
        wait = self._until_place()
        if wait > 0.0:
            await self._run_state.unless_finishing(self._until_changed(min(wait, LEASE_POLL_SECONDS)))
        return wait <= 0.0

    def _until_place(self) -> float:
        if self._generation.waits_for_memory:
            return math.inf
        if self._under_way and (self._once or self._outbox_relay.room <= self._under_way):
            return math.inf
        now = asyncio.get_running_loop().time()
        if self._bound.free(self._open_leases, now) <= sum(one.precedes(self, now) for one in self._all):
            return math.inf
        return self._prefetch.wait(self._engine.rows, now)

    def precedes(self, other: "RolloutWorker", now: float) -> bool:
        """Tell whether this loop wants a lease now and has more free rows than another one."""
        rows = self._engine.rows
        return self._ready and rows.free > other._engine.rows.free and not self._prefetch.wait(rows, now)

    @property
    def _under_way(self) -> int:
        """The groups under way on all engines of this node."""
        return sum(one._prefetch.under_way for one in self._all)

    @property
    def _open_leases(self) -> int:
        """Leases of this node whose submissions the coordinator has not received."""
        return self._under_way + self._outbox_relay.outbox.unsent()

    def _on_change(self) -> None:
        self._prefetch.on_rows(self._engine.rows, asyncio.get_running_loop().time())
        self._changed.set()

    async def _until_changed(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    @property
    def leases(self) -> list[bytes]:
        """The leases whose groups are under way."""
        return self._prefetch.leases

    @property
    def waiting(self) -> list[bytes]:
        """Those of them whose groups wait for a place."""
        return self._prefetch.waiting

    @property
    def is_wanted(self) -> bool:
        """Whether each lease that was requested under the loaded version was given."""
        return self._refused_under is None or self._refused_under != self._engine.current

    def give_up(self, lease: bytes) -> None:
        """Give up the group of a lease that the coordinator has ended, if it still waits here."""
        if lease in self._tasks and lease in self.waiting:
            _log.info("lease ended by the coordinator", lease=lease.hex())
            self._tasks[lease].cancel()

    def give_up_late(self, until: int) -> list[asyncio.Task[None]]:
        """Give up the groups whose leases leave too little time once work goes on, at `until`, ms; return their
        tasks. For an engine that rests."""
        least = until + int(1000 * max(LEAST_LEFT, self._took))
        late = [one for one, lease in self._given.items() if self._served_groups.expires(lease) < least]
        for lease in late:
            _log.info("lease given back: the pause outlasts it", lease=lease.hex())
            self._tasks[lease].cancel()
        return [self._tasks[lease] for lease in late]

    def _give_up_revoked(self) -> None:
        """Give up the groups that wait, of leases whose key a newer Root revokes (rule 7)."""
        for lease in self._signers.revoked_leases(self.waiting, self._trust_store.trusted.chain):
            if lease in self._tasks:
                _log.warning("lease of a revoked key given back", lease=lease.hex())
                self._tasks[lease].cancel()

    async def _request_lacking(self, groups: asyncio.TaskGroup) -> float | None:
        """Request leases (rule 2); return the seconds to wait before the next request, None for no wait."""
        spec, open_leases = self._trust_store.trusted.runspec, self._open_leases
        assert spec is not None
        lacking = self.lacking(spec.value.group_size)
        others = sum(one.lacking(spec.value.group_size) for one in self._all if one is not self and one._ready)
        free = self._bound.free(open_leases, asyncio.get_running_loop().time())
        room = 1 if self._once else self._outbox_relay.room - self._under_way
        requests = max(1, int(min(lacking, self._together, free, room)))
        at_once = min(MOST_AT_ONCE, open_leases + lacking + others)
        pauses = await asyncio.gather(*(self._request(groups, at_once) for _ in range(requests)))
        refused = [seconds for seconds in pauses if seconds is not None]
        self._together = 1 if refused else min(MOST_LEASE_REQUESTS, 2 * self._together)
        return max(refused, default=None)

    def lacking(self, group: int) -> int:
        """Return how many groups of so many rollouts the engine can take once leases requested now are here."""
        return self._prefetch.lacking(self._engine.rows, group, asyncio.get_running_loop().time())

    async def _request(self, groups: asyncio.TaskGroup, at_once: int) -> float | None:
        """Request a lease, and let its group begin; return the seconds to wait before the next request, None for no
        wait. `at_once`: see `LeaseRequest`."""
        pause: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        groups.create_task(self._group(pause, at_once))
        return await pause

    async def _group(self, pause: "asyncio.Future[float | None]", at_once: int) -> None:
        """Request and complete one lease. `pause`: gets the result of `_request`."""
        try:
            async with self._engine.shared(), contextlib.AsyncExitStack() as folder:
                await folder.enter_async_context(self._engine.folder.use())
                lease = await self._request_lease(pause, at_once)
                if lease is not None:
                    await self._complete(lease, folder)
        except BaseException as error:
            if not pause.done():
                pause.cancel()
            raise error

    def _take_up(self, groups: asyncio.TaskGroup) -> None:
        """Go on with the served groups that an earlier process had begun (rule 4)."""
        current, probed = self._engine.current, self._engine.probed
        if current is None or probed is None or not self._served_groups.has_unfinished:
            return
        still_open = self._outbox_relay.outbox.open_leases()
        for lease in self._served_groups.unfinished_leases(still_open, probed.engine_class, current):
            _log.info("served group taken up again", lease=lease.id.hex(), version=lease.version)
            self._prefetch.on_lease(lease.id, len(lease.seeds))
            groups.create_task(self._taken_up(lease))

    async def _taken_up(self, lease: Lease) -> None:
        async with self._engine.shared(), contextlib.AsyncExitStack() as folder:
            await folder.enter_async_context(self._engine.folder.use())
            current = self._engine.current
            if current is not None and current.root == lease.root:
                await self._complete(lease, folder)
            else:
                self._prefetch.on_end(lease.id, asyncio.get_running_loop().time())

    async def _request_lease(self, pause: "asyncio.Future[float | None]", at_once: int) -> Lease | None:
        """Request a lease for the loaded version. After a failure `pause` says for how long to wait."""
        current, serial = self._engine.current, self._trust_store.serial
        seconds: float = 0.0 if self._on_disk(current) else VERSION_POLL_SECONDS
        if not seconds and current is not None and not self._run_state.idle and not self._has_expired():
            seconds = self._random.uniform(0.5, 1.5)
            try:
                lease = await self._ask(current, at_once)
                self._bound.note_bound(lease.at_once)
                self._prefetch.on_lease(lease.id, len(lease.seeds))
                self._outbox_relay.outbox.open_lease(lease.id)
                self._generation.store(lease)
                _settle(pause, seconds if self._dropped else None)
                self._blocked, self._dropped = "", False
                return lease
            except RequestRefused as error:
                seconds = self._on_refusal(error.refusal)
            except Unreachable as error:
                self._blocked = str(error)
            except Stale as error:
                self._drop(error)
            except PeerFault as error:
                if not await self._coordinator_client.behind(serial):
                    self._blocked = f"invalid lease: {error}"
                    self._coordinator_client.distrust(self._blocked)
        _settle(pause, seconds)
        return None

    async def _ask(self, current: LoadedVersion, at_once: int) -> Lease:
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
            at_once=at_once,
            takes=self.group_milliseconds(spec.value),
        )
        asked, began = self._clock.local(), asyncio.get_running_loop().time()
        _log.debug("lease asked", version=current.version)
        verified = self._trust_store.trusted.message(await self._coordinator_client.call(LEASE, ask), "lease", Lease)
        lease = check_lease(
            verified, ask=ask, node=self._node, current=current, runspec=spec.value, context=self._engine.context
        )
        self._clock.observe(lease.sent, asked, signed=True)
        self._clock.check(self._trust_store.trusted.expires)
        check_open(lease, self._clock.now())
        self._prefetch.on_answer(asyncio.get_running_loop().time() - began)
        self._signers.remember(lease.id, verified.sealed)
        _log.debug("lease received", version=lease.version, lease=lease.id.hex())
        return lease

    def _on_disk(self, version: LoadedVersion | None) -> bool:
        """Tell whether the folder of weights has this version (rule 6)."""
        moved = self._engine.on_disk()
        return version is not None and moved is not None and moved.root == version.root

    async def _complete(self, lease: Lease, folder: contextlib.AsyncExitStack) -> None:
        """Generate a lease's group, and store its submission. `folder`: lets others step the folder once closed."""
        task, arrived = asyncio.current_task(), asyncio.get_running_loop().time()
        assert task is not None
        self._tasks[lease.id], self._given[lease.id] = task, lease
        try:
            shown = await self._generation.shown_hash(lease)
            await folder.aclose()
            if self._signers.revoked_leases([lease.id], self._trust_store.trusted.chain):
                raise Stale("the key that signed the lease was revoked")
            samples = await self._generation.generate(lease)
            longest = max(len(sample.tokens) for sample in samples)
            tokens = sum(len(sample.tokens) for sample in samples)
            part = tokens / max(1, longest * len(samples))
            self.rate.note(tokens, arrived, asyncio.get_running_loop().time(), part)
            _log.debug("group generated", version=lease.version, lease=lease.id.hex(), longest=longest)
            body = submission_of(lease, samples, shown, self._delays(lease.id, arrived))
            self._outbox_relay.put(lease.id, body, lengths_of(lease, samples))
            self._served_groups.forget([lease.id])
            self.done += 1
            if self._once:
                self._run_state.finish("the one group of --once is generated")
        except Stale as error:
            self._drop(error)
        finally:
            del self._tasks[lease.id], self._given[lease.id]
            self._signers.forget(lease.id)
            self._prefetch.on_end(lease.id, asyncio.get_running_loop().time())
            self._changed.set()

    def _delays(self, lease: bytes, arrived: float) -> GroupDelays:
        """Return how long a group that is complete now has waited, and took. `arrived`: when its lease did."""
        started = self._prefetch.start_time_of(lease)
        waited = None if started is None else int(1000 * max(0.0, started - arrived))
        self._took = asyncio.get_running_loop().time() - arrived
        return GroupDelays(waited, int(1000 * self._took))

    def _drop(self, error: Stale) -> None:
        self._blocked, self._dropped = str(error), True
        _log.warning("lease dropped", reason=str(error))

    def _on_refusal(self, refusal: Refusal) -> float:
        """Record a refusal; return the seconds to wait (rule 5). Raises `RefusedByRun`."""
        self.refusals.append(refusal)
        del self.refusals[:-16]
        self._blocked = f"no lease: {refusal.sentence}"
        then = refusals.then(refusal)
        self._crowded = then == "wait"
        if then == "fewer" and self._open_leases:
            self._bound.on_refusal(self._open_leases, asyncio.get_running_loop().time())
            return 0.0
        self._refused_under = self._engine.current
        if then == "finish":
            self._run_state.finish("the run is finished")
        elif then in ("end", "other engine"):
            raise RefusedByRun(refusal.sentence)
        _log.debug("no lease given", code=refusal.code, reason=refusal.sentence)
        return retry_seconds(refusal) * self._random.uniform(1.0, 1.2)

    async def _wait(self, seconds: float) -> None:
        """Sleep until `seconds` have passed, the owner finishes, or a newer version ends the wait (rule 5a)."""
        crowded, self._crowded = self._crowded, False
        self._ready = False
        await self._run_state.unless_finishing(asyncio.sleep(seconds) if crowded else self._nap(seconds))

    async def _await_connection(self) -> None:
        """Wait for the coordinator for at most 1 s, so that `blocked` stays up to date."""
        try:
            async with asyncio.timeout(1.0):
                await self._coordinator_client.wait_until_connected()
        except TimeoutError:
            return

    async def _nap(self, seconds: float) -> None:
        """Sleep for `seconds`, or until another version is loaded."""
        try:
            async with asyncio.timeout(seconds):
                await self._follower.changed.wait()
        except TimeoutError:
            return


def _settle(pause: "asyncio.Future[float | None]", seconds: float | None) -> None:
    """Give `pause` its result, unless its waiting task was cancelled: the loop ends then, and its groups next."""
    if not pause.done():
        pause.set_result(seconds)
