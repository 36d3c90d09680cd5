"""A scoring loop over a world's groups, with stand-ins for the scorer, its weights and its verifier."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from echo2.coordinator.publishing.published import Published
from echo2.coordinator.training.group_visits import GroupVisits
from echo2.coordinator.training.scoring_loop import Scoring
from echo2.coordinator.verdicts.group_dispatch import GroupDispatch
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.coordinator.verification.verification import Verdict, judge
from tests.support.group_world import World, group, honest_scores


class StandIns:
    """A scorer, its weights and its verifier. `errors`: raised one after the other for the group of a lease."""

    def __init__(self) -> None:
        self.loaded: bool | None = True
        self.renewed = 0
        self.errors: dict[bytes, list[Exception]] = {}
        self.available = True
        self.earlier: Published | None = None
        self.at: bytes | None = None
        self.passed: list[tuple[bytes, bytes | None]] = []
        """(lease, root) of each pass under the version before."""
        self.verified: Callable[[], None] = lambda: None
        """Called at each verification."""

    async def renew(self) -> None:
        self.renewed += 1

    async def hold(self, root: bytes) -> bool:
        self.at = root
        return self.available

    def before(self, root: bytes) -> Published | None:
        return self.earlier

    async def pass_before(self, group: Undecided, verdict: Verdict) -> Verdict:
        self.passed.append((group.lease.id, self.at))
        if errors := self.errors.get(group.lease.id):
            raise errors.pop(0)
        return verdict

    async def verify(self, group: Undecided, first: int | None) -> Verdict:
        self.verified()
        if errors := self.errors.get(group.lease.id):
            raise errors.pop(0)
        return judge(group.submission.rollouts, honest_scores(group.submission))


def visits_over(world: Any, dispatch: GroupDispatch, scorer: Any) -> GroupVisits:
    """Return the visits of a scorer to the groups of a world. `scorer`: as in `scoring_over`."""
    return GroupVisits(scorer, world.group_service, scorer, scorer, dispatch.clock, asyncio.Event(), dispatch)


def scoring_over(world: Any, scorer: Any) -> Scoring:
    """Return the loop over a world's groups. `scorer`: stands in for scorer, weights and verifier."""

    def clock() -> float:
        return float(world.now / 1000)

    arrived = asyncio.Event()
    service, publisher, history = world.group_service, SimpleNamespace(latest=None), SimpleNamespace(evaluations={})
    parts: Any = {"publisher": publisher, "history": history, "evaluation_sets": []}
    return Scoring(
        scorer=scorer, group_service=service, evaluate_every=1, clock=clock, arrived=arrived,
        visits=visits_over(world, GroupDispatch(service, clock, arrived.set), scorer), **parts,
    )  # fmt: skip


def waiting(world: World, number: int, version: int = 0) -> list[bytes]:
    leases = [world.lease(version=version) for _ in range(number)]
    for lease in leases:
        world.submit(group(lease))
    return [lease.id for lease in leases]


def verdicts(world: World) -> dict[bytes, tuple[str, str]]:
    rows = world.group_service.database.all("SELECT lease, verdict, code FROM verdicts")
    return {lease: (verdict, code) for lease, verdict, code in rows}
