"""Receive submissions: check them, store them, and answer the node.

Rules
1. An answer is sent once everything that it states is durable.
2. A lease has one submission. The same bytes again get the stored answer. Other bytes are refused. The first of them
   are stored as evidence, later ones are only counted (coordinator/verdicts/token_storage.py).
3. A key cannot read or change anything about another key's lease. If a lease belongs to another key or has a submission
   already, only the lease's id is decoded of a new submission.
4. A submission in time that passes T0 (coordinator/verification/verification.py) is answered by a sealed RECEIVED. One
   that is late, or fails T0, has its REFUSED receipt at once, and is answered by no bytes. A receipt is told in one
   form, to a request for verdicts.
5. A refusal that honest work does not cause is a strike against the key (coordinator/accounts/strikes.py).
"""

from collections.abc import Sequence

import blake3
import msgspec
import structlog

from echo2.coordinator.accounts.strikes import Strikes
from echo2.coordinator.database.database import Database, marks
from echo2.coordinator.leases.lease_rows import LeaseRecord
from echo2.coordinator.leases.lease_table import LeaseTable
from echo2.coordinator.leases.rollout_context import RolloutContext, Sealing
from echo2.coordinator.submissions.step_table import StepTable
from echo2.coordinator.verdicts.token_storage import TokenStorage
from echo2.coordinator.verdicts.verdicts import VerdictService
from echo2.coordinator.verdicts.waiting_groups import WaitingGroups
from echo2.coordinator.verification.submitted_group import SubmittedGroup, decode_group, lease_of
from echo2.coordinator.verification.verification import GroupFault, check, check_single_turn, rewards, submission_limit
from echo2.p2p.errors import Malformed
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease, Received, VerdictsRequest
from echo2.protocol.leases import VerdictsResponse as VerdictsAnswer
from echo2.protocol.refusals import refusal, sentence
from echo2.protocol.requests import Refusal
from echo2.protocol.task_kinds import ANSWERED_KINDS
from echo2.tasks.task import Score, TaskFault

log = structlog.get_logger("coordinator")


