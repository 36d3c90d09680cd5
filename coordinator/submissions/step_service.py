"""Take the sampled turns of served episodes, one after the other, and answer them from what the environment said.

    step ─> T0 ─ written ─> the environment (step_loop.py) ─ written ─> answered

Rules
1. A turn is taken for an open lease of the key that sends it, in order: after the answer to the turn before it, and not
   after the episode's end. It is held against T0 (`verification.check_turn`) before the environment sees it.
2. The same turn again gets the stored answer. Other tokens for a turn that is written are refused as `other-bytes`, and
   the first of them are stored as evidence. That is no strike: the tokens that were written are what T1 and T2 judge.
3. A turn without an answer is refused as `step-pending`; the node asks again, after a time by the turns of its task
   and class of key alone: new keys do not make others wait. A caller may wait for the answer instead (`asked`).
4. A new key has one episode open at a time: the first turn of another one is refused as `one-episode`.
5. The time of the environment for the episodes of one lease is bounded by the standing of its key: `SHARES` answers in
   full time for each rollout. Beyond that its episodes fail.
6. While a turn waits for the environment, the clock of its lease stands (stopped_clocks.py), for as much time in all as
   rule 5 grants.
7. At the token limit, or with the last turn that a rollout may have, an episode is over whatever the environment says.
8. The first turn of a task of the kind `opened` has no tokens: the answer precedes the first sampled token.
9. Turns go to the environment in the order of step_queue.py, which shares its time. A turn that waits goes with its
   lease.

Memory: one turn per episode of an open lease, and nothing else that grows.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable
from typing import Final

import blake3

from echo2.coordinator.accounts.key_accounts import Accounts
from echo2.coordinator.database.database import Database
from echo2.coordinator.environments.played_group import fits
from echo2.coordinator.environments.task_host import TurnAnswer
from echo2.coordinator.leases.lease_rows import LeaseRecord
from echo2.coordinator.leases.lease_table import LeaseTable
from echo2.coordinator.leases.rollout_context import RolloutContext
from echo2.coordinator.leases.stopped_clocks import StoppedClocks
from echo2.coordinator.submissions.step_queue import StepQueue
from echo2.coordinator.submissions.step_table import Step, StepTable
from echo2.coordinator.verdicts.token_storage import TokenStorage
from echo2.coordinator.verification.verification import check_turn
from echo2.ledger.standing import Rank
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease
from echo2.protocol.refusals import refusal, sentence
from echo2.protocol.requests import Refusal
from echo2.protocol.steps import StepRequest, StepResponse
from echo2.protocol.task_kinds import ANSWERED_KINDS, OPENED_KIND

LAST_TURN: Final = 1022
"""The greatest number of a sampled turn: a rollout has at most 1024 turns, and ends with a sampled one."""
ONE_EPISODE: Final = 1_000
"""Milliseconds after which the first turn of another episode may be sent again."""
SOONEST_ASK_MS: Final = 200
LATEST_ASK_MS: Final = 5_000
"""Bounds of the milliseconds after which a turn that waits is asked for again."""
SHARES: Final[dict[Rank, int]] = {"new": 4, "known": 16, "proven": 64}
"""Answers in full time for each rollout of a lease (rules 5 and 6)."""


class AskedStep:
    """A turn that waits for the environment. `rank`, `party`: rank and party of its key. `before`: the steps of its
    episode so far. `last`: rule 7. `answered`: set with the answer. `apart`: its key is new, and known keys play."""

    def __init__(
        self, lease: Lease, request: StepRequest, rank: Rank, party: str, before: list[Step], *, last: bool
    ) -> None:
        self.lease, self.sample, self.turn_number = lease, request.sample, request.turn_number
        self.rank: Rank = rank
        self.party = party
        self.sampled, self.before, self.last = request.tokens, before, last
        self.answered, self.apart = asyncio.Event(), False

    @property
    def is_new(self) -> bool:
        """Whether its key is new."""
        return self.rank == "new"

    @property
    def past(self) -> list[list[int]]:
        """The turns before it, sampled and given alternating."""
        return [part for step in self.before for part in (step.sampled, step.given or [])]

    @property
    def given(self) -> int:
        """The number of tokens that the environment gave so far."""
        return sum(len(step.given or []) for step in self.before)


class _Waiting:
    """The turns that wait for the environment of one task. `changed`: set with each that comes or ends. `usual`: by
    whether the key is new, the seconds of an answer, a running mean."""

    def __init__(self, workers: int) -> None:
        self.queue: StepQueue[AskedStep] = StepQueue(workers)
        self.changed = asyncio.Event()
        self.usual = {False: 0.0, True: 0.0}


class StepService:
    """The coordinator's side of `step`. `seconds`: most time of one answer. `playing`: whether answers come at all: the
    run's task is served."""

    def __init__(
        self,
        database: Database,
        leases: LeaseTable,
        accounts: Accounts,
        context: RolloutContext,
        *,
        seconds: float = 10.0,
        workers: int = 1,
    ) -> None:
        """`workers`: answers that are computed at a time."""
        self._database, self._leases, self._accounts, self._context = database, leases, accounts, context
        self._seconds, self._workers = seconds, workers
        self.table = StepTable(database)
        self._tokens = TokenStorage(database)
        self._asked: dict[tuple[bytes, int], AskedStep] = {}
        """By lease and sample."""
        self._queues: defaultdict[str, _Waiting] = defaultdict(lambda: _Waiting(workers))
        """By task: a slow environment delays the turns of its own task alone."""
        self._clocks = StoppedClocks(leases)
        self._spent: dict[bytes, float] = {}
        """By lease, the seconds of the environment."""

    def step(self, node: bytes, request: StepRequest, now: int) -> StepResponse | Refusal:
        """Take a sampled turn, or return the stored answer (rules 1 to 4)."""
        record = self._leases.find(request.lease)
        if record is None:
            return refusal("unknown-lease")
        if record.lease.node != node:
            return refusal("not-owner")
        unfit = self._unfit(record, request, now)
        if unfit is not None:
            return unfit
        steps = self.table.of(request.lease, request.sample)
        at = request.turn_number // 2
        if at < len(steps):
            return self._again(record, request, steps[at], steps[:at], now)
        return self._next(record, request, steps, now)

    def _unfit(self, record: LeaseRecord, request: StepRequest, now: int) -> Refusal | None:
        lease = record.lease
        if self._context.kind(lease.task, lease.task_version) not in ANSWERED_KINDS:
            return _wrong(request, "episodes of this task have no answers")
        expires = record.expires
        if now > expires:
            expires += self._clocks.extend_one(lease.id, now)
        if record.without_group or now > expires:
            return refusal("late", late=max(0, now - expires))
        if record.state != "open":
            return _wrong(request, "the group was submitted")
        if request.sample >= len(lease.seeds):
            return _wrong(request, f"the group has {len(lease.seeds)} samples")
        return _wrong(request, "this is no sampled turn") if request.turn_number % 2 else None

    def _again(
        self, record: LeaseRecord, request: StepRequest, step: Step, before: list[Step], now: int
    ) -> StepResponse | Refusal:
        """Answer a turn that is written (rules 2 and 3)."""
        if step.sampled != request.tokens:
            data = encode(request)
            with self._database.transaction():
                self._tokens.other_bytes(request.lease, blake3.blake3(data).digest(), data, now)
            return refusal("other-bytes")
        if step.state == "asked":
            if (request.lease, request.sample) not in self._asked:  # the process that took it has ended
                self._ask(record.lease, request, before, now)
            return refusal("step-pending", retry_after=self._wait(record.lease, now))
        expires = record.expires + self._clocks.extend_one(request.lease, now)
        return StepResponse(given=step.given, expires=expires)

    def _next(self, record: LeaseRecord, request: StepRequest, steps: list[Step], now: int) -> Refusal:
        """Take the next turn of an episode (rules 1, 3 and 4)."""
        lease = record.lease
        if steps and steps[-1].ended:
            return _wrong(request, "the episode is over")
        if request.turn_number // 2 > len(steps) or (steps and steps[-1].state == "asked"):
            return _wrong(request, "an earlier turn has no answer yet")
        opens = not steps and self._context.kind(lease.task, lease.task_version) == OPENED_KIND
        fault = check_turn(
            request.tokens, _count_sampled(steps), lease, self._context.spec, request.sample, opens=opens
        )
        if fault is not None:
            return Refusal(code=fault.code, sentence=fault.sentence)
        if not steps and self._rank(lease.node, now) == "new" and self.table.open_episodes(lease.node):
            return refusal("one-episode", retry_after=ONE_EPISODE)
        self.table.ask(lease.id, request.sample, request.turn_number, request.tokens)
        self._ask(lease, request, steps, now)
        return refusal("step-pending", retry_after=self._wait(lease, now))

    def _ask(self, lease: Lease, request: StepRequest, before: list[Step], now: int) -> None:
        """Let a written turn wait for the environment."""
        sampled = _count_sampled(before) + len(request.tokens)
        last = sampled == lease.limit or request.turn_number >= LAST_TURN
        rank, party = self._rank(lease.node, now), self._leases.party_of(lease.id)
        asked = AskedStep(lease, request, rank, party, before, last=last)
        self._asked[lease.id, request.sample] = asked
        self._clocks.stop(lease.id, now, int(1000 * self._most_seconds(asked)))
        waiting = self._queues[lease.task]
        waiting.queue.put(asked, party, now / 1000, new=asked.is_new)
        waiting.changed.set()

    def answer_event(self, lease: bytes, sample: int) -> asyncio.Event | None:
        """Return the event that is set with the answer to an episode's turn; None: none waits."""
        asked = self._asked.get((lease, sample))
        return None if asked is None else asked.answered

    async def take(self, task: str, clock: Callable[[], float]) -> AskedStep:
        """Wait for the next turn that the environment of a task is to answer; its lease is open. `answered` must
        follow. `clock`: seconds since the Unix epoch."""
        waiting = self._queues[task]
        while True:
            now = clock()
            asked = waiting.queue.take(now)
            if asked is None:
                waiting.changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(waiting.queue.look_again(now)):
                        await waiting.changed.wait()
            elif self._leases.still_open({asked.lease.id}):
                asked.apart = asked.is_new and waiting.queue.known_play(now)
                return asked
            else:
                waiting.queue.on_end(0.0, now, new=asked.is_new)

    def time_is_up(self, asked: AskedStep) -> bool:
        """Tell whether the environment's time for a lease is used up (rule 5)."""
        return self._spent.get(asked.lease.id, 0.0) > self._most_seconds(asked)

    def _most_seconds(self, asked: AskedStep) -> float:
        return SHARES[asked.rank] * len(asked.lease.seeds) * self._seconds

    def fits(self, asked: AskedStep, given: int) -> bool:
        """Tell whether a rollout has room for so many more given tokens: in the model's context beside all tokens that
        may be sampled, and in a submission."""
        return fits(len(asked.lease.prompt), asked.given + given, self._context.room)

    def on_answer(self, asked: AskedStep, answer: TurnAnswer | None, seconds: float, now: int) -> None:
        """Write the environment's answer to a turn that was taken; None: the episode has failed. `seconds`: that it
        took."""
        waiting = self._queues[asked.lease.task]
        waiting.queue.on_end(seconds, now / 1000, new=asked.is_new)
        waiting.changed.set()
        key = asked.lease.id, asked.sample
        if self._asked.get(key) is not asked:
            return  # its lease has ended
        self.table.answer(*key, asked.turn_number, answer)
        del self._asked[key]
        self._spent[asked.lease.id] = self._spent.get(asked.lease.id, 0.0) + seconds
        waiting.usual[asked.is_new] += 0.05 * (seconds - waiting.usual[asked.is_new])
        self._clocks.go_on(asked.lease.id, now)
        asked.answered.set()

    def tick(self, now: int) -> None:
        """Let the clocks stand, and forget the leases that have ended. Call before leases expire, each second or so."""
        self._clocks.extend(now)
        leases = {lease for lease, _ in self._asked} | self._spent.keys()
        ended = leases - self._leases.still_open(leases)
        for lease in ended:
            self._clocks.forget(lease)
            self._spent.pop(lease, None)
        for key in [key for key in self._asked if key[0] in ended]:
            asked = self._asked.pop(key)
            waiting = self._queues[asked.lease.task]
            waiting.queue.drop(asked, asked.party, new=asked.is_new)
            asked.answered.set()

    def still_open(self, leases: set[bytes]) -> set[bytes]:
        return self._leases.still_open(leases)

    def _rank(self, node: bytes, now: int) -> Rank:
        return self._accounts.of(node, now).rank

    def _wait(self, lease: Lease, now: int) -> int:
        """Return the milliseconds after which a lease's turn that waits is asked for again: about when it is
        answered."""
        waiting, new = self._queues[lease.task], self._rank(lease.node, now) == "new"
        seconds = waiting.usual[new] * waiting.queue.count_unanswered(new=new) / self._workers
        return min(LATEST_ASK_MS, max(SOONEST_ASK_MS, int(1000 * seconds)))


def _count_sampled(steps: list[Step]) -> int:
    return sum(len(step.sampled) for step in steps)


def _wrong(request: StepRequest, detail: str) -> Refusal:
    said = sentence("step", sample=request.sample, turn_number=request.turn_number, detail=detail)
    return Refusal(code="step", sentence=said)
