"""Make further checks of verdicts: when, and by which scorer process. coordinator/verdicts/reviews.py says whose.

Rules
1. All appeals together take at most `APPEALS_TIME_SHARE` of the time that the scorer spends on groups: each second of
   scoring is a credit of `APPEALS_TIME_SHARE` seconds, each second of an appeal is debited. An appeal begins while the
   credit is above 0; a process starts with `FIRST_CREDIT_SECONDS`. At most `MOST_CREDIT` is saved: after weeks without
   appeals, a crowd of them does not have the scorer for hours. The way back to the newest version is part of an appeal.
   The operator's checks and audits are made whatever the credit.
2. A check is made by a scorer process that did not make the verdict: one that was started after it. Where there is
   none, the present one is ended first, so a fault of its memory or of its device's state is not repeated. Several
   checks of earlier verdicts share one process.
3. A check at which the scorer fails or dies `MOST_FAILURES` times is lost, with that reason. So one bad group does not
   stop the others. A version that cannot be loaded loses its checks likewise.
"""

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.verdicts.group_verifier import GroupVerifier
from echo2.coordinator.verdicts.reviews import Review
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.coordinator.verification.scorer import Scorer
from echo2.runtime.child import ChildDied, ChildError

APPEALS_TIME_SHARE: Final = 0.01
FIRST_CREDIT_SECONDS: Final = 10.0
"""Seconds."""
MOST_CREDIT: Final = APPEALS_TIME_SHARE * 3600
"""Seconds: the share of an hour."""
MOST_FAILURES: Final = 2

log = structlog.get_logger("coordinator")


class Reviewing:
    """The further checks of one run. `hold`: loads a version into the scorer; False: it can no longer be loaded.
    `clock`: seconds since the Unix epoch. `credit`: seconds that appeals may take now (rule 1)."""

    def __init__(
        self,
        group_service: GroupService,
        verifier: GroupVerifier,
        scorer: Scorer,
        clock: Callable[[], float],
    ) -> None:
        self._group_service = group_service
        self._verifier = verifier
        self._scorer = scorer
        self._clock = clock
        self._failures: Counter[bytes] = Counter()
        self._renewed = 0
        """Time at which a check last began a process, ms."""
        self.credit = FIRST_CREDIT_SECONDS

    def note_scoring(self, seconds: float) -> None:
        """Note time that the scorer has spent on groups."""
        self.credit = min(MOST_CREDIT, self.credit + APPEALS_TIME_SHARE * seconds)

    def due(self) -> Review | None:
        """Return the check to make now; None: none is due, or appeals have used up their share (rule 1)."""
        return self._group_service.reviews.next(appeals=self.credit > 0)

    async def make(self, review: Review, hold: Callable[[int, bytes], Awaitable[bool]]) -> None:
        """Make one check, and store its answer (rules 2 and 3). Raises `ChildDied`."""
        began, group = self._clock(), self._group_service.reviews.group(review)
        try:
            await self._check(review, group, hold)
        except ChildError as error:
            self._on_failure(review, f"the scorer failed at it: {error}")
        except ChildDied as death:
            self._on_failure(review, "the scorer died of it", counts=not death.told)
            raise
        else:
            await self._go_back(review, hold)
        finally:
            self.credit -= (self._clock() - began) * (review.by == "appeal")

    async def _go_back(self, review: Review, hold: Callable[[int, bytes], Awaitable[bool]]) -> None:
        """Load the newest version after an appeal (rule 1). A fault is left to the next group that needs a version."""
        at = self._group_service.progress
        if review.by == "appeal" and at is not None:
            with contextlib.suppress(ChildError):
                await hold(at.version, at.root)

    async def _check(
        self, review: Review, group: Undecided | None, hold: Callable[[int, bytes], Awaitable[bool]]
    ) -> None:
        if group is None:
            self._lose(review, "its group is no longer stored")
            return
        if self._group_service.reviews.decided_at(review.lease) >= self._renewed:
            self._renewed = self._now()
            await self._scorer.renew()
        if not await hold(group.lease.version, group.lease.root):
            self._lose(review, f"version {group.lease.version} can no longer be loaded")
            return
        verdict = await self._verifier.verify(group, None)
        again = self._group_service.answer_review(review, verdict, group.lease, self._now())
        self._failures.pop(review.lease, None)
        log.info("verdict checked again", lease=review.lease.hex(), by=review.by, code=again)

    def _on_failure(self, review: Review, why: str, *, counts: bool = True) -> None:
        self._failures[review.lease] += counts
        if self._failures[review.lease] >= MOST_FAILURES:
            self._lose(review, why)

    def _lose(self, review: Review, why: str) -> None:
        self._failures.pop(review.lease, None)
        self._group_service.lose_review(review, why[:300], self._now())
        log.error("verdict could not be checked again", lease=review.lease.hex(), by=review.by, reason=why)

    def _now(self) -> int:
        return int(self._clock() * 1000)
