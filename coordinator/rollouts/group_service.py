"""The coordinator's books, as the daemon uses them: everything durable, and every rule about rollouts.

    lease -> submit -> undecided -> (the scorer) -> decide -> draw -> (the learner)

A thin composition: the rules stand in leases, intake, admission, verdicts, replay, ledger and roster. Nothing here
knows the network, torch or the time; `now` is milliseconds since the Unix epoch.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from coordinator.accounts.lease_ends import LeaseEnds
from coordinator.accounts.ledger import Ledger
from coordinator.accounts.node_registry import NodeRegistry
from coordinator.accounts.standing import Accounts
from coordinator.accounts.strikes import Strikes
from coordinator.database import Database
from coordinator.metrics.broadcast_stats import BroadcastStats
from coordinator.rollouts.lease_table import Entropy, LeaseTable, LeaseTerms, Progress, Reseal, Seal
from coordinator.rollouts.prompts import PromptSource
from coordinator.rollouts.replay_buffer import DrawnGroup, ReplayBuffer
from coordinator.rollouts.scoring_order import PendingVersion
from coordinator.rollouts.shortage import Shortage
from coordinator.rollouts.submissions import SubmissionService
from coordinator.rollouts.token_storage import WINDOW, TokenStorage
from coordinator.rollouts.verdicts import ACCEPTED, VerdictService
from coordinator.rollouts.verification import Verdict
from coordinator.rollouts.waiting_groups import Undecided, Visit, WaitingGroups
from p2p.identity import peer_id
from p2p.limits.origin import LOCAL, Origin
from protocol.authority import RunSpec
from protocol.broadcast_messages import Acknowledgement
from protocol.leases import LeaseRequest
from protocol.refusals import sentence
from protocol.requests import Refusal
from tasks.task import Task, Tokenizer


class GroupService:
    """`progress`: where the learner stands; None until it has started, and then no lease is given. `paused`: nor is one
    while this holds. `asked`: answers to asks for leases since the last draw, by refusal code; "": a lease."""

    def __init__(
        self,
        database: Database,
        *,
        spec: RunSpec,
        terms: LeaseTerms,
        prompts: PromptSource,
        tasks: Mapping[tuple[str, int], Task],
        text: Tokenizer,
        seal: Seal,
        entropy: Entropy,
        again: Reseal = lambda kind, sealed: sealed,
        refill: bool = False,
    ) -> None:
        self.database = database
        self.terms = terms
        self.progress: Progress | None = None
        self.paused = False
        self.asked: Counter[str] = Counter()
        self.ledger = Ledger(database)
        self.accounts = Accounts(database, self.ledger)
        self.leases = LeaseTable(database, terms, prompts, seal, entropy, self.accounts)
        self.strikes = Strikes(database, self.accounts)
        self.lease_ends = LeaseEnds(database, self.ledger, self.accounts)
        self.verdicts = VerdictService(
            database, self.leases, self.ledger, self.accounts, self.strikes, self.lease_ends, seal, spec
        )
        self._waiting = WaitingGroups(database)
        self.submissions = SubmissionService(
            database, self.leases, self.verdicts, self.strikes, self._waiting, seal, again, spec, tasks, text
        )
        self.buffer = ReplayBuffer(database, terms.staleness, refill=refill)
        self.tokens = TokenStorage(database)
        self.registry = NodeRegistry(database)
        self.broadcasts = BroadcastStats()
        self._entropy, self._again = entropy, again

    def start(self, now: int) -> int:
        """Once after each start of the daemon; how long it was away, ms."""
        away = self.leases.resume(now)
        while self.verdicts.expire(now):
            pass
        return away

    def tick(self, now: int) -> int:
        """Every second or so, and again at once while `EXPIRED_AT_ONCE` leases have just expired; how many have."""
        self.leases.beat(now)
        self.registry.save(now)
        self.lease_ends.tell(now)
        self.lease_ends.forget(now)
        return self.verdicts.expire(now)

    def forget(self, covered: Collection[bytes], step: int, era: int, now: int) -> int:
        """Forget some of what is older than the challenge window; 0 where nothing is left to forget. `covered`,
        `step`: see `TokenStorage.forget`."""
        leases = self.tokens.forget(covered, step, era, self.terms.staleness, now - WINDOW)
        return leases + self.registry.forget(now) + self.strikes.forget(now)

    def rebuild(self, drawn: Iterable[bytes], progress: Progress) -> None:
        """A learner has started: its checkpoint's draws, and where it stands."""
        self.buffer.rebuild(drawn)
        self.progress = progress

    def lease(self, node: bytes, ask: LeaseRequest, now: int, origin: Origin = LOCAL) -> bytes | Refusal:
        """The sealed Lease, or why there is none now."""
        self.registry.seen(node, now, ask.version)
        at = self.progress
        if at is not None and self.paused:
            at = msgspec.structs.replace(at, paused=True)
        answer = self.leases.issue(node, ask, at, self.buffered(), now, origin)
        self.asked[answer.code if isinstance(answer, Refusal) else ""] += 1
        return answer if isinstance(answer, Refusal) else self._again("lease", answer)

    def acknowledge(self, node: bytes, message: Acknowledgement, now: int) -> None:
        """A node holds a version."""
        registry = self.registry
        registry.seen(node, now)
        self.broadcasts.acknowledged(
            peer_id(node), message, now, here_since=registry.here_since(node), admitted=registry.admitted(node)
        )

    async def durable(self) -> None:
        """Return once everything written so far is committed: before anybody is told of it."""
        await self.database.durable()

    def waiting(self) -> list[PendingVersion]:
        """The versions under which the scorer has to look at something, oldest first."""
        return self._waiting.versions()

    def visit(self, under: PendingVersion) -> Visit:
        """Take the groups that wait under one version, one after the other."""
        return self._waiting.visit(under)

    def undecided(self, most: int = 64) -> list[Undecided]:
        """Return the groups that wait for the scorer, oldest version first, then in the order of receipt."""
        return self._waiting.all(most)

    def draw_first_sample(self, group: Undecided, now: int) -> int | None:
        """Draw the sample of a group that the scorer looks at alone first; None: all at once."""
        samples = len(group.submission.rollouts)
        if samples == 1 or not self._doubted(group.lease.node, now):
            return None
        return int.from_bytes(self._entropy(8)) % samples

    def _doubted(self, node: bytes, now: int) -> bool:
        """Whether a key is new, has strikes, or is suspended, which wiped its strikes away."""
        standing = self.accounts.of(node, now)
        return standing.rank == "new" or standing.suspended_until is not None or self.strikes.of(node) > 0

    def oldest_needed(self) -> tuple[int, int]:
        """(era, version) of the oldest version that leases, undecided groups or late joiners may still ask for."""
        at = self.progress
        recent = (at.era, max(0, at.version - self.terms.staleness - 1)) if at else (0, 0)
        return min(recent, self.leases.oldest_in_use() or recent)

    def decide(self, group: Undecided, verdict: Verdict, now: int) -> bytes:
        """End a group; the sealed Receipt, durable."""
        return self.verdicts.decide(group.lease.id, group.submission.rollouts, verdict, self._standing(), now)

    def refuse_unscorable(self, group: Undecided, now: int, why: str | None = None) -> bytes:
        """Refuse a group that nobody can score, by the operator's fault. `why`: None: its version is gone."""
        detail = f"version {group.lease.version} can no longer be loaded" if why is None else why
        return self.decide(group, Verdict("not-scorable", sentence("not-scorable", detail=detail), None), now)

    def draw(self, again: Sequence[bytes] = ()) -> list[DrawnGroup] | None:
        """The learner's next batch; it makes version `progress.step + 1`. `again`: see `ReplayBuffer.draw`."""
        at = self._standing()
        return self.buffer.draw(at.step, at.era, self.terms.batch_groups, again)

    def shortage(self, now: int) -> Shortage:
        """Say what the learner's next batch lacks."""
        at = self._standing()
        load = self.leases.load(at, now)
        return Shortage(
            batch=self.terms.batch_groups,
            ready=self.buffered(),
            undecided=load.undecided,
            running=load.running,
            flat=self.buffer.flat(at.step, at.era),
            asked=self.asked,
            decided=len(self.verdicts.recent),
            refused=Counter(code for code in self.verdicts.recent if code not in ACCEPTED),
        )

    def buffered(self) -> int:
        at = self.progress
        return 0 if at is None else self.buffer.buffered(at.step, at.era)

    def _standing(self) -> Progress:
        if self.progress is None:
            raise RuntimeError("the learner has not started: where it stands is not known")
        return self.progress
