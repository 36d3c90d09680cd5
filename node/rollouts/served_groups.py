"""Generate the groups of served tasks: the coordinator's environment answers each sampled turn.

Rules
1. A turn is stored before it is sent, its answer before the engine goes on (node/rollouts/turn_store.py). A stored
   answer is not asked for again.
2. A turn is sent until it has an answer: again after the coordinator's absence, however long, and after a refusal as
   soon as that allows. A refusal that no retry can change, or none before `MOST_WAIT`, gives the lease up: it is given
   back, without a group.
3. At most `AT_ONCE` turns are sent at a time, so that leases and submissions find the connection free.
4. A new key may have one episode open at a time. The turn that was refused for it is sent again once an episode of this
   node has ended, or after the time that the refusal names.
5. An answer is checked: its tokens are the model's, and within its context.
6. Groups that an earlier process of this node had begun are taken up again, by an engine of the same class that has the
   lease's version loaded (`unfinished_leases`). The others are given back like all leases that were lost.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import structlog

from echo2.engines.engine import Job, Sample, SampledTurn
from echo2.engines.process.versioned import LoadedVersion, VersionedEngine
from echo2.node.links.coordinator_client import CoordinatorClient, RequestRefused
from echo2.node.rollouts.lease_check import check_given
from echo2.node.rollouts.turn_store import TurnStore
from echo2.p2p.errors import Stale, Unreachable
from echo2.protocol.authority import RunSpec
from echo2.protocol.leases import Lease
from echo2.protocol.methods import STEP
from echo2.protocol.refusals import ONE_EPISODE
from echo2.protocol.requests import Refusal
from echo2.protocol.steps import StepRequest, StepResponse

AT_ONCE: Final = 16
MOST_WAIT: Final = 60.0
"""Seconds. A refusal that says to come back later than this ends the group."""

_log = structlog.get_logger("node")


class ServedGroups:
    """The served groups of one node."""

    def __init__(self, store: TurnStore, coordinator_client: CoordinatorClient, *, seed: int) -> None:
        self._store, self._coordinator_client = store, coordinator_client
        self._random = random.Random(seed)
        self._sending = asyncio.Semaphore(AT_ONCE)
        self._ended = asyncio.Event()
        """Set, and replaced, when an episode of this node ends (rule 4)."""
        self._unfinished = {one.lease.id: one for one in store.leases()}
        """By lease: those of an earlier process."""
        self._expires: dict[bytes, int] = {}

    def open_lease(self, lease: Lease, engine_class: str) -> None:
        """Store a lease that came."""
        self._store.put_lease(lease, engine_class)

    def forget(self, leases: Sequence[bytes]) -> None:
        """Forget leases whose groups are in the outbox, or that are given back."""
        for lease in leases:
            self._expires.pop(lease, None)
            self._unfinished.pop(lease, None)
        self._store.forget(leases)

    def expires(self, lease: Lease) -> int:
        """Return when a lease expires, ms, as far as the coordinator has said."""
        return self._expires.get(lease.id, lease.expires)

    @property
    def has_unfinished(self) -> bool:
        """Whether there are leases of an earlier process that no engine has gone on with."""
        return bool(self._unfinished)

    def unfinished_leases(
        self, still_open: Sequence[bytes], engine_class: str, current: LoadedVersion
    ) -> Iterator[Lease]:
        """Yield the leases that an engine of this class is to go on with (rule 6), each once. `still_open`: those that
        this node has not given back."""
        for lease, stored_class in list(self._unfinished.values()):
            if lease.id not in still_open:
                del self._unfinished[lease.id]
                self.forget([lease.id])
                continue
            fits = (lease.era, lease.version, lease.root) == (current.era, current.version, current.root)
            if fits and stored_class == engine_class:
                del self._unfinished[lease.id]
                yield lease

    async def generate(self, engine: VersionedEngine, lease: Lease, job: Job, runspec: RunSpec) -> list[Sample]:
        """Generate the group of a lease, from what is stored of it. Raises `Stale` under rule 2 and the engine's
        errors."""

        async def play(sampled_turn: SampledTurn) -> list[int] | None:
            return await self._answer(sampled_turn, lease, runspec, engine.context)

        past = self._store.past(lease.id, len(lease.seeds))
        return await engine.generate_served(msgspec.structs.replace(job, past=past), play)

    async def _answer(
        self, sampled_turn: SampledTurn, lease: Lease, runspec: RunSpec, context: int | None
    ) -> list[int] | None:
        """Return the environment's answer to a turn (rule 1)."""
        stored = self._store.answer(sampled_turn)
        if stored is not None:
            return stored.given
        self._store.put_turn(sampled_turn)
        answer = await self._send_turn(sampled_turn)
        self._expires[lease.id] = answer.expires
        if answer.given is not None:
            before = self._store.given_tokens(lease.id, sampled_turn.sample)
            check_given(answer.given, before, lease, runspec, context)
        self._store.put_answer(sampled_turn, answer.given)
        if answer.given is None:
            self._ended.set()
            self._ended = asyncio.Event()
        return answer.given

    async def _send_turn(self, sampled_turn: SampledTurn) -> StepResponse:
        """Send a turn until it has an answer (rules 2 to 4). Raises `Stale`."""
        ask = StepRequest(
            lease=sampled_turn.served,
            sample=sampled_turn.sample,
            turn_number=sampled_turn.turn_number,
            tokens=sampled_turn.tokens,
        )
        while True:
            ended = self._ended
            try:
                async with self._sending:
                    return await self._coordinator_client.call(STEP, ask)
            except Unreachable as error:
                _log.debug("turn not sent", lease=sampled_turn.served.hex(), reason=str(error))
            except RequestRefused as error:
                await self._wait(error.refusal, ended)

    async def _wait(self, refusal: Refusal, ended: asyncio.Event) -> None:
        """Wait until a turn that was refused may be sent again. `ended`: of rule 4. Raises `Stale`."""
        if refusal.retry_after is None or refusal.retry_after > 1000 * MOST_WAIT:
            raise Stale(f"the coordinator takes no turn of this group: {refusal.sentence}")
        seconds = refusal.retry_after / 1000 * self._random.uniform(1.0, 1.2)
        if refusal.code == ONE_EPISODE:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await ended.wait()
        else:
            await asyncio.sleep(seconds)
