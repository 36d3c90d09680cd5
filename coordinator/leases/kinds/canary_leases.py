"""The kind of lease "canary": its offer, the comparison with its answer, and what its end changes.

The rules stand in canaries.py, the answers at hand in canary_answers.py.
"""

from collections.abc import Sequence

from echo2.coordinator.accounts.decided import Decided
from echo2.coordinator.database.database import Database
from echo2.coordinator.leases.kinds.canaries import CanaryShare, verdict_by_answer
from echo2.coordinator.leases.kinds.canary_answers import CanaryAnswers
from echo2.coordinator.leases.lease_terms import LeaseTerms
from echo2.coordinator.leases.lease_writer import AskedLease, LeaseKind, LeaseWriter
from echo2.coordinator.leases.rollout_context import Entropy
from echo2.coordinator.leases.twin_sets import TwinSets
from echo2.coordinator.prompts.prompt_positions import PromptPosition
from echo2.coordinator.verification.submitted_group import ClaimedRollout
from echo2.coordinator.verification.verification import Verdict


class CanaryLeases(LeaseKind):
    """The canaries of a run. `answers`: their answers. `share`: the share of leases that they take."""

    takes_room = False

    def __init__(
        self,
        database: Database,
        writer: LeaseWriter,
        twins: TwinSets,
        answers: CanaryAnswers,
        share: float,
        entropy: Entropy,
    ) -> None:
        """`share`: share of all leases; 0: there is no canary."""
        self._database, self._writer, self._twins, self._entropy = database, writer, twins, entropy
        self.answers, self.share = answers, CanaryShare(share)

    def take(self, terms: LeaseTerms) -> None:
        """See `LeaseKind.take`."""
        self.share.share = terms.canaries

    def offer(self, asked: AskedLease) -> bytes | None:
        """Return a sealed Lease whose answer is known, in place of a plain one (rules 1 and 2)."""
        if asked.refused is not None or not self.share.share or not asked.exact:
            return None
        first = asked.demand.first
        if not first and not self.share.draw(self._entropy(4)):
            return None
        requester, request = asked.demand.requester, asked.request
        answer = self.answers.choose(requester.node, requester.origin, request.era, request.version, asked.now)
        if answer is None:
            return None
        with self._database.transaction():
            chosen = PromptPosition(answer.position, answer.attempt, "", answer.prompt)
            lease, sealed = self._writer.write(chosen, asked, "canary", answer.seeds)
            self.answers.on_grant(answer, lease)
        if not first:
            self.share.on_grant()
        return sealed

    def compare(self, lease: bytes, rollouts: Sequence[ClaimedRollout]) -> Verdict | None:
        """Return the verdict on a canary's group that agrees with its answer (rule 6)."""
        answer = self.answers.answer_of(lease)
        return None if answer is None else verdict_by_answer(rollouts, answer)

    def on_decided(self, end: Decided) -> None:
        """Count the end of a canary whose group came."""
        if end.code == "canary" and end.accepted is not None:
            self.answers.count("canaries agreed" if end.accepted.agreed else "canaries scored")
        elif end.is_refused and not end.is_late and self._twins.is_canary(end.lease.id):
            self.answers.count("canaries refused")

    def forget(self, era: int, oldest: int) -> int:
        """See `LeaseKind.forget`."""
        return self.answers.forget(era, oldest)
