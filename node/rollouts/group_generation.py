"""Generate the groups of leases on one engine, whatever becomes of its process.

Rules
1. After a crash of the engine a group is generated again, from the same seeds under the same version, unless its lease
   has expired: the tokens are the same. A served group goes on from its stored turns (node/rollouts/served_groups.py).
   After `MOST_DEATHS` crashes in a row all groups are given up, since one of them may be the cause: the engine has the
   tries that are left with others.
2. A group for which the device has no memory is tried again for most of a minute: another program may have the memory
   for a moment.
3. A group that is given up raises `Stale`.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

import anyio.to_thread
import structlog

from echo2.engines.engine import NoMemory, Sample
from echo2.engines.process.versioned import VersionedEngine
from echo2.node.rollouts.lease_check import is_served, job_of
from echo2.node.rollouts.served_groups import ServedGroups
from echo2.node.run_context import RunContext
from echo2.p2p.errors import Stale
from echo2.protocol.authority import RunSpec
from echo2.protocol.leases import Lease
from echo2.runtime.backoff import Backoff
from echo2.runtime.child import ChildDied, ChildError
from echo2.weights.errors import BadSnapshot
from echo2.weights.shown_ranges import shown_of

MOST_DEATHS: Final = 4
"""Below engines.process.versioned.MOST_CRASHES, which ends the node."""
MEMORY_BACKOFF: Final = Backoff(1.0, 16.0, jitter=0.2)
"""Seconds until a group that found no memory is tried again (rule 2)."""
MOST_SHORTAGES: Final = 6
"""Most such trials of a group."""

_log = structlog.get_logger("node")


class GroupGeneration:
    """The groups of one engine. `on_given`: called with the lease of each group that is given to it."""

    def __init__(
        self,
        engine: VersionedEngine,
        served_groups: ServedGroups,
        context: RunContext,
    ) -> None:
        self._engine, self._served_groups = engine, served_groups
        self._trust_store, self._clock = context.trust_store, context.clock
        self._random = random.Random(context.seed)
        self.on_given: Callable[[bytes], None] = lambda lease: None
        self._short: dict[bytes, int] = {}
        """By lease, how often its group found no memory."""

    @property
    def waits_for_memory(self) -> bool:
        """Whether a group that found no memory waits to be tried again."""
        return bool(self._short)

    def store(self, lease: Lease) -> None:
        """Store the lease of a served group, so that it can be taken up again."""
        spec, probed = self._trust_store.trusted.runspec, self._engine.probed
        if spec is not None and probed is not None and is_served(lease, spec.value):
            self._served_groups.open_lease(lease, probed.engine_class)

    async def shown_hash(self, lease: Lease) -> bytes | None:
        """Return the hash of the bytes that a lease asks for; the weights are this node's copy on disk (worker.py, rule
        6). Raises `Stale`."""
        current = self._engine.current
        if not lease.ranges_asked or current is None:
            return None
        try:
            return await anyio.to_thread.run_sync(shown_of, current.weights, lease.id)
        except (OSError, BadSnapshot) as error:
            raise Stale(f"the weights cannot be read to show them: {error}") from error

    async def generate(self, lease: Lease) -> list[Sample]:
        """Generate the group of a lease, again after a crash (rule 1). Raises `Stale`."""
        spec = self._trust_store.trusted.runspec
        assert spec is not None
        try:
            return await self._generate_group(lease, spec.value)
        finally:
            self._short.pop(lease.id, None)

    async def _generate_group(self, lease: Lease, spec: RunSpec) -> list[Sample]:
        while True:
            await self._engine.recover()  # it may have crashed since the lease was requested
            if self._engine.current is None or self._engine.current.root != lease.root:
                raise Stale("the node moved to another version while the engine was down")
            try:
                job = job_of(lease, spec)
                self.on_given(lease.id)
                if job.served:
                    return await self._served_groups.generate(self._engine, lease, job, spec)
                return await self._engine.generate(job)
            except ChildError as error:
                if not await self._tried_again(lease, error):
                    raise Stale(f"the engine cannot generate this lease's group: {error.message}") from error
            except ChildDied:
                await self._engine.recover()
                if self._clock.now() >= self._served_groups.expires(lease):
                    raise Stale("the lease expired while the engine was down") from None
                if (deaths := self._engine.restarts.failures) >= MOST_DEATHS:
                    raise Stale(f"the engine died {deaths} times in a row with this lease's group") from None
                _log.info("generating the lease again", lease=lease.id.hex())

    async def _tried_again(self, lease: Lease, error: ChildError) -> bool:
        """Wait until a group that found no memory is to be tried again; return False if it is not (rule 2)."""
        shortages = self._short.get(lease.id, 0) + 1
        if (
            error.kind != NoMemory.__name__
            or shortages > MOST_SHORTAGES
            or self._clock.now() >= self._served_groups.expires(lease)
        ):
            return False
        if not self._short:
            _log.warning("no memory, trying again", reason=error.message)
        self._short[lease.id] = shortages
        await asyncio.sleep(MEMORY_BACKOFF.delay(shortages, self._random.random()))
        return True
