"""Leases: who may generate which group, under which version, until when.

Rules
1. A lease is durable before it is sent. The same ask (node and nonce) gets the same lease again: that is looked up
   first, costs one search in an index, and counts against nobody.
2. A lease names exactly the version that the node holds, if that is fresh enough and there is room for it:
   room(p) = (S + p + 1 - step) * batch - buffered - undecided - running, in groups. All of it is what is live at the
   ask: the table `on_their_way` counts open and received leases per version, in the transaction that moves them, and
   only versions that are fresh then are added up. A single running total would count what was shed later, and one day
   stand still for good.
3. States: open -> received -> decided, or open -> expired. The last two are final.
4. The coordinator's absence costs no node: `resume` moves every open expiry on by the time since `beat`.
5. A node holds a bounded number of open leases. The room is shared out in rollouts/shares.py, how long
   a lease lasts in rollouts/lifetime.py, how many leases may expire in rollouts/budgets.py, and which prompt a lease is
   for in rollouts/positions.py.
6. Every refusal says why, and but for a finished run and an engine of another class when to ask again.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from coordinator.accounts.standing import Accounts, Rank
from coordinator.database import Database
from coordinator.learner.age import fresh, oldest_fresh
from coordinator.rollouts.lease_admission import LeaseAdmission, LeaseDemand
from coordinator.rollouts.lease_lifetime import LifetimeBounds
from coordinator.rollouts.prompt_positions import NO_PROMPT, PromptPosition, PromptPositions
from coordinator.rollouts.prompts import PromptSource
from coordinator.rollouts.retry_times import RetryTimes
from p2p.limits.origin import LOCAL, Origin
from p2p.wire_types import decode, encode
from protocol.leases import Lease, LeaseRequest
from protocol.refusals import refusal
from protocol.requests import Refusal
from tasks.task import TaskFault

Seal = Callable[[str, bytes], bytes]
"""(kind, payload) -> sealed document, by the key of the role that signs this kind."""
Reseal = Callable[[str, bytes], bytes]
"""(kind, a stored sealed document) -> the document as it may go out now (coordinator/run/sealing.py)."""
Entropy = Callable[[int], bytes]
State = Literal["open", "received", "decided", "expired"]

LATE: Final = 1.25
"""By so much longer than it was told a node may wait, and a second: it spreads its asks itself."""


class LeaseTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What all leases of a run have in common. Times in milliseconds.

    `staleness`: S. `batch_groups`: groups a step of the learner draws. `engines`: classes admitted, prefixes of
    "<engine>/<dtype>/<device>". `per_node`: most open leases of a node. `first_ms`: how long a lease lasts while a node
    is not measured and too few are proven; `least_ms`, `most_ms`: bounds of every lease. `retry_ms`: how soon after a
    refusal a node may ask again, at least (coordinator/rollouts/retry_times.py)."""

    staleness: int
    batch_groups: int
    group_size: int
    limit: int
    engines: list[str]
    per_node: int = 3
    first_ms: int = 300_000
    least_ms: int = 20_000
    most_ms: int = 3_600_000
    retry_ms: int = 1_000


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the run stands. `step`: the learner's. `version`, `root`: the newest published version."""

    era: int
    step: int
    version: int
    root: bytes
    paused: bool = False
    finished: bool = False


class LeaseRecord(NamedTuple):
    """A lease as the coordinator keeps it. `expires` may be later than the lease says (rule 4)."""

    lease: Lease
    expires: int
    state: State
    sealed: bytes


class InFlight(NamedTuple):
    """Groups on their way to the learner that may still be drawn: received without a verdict, and still out."""

    undecided: int
    running: int


def free_slots(progress: Progress, terms: LeaseTerms, version: int, buffered: int, load: InFlight) -> int:
    """Groups of `version` that the learner can still draw in time (rule 2)."""
    wanted = (terms.staleness + version + 1 - progress.step) * terms.batch_groups
    return wanted - buffered - load.undecided - load.running


def admitted(engine: str, admitted_classes: Sequence[str]) -> bool:
    """Whether an engine "<engine>/<dtype>/<device>" belongs to one of the classes, part by part."""
    return any(f"{engine}/".startswith(f"{one.rstrip('/')}/") for one in admitted_classes)