class SubmissionService:
    """The coordinator's side of `submit`, and of requests for verdicts: submissions come in, receipts go out."""

    def __init__(
        self,
        database: Database,
        leases: LeaseTable,
        verdicts: VerdictService,
        strikes: Strikes,
        waiting: WaitingGroups,
        context: RolloutContext,
        sealing: Sealing,
    ) -> None:
        self._database = database
        self._leases = leases
        self._verdicts = verdicts
        self._strikes = strikes
        self._waiting = waiting
        self._sealing = sealing
        self._context = context
        self._spec = context.spec
        self._steps = StepTable(database)
        self._tokens = TokenStorage(database)

    def submit(self, node: bytes, data: bytes, now: int) -> bytes | Refusal:
        """Receive a group from the node that signed it (rules 1-5)."""
        with self._database.transaction():
            answer = self._submitted_by(node, data, now)
            if isinstance(answer, Refusal):
                self._strikes.on_refusal(node, answer.code, blake3.blake3(data).digest(), now)
        return answer

    def _submitted_by(self, node: bytes, data: bytes, now: int) -> bytes | Refusal:
        most = submission_limit(self._spec)
        if len(data) > most:
            return refusal("too-large", size=len(data), most=most)
        try:
            record = self._leases.find(lease_of(data))
            if record is None:
                return refusal("unknown-lease")
            return self._take(record, data, now) if record.lease.node == node else refusal("not-owner")
        except Malformed as error:
            return refusal("malformed", what="submission", detail=error)

    def _take(self, record: LeaseRecord, data: bytes, now: int) -> bytes | Refusal:
        """Receive a group from the owner of its lease. Raises `Malformed` before anything is written."""
        digest = blake3.blake3(data).digest()
        lease = record.lease.id
        stored = self._database.value("SELECT hash FROM submissions WHERE lease = ?", (lease,))
        if stored is not None:
            return self._answer(lease) if stored == digest else self._conflict(lease, digest, data, now)
        if self._verdicts.expiries.is_forgotten(record):
            return refusal("unknown-lease")
        submission = decode_group(data)
        if record.without_group or now > record.expires:
            self._store_refused(lease, digest, now, data)
            self._verdicts.refuse_late(record, sentence("late", late=now - record.expires), now)
            return self._answer(lease)
        examined = self._examine_group(record.lease, submission)
        if isinstance(examined, GroupFault):
            self._store_refused(lease, digest, now, data)
            self._verdicts.refuse(record, examined.code, examined.sentence, now, sample=examined.sample)
            return self._answer(lease)
        received = self._sealing.seal("received", encode(Received(lease=lease, submission_hash=digest, at=now)))
        self._store(lease, digest, now, data, examined, received, (submission.waited, submission.took))
        self._leases.move(lease, "received")
        self._waiting.put(record.lease, submission, now)
        return self._answer(lease)

    def _store(
        self,
        lease: bytes,
        digest: bytes,
        now: int,
        data: bytes | None,
        scores: bytes | None = None,
        received: bytes | None = None,
        times: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Store a submission in one statement: changing its row later would write the payload again. `times`: what the
        node says of its own."""
        self._database.do(
            "INSERT INTO submissions (lease, hash, at, payload, scores, received, waited, took)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (lease, digest, now, data, scores, received, *times),
        )

    def _store_refused(self, lease: bytes, digest: bytes, now: int, data: bytes) -> None:
        """Store a submission that is about to be refused; only its hash if its party has no room left
        (token_storage.py, rule 2)."""
        self._store(lease, digest, now, data if self._tokens.room(lease, len(data)) else None)

    def _examine_group(self, lease: Lease, submission: SubmittedGroup) -> bytes | GroupFault | None:
        """Check a group by T0. Return the packed scores of its rollouts, nil where the task gives no finite reward;
        None if its environment scores them later; or the fault."""
        fault = check(submission, lease, self._spec)
        if fault is not None:
            return fault
        task = self._context.tasks.get((lease.task, lease.task_version))
        if self._context.kind(lease.task, lease.task_version) in ANSWERED_KINDS:
            scores: Sequence[Score | TaskFault | None] | GroupFault = self._steps.compare(lease.id, submission)
        elif task is None:
            return check_single_turn(submission)
        else:
            scores = rewards(submission, lease, task, self._context.text)
        if isinstance(scores, GroupFault):
            return scores
        faults = [(number, str(one)) for number, one in enumerate(scores) if isinstance(one, TaskFault)]
        if faults:
            sample, reason = faults[0]
            log.warning(
                "no finite reward", lease=lease.id.hex(), index=lease.index, rollouts=len(faults), sample=sample,
                reason=reason,
            )  # fmt: skip
        return msgspec.msgpack.encode([None if isinstance(one, TaskFault) else one for one in scores])

    def _conflict(self, lease: bytes, digest: bytes, data: bytes, now: int) -> Refusal:
        self._tokens.other_bytes(lease, digest, data, now)
        self._database.do("UPDATE submissions SET conflicts = conflicts + 1 WHERE lease = ?", (lease,))
        return refusal("other-bytes")

    def _answer(self, lease: bytes) -> bytes:
        received = self._database.value("SELECT received FROM submissions WHERE lease = ?", (lease,))
        return self._sealing.reseal("received", received) if received else b""

    def verdicts(self, node: bytes, request: VerdictsRequest) -> VerdictsAnswer:
        """Return receipts of the node's own leases, and note those that it confirms."""
        if request.confirmed:
            with self._database.transaction():
                self._verdicts.receipts.confirm(node, request.confirmed)
        known = self._receipts(node, request.leases)
        unknown = [lease for lease in request.leases if lease not in known]
        receipts = [sealed and self._sealing.reseal("receipt", sealed) for sealed in map(known.get, request.leases)]
        return VerdictsAnswer(receipts=receipts, unknown=unknown)

    def _receipts(self, node: bytes, leases: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """Return, by lease, the receipt of each group that this node submitted; None if there is none yet."""
        query = (
            "SELECT s.lease, v.receipt FROM submissions s JOIN leases l ON l.id = s.lease"
            f" LEFT JOIN verdicts v ON v.lease = s.lease WHERE s.lease IN ({marks(leases)}) AND l.node = ?"
        )
        return dict(self._database.all(query, (*leases, node)))
