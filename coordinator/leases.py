"""Leases: who may generate which group, under which version, until when.

Rules
1. A lease is durable before it is sent. The same ask (node and nonce) gets the same lease again.
2. A lease names exactly the version that the node holds, if that is fresh enough and there is room for it:
   room(p) = (S + p + 1 - step) * batch - buffered - undecided - running, in groups. All of it is what is live at the
   ask: the table `on_their_way` counts open and received leases per version, in the transaction that moves them, and
   only versions that are fresh then are added up. A single running total would count what was shed later, and one day
   stand still for good.
3. States: open -> received -> decided, or open -> expired. The last two are final.
4. The coordinator's absence costs no node: `resume` moves every open expiry on by the time since `beat`.
5. A node holds a bounded number of open leases; how long a lease lasts follows from how long its groups took.
6. A position for which the task gives no prompt is left out, and said in the log. After `_MOST_LEFT_OUT` in a row there
   is no lease for `_NO_PROMPT`, and no task code runs for any ask; then the positions after them are tried.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import structlog

from coordinator.capacity import quantile
from coordinator.database import Database
from coordinator.prompts import Prompt, Prompts
from coordinator.reasons import refusal
from coordinator.rollouts.age import fresh, oldest_fresh
from coordinator.rollouts.retries import Retries
from p2p.limits.origin import NOWHERE, Origin
from p2p.messages import Lease, LeaseAsk, Refusal, decode, encode
from tasks.task import TaskFault

Seal = Callable[[str, bytes], bytes]
"""(kind, payload) -> sealed document, by the key of the role that signs this kind."""
Entropy = Callable[[int], bytes]
State = Literal["open", "received", "decided", "expired"]

_SAMPLE = 20
_LOOKED_AT = 4 * _SAMPLE
"""Last leases of a node among which its groups are looked for."""
_ENOUGH = 3
_MOST_LEFT_OUT = 15
_NO_PROMPT = 60_000
"""Milliseconds."""

log = structlog.get_logger("coordinator")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What all leases of a run have in common. Times in milliseconds.

    `staleness`: S. `batch_groups`: groups a step of the learner draws. `engines`: classes admitted, prefixes of
    "<engine>/<dtype>/<device>". `per_node`: most open leases of a node. `first_ms`: how long a lease lasts while a node
    is not measured; `least_ms`, `most_ms`: bounds of every lease. `retry_ms`: how soon after a
    refusal a node may ask again, at least (coordinator/rollouts/retries.py)."""

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


class Held(NamedTuple):
    """A lease as the coordinator keeps it. `expires` may be later than the lease says (rule 4)."""

    lease: Lease
    expires: int
    state: State
    sealed: bytes


class Load(NamedTuple):
    """Groups on their way to the learner that may still be drawn: received without a verdict, and still out."""

    undecided: int
    running: int


def room(progress: Progress, terms: Terms, version: int, buffered: int, load: Load) -> int:
    """Groups of `version` that the learner can still draw in time (rule 2)."""
    wanted = (terms.staleness + version + 1 - progress.step) * terms.batch_groups
    return wanted - buffered - load.undecided - load.running


def duration(turnarounds: Sequence[int], terms: Terms) -> int:
    """How long the next lease lasts, ms: three times the p90 of a node's last turnarounds and 5 s, within bounds."""
    if len(turnarounds) < _ENOUGH:
        return max(terms.least_ms, min(terms.first_ms, terms.most_ms))
    return max(terms.least_ms, min(int(3 * quantile(turnarounds, 0.9)) + 5_000, terms.most_ms))


def admitted(engine: str, admitted_classes: Sequence[str]) -> bool:
    """Whether an engine "<engine>/<dtype>/<device>" belongs to one of the classes, part by part."""
    return any(f"{engine}/".startswith(f"{one.rstrip('/')}/") for one in admitted_classes)


