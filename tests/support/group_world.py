"""A run on a fake clock: a real group service over a real file, with honest groups made up without a model.

Scores are those of an honest scorer for an honest node, unless a test changes them.
"""

import hashlib
import itertools
import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.absence import Absence
from echo2.coordinator.leases.lease_terms import LeaseTerms, Progress
from echo2.coordinator.leases.paid_work import PaidWork
from echo2.coordinator.leases.rollout_context import Entropy, RolloutContext, Sealing
from echo2.coordinator.metrics import run_metrics
from echo2.coordinator.metrics.capacity import Measured, view
from echo2.coordinator.metrics.views import CapacityView, NodeRow
from echo2.coordinator.prompts.mixed_prompts import MixedPrompts
from echo2.coordinator.prompts.prompts import PromptSource, TaskPrompts
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.submissions.request_handler import RequestHandler
from echo2.coordinator.submissions.run_records import RunRecords
from echo2.coordinator.verdicts.doubted_days import none_to_come
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.coordinator.verification.submitted_group import SubmittedGroup
from echo2.coordinator.verification.verification import judge
from echo2.coordinator.web import node_rows
from echo2.engines.engine import SampleScore
from echo2.p2p.envelope import ROLES, seal, verify_envelope
from echo2.p2p.identity import public_bytes
from echo2.p2p.limits.origin import LOCAL_ORIGIN, Origin
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import RoleKeys, Root, RunSpec, TaskReference
from echo2.protocol.leases import Lease, LeaseRequest, Receipt, Rollout, Segment, Submission, VerdictsRequest
from echo2.protocol.requests import Hello, Refusal
from echo2.tasks.arithmetic import REVERSE_TASK
from echo2.tasks.guess import GUESS
from echo2.tasks.task import Task
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, FileTokenizer, char_tokenizer

RUN = hashlib.sha256(b"a run").digest()
T0 = 1_700_000_000_000
TEXT = FileTokenizer(char_tokenizer(), EOS)
KEYS = {r: Ed25519PrivateKey.from_private_bytes(hashlib.sha256(r.encode()).digest()) for r in ("channel", "ledger")}
ALICE, BOB = (public_bytes(Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32)) for n in (1, 2))
TASKS = {(task.name, task.version): task for task in (REVERSE_TASK, GUESS)}
SPEC = RunSpec(
    run=RUN,
    name="test",
    model="tiny",
    assets=[],
    eos=EOS,
    vocabulary=CHAR_SIZE,
    tasks=[TaskReference(name="reverse", version=1)],
    staleness=2,
    group_size=2,
    limit=8,
    compute_dtype="float32",
    engines=["transformers/float32"],
    sampling="gumbel-1",
    price_mode="points",
)


HELLO = Hello(protocols=(1, 1), software="echo2 1", name="a", engine="e", device="d", tasks=[], record=b"")


def name(kind: str, number: int, size: int = 16) -> bytes:
    """Return a made-up key, id or nonce of `size` bytes."""
    return hashlib.blake2b(f"{kind} {number}".encode(), digest_size=size).digest()


def root_of(era: int, version: int) -> bytes:
    return hashlib.sha256(b"%d/%d" % (era, version)).digest()


def sealed_by_role(kind: str, payload: bytes) -> bytes:
    return seal(kind, RUN, payload, KEYS[ROLES[kind]])


def opened(kind: str, document: bytes, type_: type[Any]) -> Any:
    """Verify the signature of a sealed document; return its payload, decoded."""
    return decode(verify_envelope(document, kind, RUN, {public_bytes(KEYS[ROLES[kind]])}), type_)


def rollout(lease: Lease, text: str, **changes: Any) -> Rollout:
    tokens = [*TEXT.encode(text), EOS][: lease.limit]
    fields: dict[str, Any] = {
        "tokens": tokens,
        "turns": [len(tokens)],
        "logprobs": struct.pack(f"<{len(tokens)}f", *[-0.5] * len(tokens)),
        "segments": [Segment(version=lease.version, root=lease.root, first=0)],
    }
    return Rollout(**(fields | changes))


def group(lease: Lease, texts: Iterable[str] | None = None, **changes: Any) -> Submission:
    answers = texts or [str(n) * 3 for n in range(len(lease.seeds))]
    fields: dict[str, Any] = {"lease": lease.id, "era": lease.era, "version": lease.version, "root": lease.root}
    return Submission(**(fields | {"rollouts": [rollout(lease, t) for t in answers]} | changes))


