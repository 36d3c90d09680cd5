"""Submissions come in: what a node is answered, and what is kept.

Rules
1. What is answered was made durable before.
2. One submission a lease. The same bytes again are the same submission: the stored answer. Other bytes are refused; the
   first of them are kept as evidence, later ones are only counted (coordinator/rollouts/token_storage.py).
3. A key that does not own a lease learns nothing of it and changes nothing of it. Of a group for a lease that is not
   its key's, or has a submission already, nothing but the lease is read.
4. Received after the lease's end: a REFUSED receipt. In time but no good by T0: a REFUSED receipt with its own entry.
   In time and good by T0: RECEIVED, sealed, and a verdict to come.
5. A refusal that honest work does not meet is a strike against the key (coordinator/accounts/strikes.py).
"""

from collections.abc import Mapping, Sequence

import blake3
import msgspec
import structlog

from coordinator.accounts.strikes import Strikes
from coordinator.database import Database, marks
from coordinator.rollouts.lease_table import LeaseRecord, LeaseTable, Reseal, Seal
from coordinator.rollouts.submitted_group import SubmittedGroup, lease_of, read
from coordinator.rollouts.token_storage import TokenStorage
from coordinator.rollouts.verdicts import VerdictService
from coordinator.rollouts.verification import GroupFault, check, rewards, submission_limit
from coordinator.rollouts.waiting_groups import WaitingGroups
from p2p.errors import Malformed
from p2p.wire_types import encode
from protocol.authority import RunSpec
from protocol.leases import Lease, Received, SubmitResponse, VerdictsRequest
from protocol.leases import VerdictsResponse as VerdictsAnswer
from protocol.refusals import refusal, sentence
from protocol.requests import Refusal
from tasks.task import Task, Tokenizer

log = structlog.get_logger("coordinator")


class SubmissionService:
    """`tasks`: by (name, version), those of the RunSpec."""

    def __init__(
        self,
        database: Database,
        leases: LeaseTable,
        verdicts: VerdictService,
        strikes: Strikes,
        waiting: WaitingGroups,
        seal: Seal,
        again: Reseal,
        spec: RunSpec,
        tasks: Mapping[tuple[str, int], Task],
        text: Tokenizer,
    ) -> None:
        self._database = database
        self._leases = leases
        self._verdicts = verdicts
        self._strikes = strikes
        self._waiting = waiting
        self._seal, self._again = seal, again
        self._spec = spec
        self._tasks = tasks
        self._text = text
        self._tokens = TokenStorage(database)

    def submit(self, node: bytes, data: bytes, now: int) -> SubmitResponse | Refusal:
        """Take a group from the node that signed it (rules 1-5)."""
        with self._database.transaction():
            answer = self._submitted_by(node, data, now)
            if isinstance(answer, Refusal):
                self._strikes.refused(node, answer.code, blake3.blake3(data).digest(), now)
        return answer

    def _submitted_by(self, node: bytes, data: bytes, now: int) -> SubmitResponse | Refusal:
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

    def _take(self, record: LeaseRecord, data: bytes, now: int) -> SubmitResponse | Refusal:
        """Take a group from the owner of its lease. Raises `Malformed` before anything was written."""
        digest = blake3.blake3(data).digest()
        lease = record.lease.id
        stored = self._database.value("SELECT hash FROM submissions WHERE lease = ?", (lease,))
        if stored is not None:
            return self._answer(lease) if stored == digest else self._conflict(lease, digest, data, now)
        if self._verdicts.forgotten(record):
            return refusal("unknown-lease")
        submission = read(data)
        if record.state == "expired" or now > record.expires:
            self._store_refused(lease, digest, now, data)
            self._verdicts.refuse_late(record, sentence("late", late=now - record.expires), now)
            return self._answer(lease)
        examined = self._examined(record.lease, submission)
        if isinstance(examined, GroupFault):
            self._store_refused(lease, digest, now, data)
            self._verdicts.refuse(record, examined.code, examined.sentence, now)
            return self._answer(lease)
        received = self._seal("received", encode(Received(lease=lease, submission_hash=digest, at=now)))
        self._store(lease, digest, now, data, examined, received)
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
    ) -> None:
        """Keep a submission. One statement: to change its row later would write the payload again."""
        self._database.do(
            "INSERT INTO submissions (lease, hash, at, payload, scores, received) VALUES (?, ?, ?, ?, ?, ?)",
            (lease, digest, now, data, scores, received),
        )

    def _store_refused(self, lease: bytes, digest: bytes, now: int, data: bytes) -> None:
        """Keep a submission that is about to be refused: its hash alone where its party's share is used up."""
        self._store(lease, digest, now, data if self._tokens.room(lease, len(data)) else None)

    def _examined(self, lease: Lease, submission: SubmittedGroup) -> bytes | GroupFault:
        """T0: the packed scores of the rollouts (none where the task gives no finite reward), or what is wrong."""
        fault = check(submission, lease, self._spec)
        if fault is not None:
            return fault
        scores = rewards(submission, lease, self._tasks[lease.task, lease.task_version], self._text)
        if isinstance(scores, GroupFault) and scores.code == "task-score":
            log.warning("no finite reward", lease=lease.id.hex(), index=lease.index, reason=scores.sentence)
            scores = []
        return scores if isinstance(scores, GroupFault) else msgspec.msgpack.encode(scores)

    def _conflict(self, lease: bytes, digest: bytes, data: bytes, now: int) -> Refusal:
        self._tokens.other_bytes(lease, digest, data, now)
        self._database.do("UPDATE submissions SET conflicts = conflicts + 1 WHERE lease = ?", (lease,))
        return refusal("other-bytes")

    def _answer(self, lease: bytes) -> SubmitResponse:
        received = self._database.value("SELECT received FROM submissions WHERE lease = ?", (lease,))
        receipt = self._verdicts.receipt(lease)
        return SubmitResponse(
            received=received and self._again("received", received),
            receipt=receipt and self._again("receipt", receipt),
        )

    def verdicts(self, node: bytes, ask: VerdictsRequest) -> VerdictsAnswer:
        """Receipts of the node's own leases; what it confirms is noted."""
        if ask.confirmed:
            with self._database.transaction():
                self._verdicts.confirm(node, ask.confirmed)
        known = self._receipts(node, ask.leases)
        unknown = [lease for lease in ask.leases if lease not in known]
        receipts = [sealed and self._again("receipt", sealed) for sealed in map(known.get, ask.leases)]
        return VerdictsAnswer(receipts=receipts, unknown=unknown)

    def _receipts(self, node: bytes, leases: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """By lease the receipt of each group that this node submitted, None where there is none yet."""
        query = (
            "SELECT s.lease, v.receipt FROM submissions s JOIN leases l ON l.id = s.lease"
            f" LEFT JOIN verdicts v ON v.lease = s.lease WHERE s.lease IN ({marks(leases)}) AND l.node = ?"
        )
        return dict(self._database.all(query, (*leases, node)))