class Leases:
    """The lease table."""

    def __init__(self, database: Database, terms: Terms, prompts: Prompts, seal: Seal, entropy: Entropy) -> None:
        self._database = database
        self.terms = terms
        self._prompts = prompts
        self._seal = seal
        self._entropy = entropy
        self._retries = Retries()
        self._without_prompt = (0, 0)
        """The first position that may have a prompt, and when it is tried (rule 6)."""

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
        ask: LeaseAsk,
        progress: Progress | None,
        buffered: int,
        now: int,
        origin: Origin = NOWHERE,
    ) -> bytes | Refusal:
        """The sealed Lease, durable; or why there is none. `buffered`: groups that may still be drawn. `origin`: where
        the ask came from."""
        refused = self._refused(node, ask, progress, buffered, now)
        if refused is None:
            try:
                with self._database.transaction():
                    given = self._write(node, ask, now, origin)
                self._retries.given(node, now)
                return given
            except TaskFault:
                refused = refusal("no-prompt", retry_after=_NO_PROMPT)
        if (again := self._given(node, ask.nonce)) is not None:
            return again
        if refused.retry_after is None:
            return refused
        return msgspec.structs.replace(refused, retry_after=self._retries.after(node, now, refused.retry_after))

    def _given(self, node: bytes, nonce: bytes) -> bytes | None:
        """The sealed Lease that this ask was answered with before."""
        found: bytes | None = self._database.value(
            "SELECT sealed FROM leases WHERE node = ? AND nonce = ?", (node, nonce)
        )
        return found

    def _refused(self, node: bytes, ask: LeaseAsk, at: Progress | None, buffered: int, now: int) -> Refusal | None:
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
        held = self._count("state = 'open' AND node = ? AND expires >= ?", (node, now))  # index leases_open_of_node
        if held >= terms.per_node:
            return refusal("too-many-leases", retry_after=again, held=held, most=terms.per_node)
        if 0 < (wait := self._without_prompt[1] - now) <= _NO_PROMPT:
            return refusal("no-prompt", retry_after=wait)
        return self._crowded(ask.version, at, buffered, now)

    def _crowded(self, version: int, at: Progress, buffered: int, now: int) -> Refusal | None:
        load = self.load(at, now)
        if room(at, self.terms, version, buffered, load) > 0:
            return None
        if room(at, self.terms, at.version, buffered, load) > 0:
            return refusal("newer-version", retry_after=self.terms.retry_ms, version=version, wanted=at.version)
        return refusal("no-room", retry_after=self.terms.retry_ms, version=version, step=at.step)

    def _next_prompt(self, now: int) -> tuple[int, Prompt]:
        """The next position that has a prompt, and it (rule 6). Raises `TaskFault`."""
        first = max(self._without_prompt[0], self._database.value("SELECT coalesce(max(position) + 1, 0) FROM leases"))
        fault: TaskFault | None = None
        for position in range(first, first + _MOST_LEFT_OUT + 1):
            try:
                prompt = self._prompts.at(position)
            except TaskFault as error:
                fault = error
                continue
            if fault is not None:
                log.error("prompts left out", first=first, count=position - first, reason=str(fault))
            return position, prompt
        assert fault is not None
        self._without_prompt = (first + _MOST_LEFT_OUT + 1, now + _NO_PROMPT)
        log.error("no lease: the task gives no prompt", first=first, count=_MOST_LEFT_OUT + 1, reason=str(fault))
        raise fault

    def _write(self, node: bytes, ask: LeaseAsk, now: int, origin: Origin) -> bytes:
        position, prompt = self._next_prompt(now)
        lease = Lease(
            id=self._entropy(16),
            node=node,
            nonce=ask.nonce,
            task=prompt.task,
            task_version=prompt.task_version,
            index=prompt.index,
            prompt=prompt.tokens,
            seeds=[self._entropy(16) for _ in range(self.terms.group_size)],
            limit=self.terms.limit,
            era=ask.era,
            version=ask.version,
            root=ask.root,
            sent=now,
            expires=now + duration(self.turnarounds(node), self.terms),
        )
        document = encode(lease)
        sealed = self._seal("lease", document)
        written = self._database.do(
            "INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'open', ?, ?, 0, ?, ?)"
            " ON CONFLICT (node, nonce) DO NOTHING",
            (lease.id, node, ask.nonce, position, ask.era, ask.version, now, lease.expires, document, sealed, *origin),
        )
        given = sealed if written else self._given(node, ask.nonce)
        assert given is not None
        return given

    def find(self, lease: bytes) -> Held | None:
        row = self._database.one("SELECT document, expires, state, sealed FROM leases WHERE id = ?", (lease,))
        return None if row is None else Held(decode(row[0], Lease), *row[1:])

    def move(self, lease: bytes, state: State) -> None:
        """Part of the caller's transaction. A final state cannot be left (trigger)."""
        self._database.do("UPDATE leases SET state = ? WHERE id = ?", (state, lease))

    def load(self, progress: Progress, now: int) -> Load:
        """What is on its way and not too old already, of the learner's era."""
        oldest = (progress.era, oldest_fresh(progress.step, self.terms.staleness))
        running, undecided = self._database.all(
            "SELECT coalesce(sum(open), 0), coalesce(sum(received), 0) FROM on_their_way"
            " WHERE era = ? AND version >= ?",
            oldest,
        )[0]
        return Load(undecided, running - self._overdue(now, oldest))

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

    def turnarounds(self, node: bytes) -> list[int]:
        """Milliseconds from lease sent to submission received, of a node's last groups."""
        rows = self._database.all(
            "SELECT s.at - l.sent FROM"
            " (SELECT id, sent FROM leases WHERE node = ? ORDER BY sent DESC, id LIMIT ?) l"
            " JOIN submissions s ON s.lease = l.id ORDER BY l.sent DESC LIMIT ?",
            (node, _LOOKED_AT, _SAMPLE),
        )
        return [row[0] for row in rows]

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
        return away

    def _count(self, where: str, parameters: tuple[Any, ...]) -> int:
        return int(self._database.value(f"SELECT count(*) FROM leases WHERE {where}", parameters))