def prompts_of(tasks: Sequence[Task]) -> PromptSource:
    """Return the prompts of tasks of equal weights."""
    sources = [TaskPrompts(task, TEXT, seed=7) for task in tasks]
    return sources[0] if len(sources) == 1 else MixedPrompts(sources, [1] * len(sources), seed=7)


def honest_scores(submission: Submission | SubmittedGroup) -> list[SampleScore]:
    lengths = [len(r.logprobs) // 4 for r in submission.rollouts]
    return [SampleScore(logprobs=[-0.5] * n, margins=[0.0] * n) for n in lengths]


OPEN_WORLDS = set["World"]()
"""Worlds whose file is open; tests/coordinator/conftest.py closes those of a test."""


class World:
    """One coordinator's group service. `now`: the clock, milliseconds. `to_come`: see `DoubtedDays`. `reopen`: a crash
    and a restart."""

    def __init__(
        self,
        folder: Path,
        *,
        spec: RunSpec = SPEC,
        task: Task | None = None,
        entropy: Entropy | None = None,
        **terms: Any,
    ) -> None:
        self.path = folder / "run.sqlite"
        self.spec = spec
        self.now = T0
        self.to_come: Callable[[str, int], bool] = none_to_come
        self._terms = terms
        self._tasks = [task] if task else [TASKS[t.name, t.version] for t in spec.tasks]
        self._drawn_bytes = itertools.count()
        self._entropy = entropy or self._counted
        self._nonces = itertools.count()
        self.group_service = self._open()
        OPEN_WORLDS.add(self)
        self.group_service.rebuild([], self.at(0))
        self.publish(0)

    def _open(self) -> GroupService:
        fixed = {"staleness": self.spec.staleness, "group_size": self.spec.group_size, "limit": self.spec.limit}
        given = {"batch_groups": 2, "engines": list(self.spec.engines), "per_node": 100} | fixed | self._terms
        database = Database.open(self.path)
        # No test here cuts the power; tests/coordinator/database/test_database.py tests the setting itself.
        database.do("PRAGMA synchronous = OFF")
        terms, prompts = msgspec.convert(given, LeaseTerms), prompts_of(self._tasks)
        context = RolloutContext(self.spec, terms, prompts, TASKS, TEXT)
        records = RunRecords(database, self.spec.price_mode, self._entropy)
        sealing, paid_work = Sealing(sealed_by_role), self._paid_work(records)
        return GroupService(records, context, sealing, self._entropy, paid_work=paid_work, to_come=self._to_come)

    def _paid_work(self, records: RunRecords) -> PaidWork | None:
        """Return whom the run pays; None: everybody."""
        return None

    def _to_come(self, rounding: str, since: int) -> bool:
        return self.to_come(rounding, since)

    def _counted(self, size: int) -> bytes:
        return hashlib.sha256(b"entropy %d" % next(self._drawn_bytes)).digest()[:size]

    def at(self, step: int, version: int | None = None, era: int = 1, **more: Any) -> Progress:
        version = step if version is None else version
        return Progress(era=era, step=step, version=version, root=root_of(era, version), **more)

    def capacity(self, step_seconds: float | None) -> CapacityView:
        """Return the terms of the capacity model, as the status page shows them."""
        terms, reach = self.group_service.terms, self.group_service.broadcasts.reach() or 0.0
        known = Measured(
            step_seconds=step_seconds,
            turnaround_seconds=None,
            rollouts_per_step=float(terms.batch_groups * terms.group_size),
            supply=0.0,
        )
        completed = run_metrics.complete_measurements(
            self.group_service.database, known, reach, self.now, {}, refill=self.group_service.buffer.refill
        )
        return view(terms.staleness, 1, 1.1, completed)

    def rows(self, connected: Collection[str] = ()) -> list[NodeRow]:
        """Return the ranking of nodes, as the status page shows it."""
        return node_rows.page(self.group_service.database, None, 1_000, connected, {}).rows

    def publish(self, version: int, era: int = 1) -> None:
        self.group_service.leases.publish(era, version, root_of(era, version), self.now)

    def learner_at(self, step: int, *, era: int = 1) -> None:
        """Set the learner's progress to a step whose version is published."""
        self.publish(step, era)
        self.group_service.progress = self.at(step, era=era)

    def ask(self, version: int = 0, *, era: int = 1, **changes: Any) -> LeaseRequest:
        nonce = next(self._nonces).to_bytes(16, "big")
        fields: dict[str, Any] = {"nonce": nonce, "era": era, "version": version, "root": root_of(era, version)}
        return LeaseRequest(**(fields | {"engine": "transformers/float32/cpu"} | changes))

    def lease(self, node: bytes = ALICE, version: int = 0, origin: Origin = LOCAL_ORIGIN, **changes: Any) -> Lease:
        answer = self.group_service.lease(node, self.ask(version, **changes), self.now, origin)
        assert isinstance(answer, bytes), answer
        return opened("lease", answer, Lease)

    def refusal(self, version: int = 0, node: bytes = ALICE, **changes: Any) -> Refusal:
        answer = self.group_service.lease(node, self.ask(version, **changes), self.now)
        assert isinstance(answer, Refusal), answer
        return answer

    def submit(self, submission: Submission, node: bytes = ALICE) -> bytes:
        """Submit; return the sealed Received, or no bytes."""
        self.now += 10
        answer = self.group_service.submissions.submit(node, encode(submission), self.now)
        assert isinstance(answer, bytes), answer
        return answer

    def refused(self, submission: Submission, node: bytes = ALICE) -> Receipt:
        assert self.submit(submission, node) == b""
        asked = VerdictsRequest(leases=[submission.lease])
        (sealed,) = self.group_service.submissions.verdicts(node, asked).receipts
        assert sealed is not None
        receipt: Receipt = opened("receipt", sealed, Receipt)
        assert receipt.verdict == "refused"
        return receipt

    def decide_all(self) -> list[Receipt]:
        """Accept every waiting group, those that agree with their answer without the scorer; return the receipts."""
        return [self.decide_one(group) for group in self.group_service.list_undecided(1000)]

    def decide_one(self, group: Undecided) -> Receipt:
        """Accept a waiting group as the scoring loop does, with the scores of an honest scorer."""
        verdict = self.group_service.compare_known(group)
        if verdict is None:
            return self.decide(group, honest_scores(group.submission))
        receipt: Receipt = opened("receipt", self.group_service.decide(group, verdict, self.now), Receipt)
        return receipt

    def decide(self, group: Undecided, scores: list[SampleScore]) -> Receipt:
        verdict = judge(group.submission.rollouts, scores)
        receipt: Receipt = opened("receipt", self.group_service.decide(group, verdict, self.now), Receipt)
        return receipt

    def accepted(self, node: bytes = ALICE, version: int = 0) -> Lease:
        """Lease, submit and accept an honest group; return its lease."""
        lease = self.lease(node, version)
        self.submit(group(lease), node)
        (receipt,) = self.decide_all()
        assert receipt.verdict == "accepted"
        return lease

    def reopen(self, *, away: int = 0, drawn: Iterable[bytes] = ()) -> None:
        progress = self.group_service.progress
        self.group_service.database.close()
        self.now += away
        self.group_service = self._open()
        self.group_service.start(self.now)
        assert progress is not None
        self.group_service.rebuild(drawn, progress)

    def close(self) -> None:
        OPEN_WORLDS.discard(self)
        self.group_service.database.close()


Kind = TypeVar("Kind", bound=RequestHandler)


def control_of(world: World, kind: type[Kind]) -> Kind:
    """Return a request handler for a world, in a run that has published nothing yet."""
    roles = {role: RoleKeys(keys=[public_bytes(key)], threshold=1) for role, key in KEYS.items()}
    run: Any = SimpleNamespace(
        runspec=SPEC, runspec_sealed=b"runspec", roots=(b"root",), keys=SimpleNamespace(**KEYS),
        chain=(Root(run=RUN, serial=1, roles=roles, expires=2 * T0, issued=0),),
    )  # fmt: skip
    publisher: Any = SimpleNamespace(sealed_head=None)
    history: Any = SimpleNamespace(first_asked=lambda version, now: None)
    absence = Absence(world.group_service.leases, lambda: world.now / 1000)
    return kind(run, world.group_service, publisher, history, absence, lambda: world.now)