class LeaseTable:
    """The lease table."""

    def __init__(
        self,
        database: Database,
        terms: LeaseTerms,
        prompts: PromptSource,
        seal: Seal,
        entropy: Entropy,
        accounts: Accounts,
    ) -> None:
        self._database = database
        self.terms = terms
        self._seal = seal
        self._entropy = entropy
        self.positions = PromptPositions(database, prompts)
        bounds = LifetimeBounds(terms.first_ms, terms.least_ms, terms.most_ms)
        self._sharing = LeaseAdmission(database, bounds, terms.staleness == 0, accounts)
        self._retries = {"new": RetryTimes(), "known": RetryTimes()}
        """Apart, so that a crowd of new keys makes nobody else's wait longer."""

    def publish(self, era: int, version: int, root: bytes, now: int) -> None:
        """From now on nodes may hold this version. The same again is nothing new."""
        known = self._database.value("SELECT root FROM versions WHERE era = ? AND version = ?", (era, version))
        if known is not None and known != root:
            raise ValueError(f"version {version} of era {era} was published with another root")
        self._database.do("INSERT OR IGNORE INTO versions VALUES (?, ?, ?, ?)", (era, version, root, now))

    def last_era(self) -> int:
        """The newest era of which a version was published; 0 before the first."""
        return int(self._database.value("SELECT coalesce(max(era), 0) FROM versions"))

    def issue(
        self,
        node: bytes,
        ask: LeaseRequest,
        progress: Progress | None,
        buffered: int,
        now: int,
        origin: Origin = LOCAL,
    ) -> bytes | Refusal:
        """The sealed Lease, durable; or why there is none. `buffered`: groups that may still be drawn. `origin`: where
        the ask came from."""
        if (given := self._given(node, ask.nonce)) is not None:
            return given
        rank = self._sharing.rank(node, now)
        look: LeaseDemand | None = None
        refused = self._unfit(node, ask, progress, now)
        if refused is None and progress is not None:
            look = self._sharing.look(node, rank, origin, now)
            refused = self._crowded(look, ask.version, progress, buffered, now)
            if refused is None:
                try:
                    return self._issued(look, ask, now)
                except TaskFault:
                    refused = refusal("no-prompt", retry_after=NO_PROMPT)
        assert refused is not None
        if refused.retry_after is not None:
            wait = self._retries_of(rank).after(node, now, refused.retry_after, origin.party)
            refused = msgspec.structs.replace(refused, retry_after=wait)
            if look is not None:
                self._sharing.waits(look, refused.code, now + int(LATE * wait) + 1_000, now)
        return refused

    def _retries_of(self, rank: Rank) -> RetryTimes:
        return self._retries["new" if rank == "new" else "known"]

    def _issued(self, look: LeaseDemand, ask: LeaseRequest, now: int) -> bytes:
        with self._database.transaction():
            sealed = self._write(look, ask, now)
        self._sharing.given(look, now)
        self._retries_of(look.rank).given(look.asker.node, now)
        return sealed

    def _given(self, node: bytes, nonce: bytes) -> bytes | None:
        """The sealed Lease that this ask was answered with before."""
        given: bytes | None = self._database.value(
            "SELECT sealed FROM leases WHERE node = ? AND nonce = ?", (node, nonce)
        )
        return given

    def _unfit(self, node: bytes, ask: LeaseRequest, at: Progress | None, now: int) -> Refusal | None:
        """Why this ask would get no lease of an empty room either."""
        terms, again = self.terms, self.terms.retry_ms
        if at is None:
            return refusal("not-ready", retry_after=again)
        if at.finished:
            return refusal("finished")
        if at.paused:
            return refusal("paused", retry_after=10 * again)
        if not admitted(ask.engine, terms.engines):
            return refusal("engine", engine=ask.engine, admitted=", ".join(terms.engines))
        known = self._database.value("SELECT root FROM versions WHERE era = ? AND version = ?", (ask.era, ask.version))
        if ask.era != at.era or known != ask.root:
            facts = {"era": ask.era, "version": ask.version, "wanted": at.version, "wanted_era": at.era}
            return refusal("wrong-version", retry_after=again, **facts)
        if not fresh(at.step, ask.version, terms.staleness):
            facts = {"version": ask.version, "step": at.step, "limit": terms.staleness, "wanted": at.version}
            return refusal("stale-version", retry_after=again, **facts)
        open_leases = self._count(
            "state = 'open' AND node = ? AND expires >= ?", (node, now)
        )  # index leases_open_of_node
        if open_leases >= terms.per_node:
            return refusal("too-many-leases", retry_after=again, held=open_leases, most=terms.per_node)
        if wait := self.positions.wait(now):
            return refusal("no-prompt", retry_after=wait)
        return None

    def _crowded(self, look: LeaseDemand, version: int, at: Progress, buffered: int, now: int) -> Refusal | None:
        if (halted := self._sharing.halted(look, now)) is not None:
            no, wait = halted
            return refusal(no.code, retry_after=wait, **no.facts)
        terms, load = self.terms, self.load(at, now)
        left = free_slots(at, terms, version, buffered, load)
        if left <= 0 < free_slots(at, terms, at.version, buffered, load):
            return refusal("newer-version", retry_after=terms.retry_ms, version=version, wanted=at.version)
        whole = (terms.staleness + 1) * terms.batch_groups
        crowded = self._sharing.crowded(look, whole, left, self._oldest(at), now)
        if crowded is None:
            return None
        facts = {"version": version, "step": at.step} | crowded.facts
        return refusal(crowded.code, retry_after=terms.retry_ms, **facts)

    def _write(self, look: LeaseDemand, ask: LeaseRequest, now: int) -> bytes:
        node, origin = look.asker.node, look.asker.origin
        place = self.positions.take(node, origin, now, relied_on=self._sharing.relied_on(look, now))
        lease = self._lease(place, node, ask, now, now + look.life.lasts)
        document = encode(lease)
        sealed = self._seal("lease", document)
        row = (lease.id, node, ask.nonce, place.position, ask.era, ask.version, now, lease.expires, document, sealed)
        self._database.do(
            "INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'open', ?, ?, ?, ?, ?)", (*row, place.attempt, *origin)
        )
        self._sharing.lend(look, lease.id, ask.era, ask.version, place.reasons, now)
        return sealed

    def _lease(self, place: PromptPosition, node: bytes, ask: LeaseRequest, now: int, expires: int) -> Lease:
        return Lease(
            id=self._entropy(16),
            node=node,
            nonce=ask.nonce,
            task=place.prompt.task,
            task_version=place.prompt.task_version,
            index=place.prompt.index,
            prompt=place.prompt.tokens,
            seeds=[self._entropy(16) for _ in range(self.terms.group_size)],
            limit=self.terms.limit,
            era=ask.era,
            version=ask.version,
            root=ask.root,
            sent=now,
            expires=expires,
        )

    def find(self, lease: bytes) -> LeaseRecord | None:
        row = self._database.one("SELECT document, expires, state, sealed FROM leases WHERE id = ?", (lease,))
        return None if row is None else LeaseRecord(decode(row[0], Lease), *row[1:])

    def move(self, lease: bytes, state: State) -> None:
        """Part of the caller's transaction. A final state cannot be left (trigger)."""
        self._database.do("UPDATE leases SET state = ? WHERE id = ?", (state, lease))

    def fail(self, lease: bytes, state: State, code: str, now: int) -> None:
        """`move` to the end of a lease that earned nothing: its position goes out again, and an expiry is counted.
        `code`: of the refusal, or "expired"."""
        lent = self._sharing.lent(lease)
        self.move(lease, state)
        if lent is None:
            return
        position, attempt = self._database.all("SELECT position, attempt FROM leases WHERE id = ?", (lease,))[0]
        self.positions.ended(position, attempt, lent.reasons, code, now)
        if code == "expired":
            self._sharing.expired(lent, now)

    def load(self, progress: Progress, now: int) -> InFlight:
        """What is on its way and not too old already, of the learner's era."""
        oldest = self._oldest(progress)
        running, undecided = self._database.all(
            "SELECT coalesce(sum(open), 0), coalesce(sum(received), 0) FROM on_their_way"
            " WHERE era = ? AND version >= ?",
            oldest,
        )[0]
        return InFlight(undecided, running - self._overdue(now, oldest))

    def _oldest(self, at: Progress) -> tuple[int, int]:
        return at.era, oldest_fresh(at.step, self.terms.staleness)

    def _overdue(self, now: int, oldest: tuple[int, int]) -> int:
        """Of the open leases those whose time is over: as few as expired since the last tick."""
        return self._count("state = 'open' AND expires < ? AND era = ? AND version >= ?", (now, *oldest))

    def due(self, now: int, most: int) -> list[bytes]:
        """At most `most` open leases whose time is over, the oldest first."""
        query = "SELECT id FROM leases WHERE state = 'open' AND expires < ? ORDER BY expires LIMIT ?"
        rows = self._database.all(query, (now, most))
        return [row[0] for row in rows]

    def oldest_in_use(self) -> tuple[int, int] | None:
        """(era, version) of the oldest version that an open lease or an undecided submission names."""
        return self._database.one("SELECT era, version FROM on_their_way ORDER BY era, version LIMIT 1")

    def beat(self, now: int) -> None:
        """Note that the coordinator is here. Call every second or so."""
        self._database.set_fact("alive_at", now)

    def resume(self, now: int) -> int:
        """Once after each start: give open leases back the time that the coordinator was away; that time in ms. It is
        no part of their turnaround. Where the clock was set back, leases from ahead begin anew: else they would be
        open, and in their nodes' way, until the clock is there again."""
        with self._database.transaction():
            seen = self._database.fact("alive_at") or now
            away = max(0, now - seen)
            query = "UPDATE leases SET sent = sent + ?, expires = expires + ? WHERE state = 'open' AND expires >= ?"
            self._database.do(query, (away, away, seen))
            query = "UPDATE leases SET sent = ?, expires = expires - sent + ? WHERE state = 'open' AND sent > ?"
            self._database.do(query, (now, now, now))
            self.beat(now)
            self._sharing.start(now)
        return away

    def _count(self, where: str, parameters: tuple[Any, ...]) -> int:
        return int(self._database.value(f"SELECT count(*) FROM leases WHERE {where}", parameters))
