"""The scorer scores one sample first if the key is new or has strikes, and no sample twice."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echo2.coordinator.verdicts.group_verifier import GroupVerifier
from echo2.coordinator.verdicts.waiting_groups import Undecided
from echo2.coordinator.verification.submitted_group import ClaimedRollout, UnreadRollout
from echo2.coordinator.verification.verification import Verdict
from echo2.engines.engine import Job, SampleScore
from echo2.engines.process.messages import PackedSample
from echo2.protocol.leases import Receipt
from echo2.runtime.child import ChildDied, ChildError
from tests.support.group_world import ALICE, BOB, SPEC, World, group, opened, rollout

SAMPLES = 8
LONG = "0123456789" * 4
WRONG = 5.0


class Engine:
    """A `Scorer` of which only `score` is called. Every token is right, unless `margins` says otherwise."""

    def __init__(self) -> None:
        self.asked: list[list[bytes]] = []
        """Seeds of the samples of each call."""
        self.margins: Callable[[bytes, int], list[float]] = lambda seed, tokens: [0.0] * tokens
        self.left_out = 0
        self.loaded: object | None = self
        self.dies = False

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]:
        await asyncio.sleep(0)
        self.asked.append(job.seeds)
        lengths = [len(one.logprobs) // 4 for one in samples]
        scores = [
            SampleScore(logprobs=[-0.5] * tokens, margins=self.margins(seed, tokens))
            for seed, tokens in zip(job.seeds, lengths, strict=True)
        ]
        if self.dies:
            self.loaded = None
        return scores[self.left_out :]


@pytest.fixture
def world(tmp_path: Path) -> World:
    spec = msgspec.structs.replace(SPEC, group_size=SAMPLES, limit=64, staleness=4)
    world = World(tmp_path, spec=spec, batch_groups=1_000)
    return world


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def verifier(engine: Engine, world: World) -> GroupVerifier:
    return verifier_of(engine, world)


def verifier_of(engine: Engine, world: World) -> GroupVerifier:
    def published(era: int) -> list[int]:
        return [
            one for (one,) in world.group_service.database.all("SELECT version FROM versions WHERE era = ?", (era,))
        ]

    scorer: Any = engine
    return GroupVerifier(scorer, ends=world.spec.ends, staleness=world.spec.staleness, published=published)


def run(work: Coroutine[Any, Any, Verdict]) -> Verdict:
    return asyncio.run(work)


def waiting(world: World, node: bytes = ALICE, version: int = 0, text: str = LONG) -> Undecided:
    lease = world.lease(node, version)
    world.submit(group(lease, rollouts=[rollout(lease, text) for _ in lease.seeds]), node)
    return world.group_service.list_undecided()[-1]


def look(world: World, verifier: GroupVerifier, one: Undecided) -> Receipt:
    """Verify and decide a group as the scoring loop does."""
    verdict = run(verifier.verify(one, world.group_service.draw_first_sample(one, world.now)))
    return opened("receipt", world.group_service.decide(one, verdict, world.now), Receipt)


def made_up(seed: bytes, tokens: int) -> list[float]:
    return [WRONG] * tokens


def test_a_made_up_group_of_a_new_key_is_refused_after_one_sample(
    world: World, verifier: GroupVerifier, engine: Engine
) -> None:
    engine.margins = made_up
    one = waiting(world)
    receipt = look(world, verifier, one)
    assert (receipt.verdict, receipt.code) == ("refused", "not-generated")
    assert "Of 41 sampled tokens that were looked at, 41 are not the seeded choice" in receipt.reason
    (asked,) = engine.asked
    assert len(asked) == 1
    assert asked[0] in one.lease.seeds
    assert world.group_service.accounts.of(ALICE, world.now).suspended_until is not None


def test_the_sample_is_drawn_when_the_scorer_comes_to_the_group(world: World) -> None:
    one = waiting(world)
    drawn = {world.group_service.draw_first_sample(one, world.now) for _ in range(200)}
    assert drawn == set(range(SAMPLES))


def test_an_honest_group_of_a_new_key_is_scored_in_two_passes_and_no_sample_twice(
    world: World, verifier: GroupVerifier, engine: Engine
) -> None:
    one = waiting(world)
    receipt = look(world, verifier, one)
    assert receipt.verdict == "accepted"
    first, rest = engine.asked
    assert (len(first), sorted(first + rest)) == (1, sorted(one.lease.seeds))


def test_a_wrong_sample_that_was_not_drawn_first_is_found_by_the_second_pass(
    world: World, verifier: GroupVerifier, engine: Engine
) -> None:
    one = waiting(world)
    engine.margins = lambda seed, tokens: [WRONG * (seed == one.lease.seeds[6]), *[0.0] * (tokens - 1)]
    verdict = run(verifier.verify(one, first=1))
    assert (verdict.code, [len(asked) for asked in engine.asked]) == ("seeded-choice", [1, SAMPLES - 1])
    assert "Sample 6, sampled token 0" in verdict.reason
    verdict = run(verifier.verify(one, first=6))
    assert (verdict.code, [len(asked) for asked in engine.asked]) == ("seeded-choice", [1, SAMPLES - 1, 1])


def test_the_verdict_of_two_passes_is_that_of_one(world: World, verifier: GroupVerifier) -> None:
    one = waiting(world)
    whole, *two = (run(verifier.verify(one, first)) for first in (None, 0, 5))
    assert whole.accepted
    assert two == [whole, whole]


def test_nothing_is_scored_of_a_rollout_that_the_environment_failed_to_open(
    world: World, verifier: GroupVerifier, engine: Engine
) -> None:
    one = waiting(world)
    one.submission.rollouts[2] = ClaimedRollout(
        UnreadRollout(
            tokens=msgspec.Raw(b"\x90"), turns=[0], logprobs=b"", segments=one.submission.rollouts[2].segments
        )
    )
    for first in (None, 2, 5):
        engine.asked.clear()
        verdict = run(verifier.verify(one, first))
        assert verdict.accepted
        assert verdict.behaviour is not None
        assert [number for number, values in enumerate(verdict.behaviour) if not values] == [2]
        assert one.lease.seeds[2] not in [seed for asked in engine.asked for seed in asked]


def test_the_group_of_a_known_key_is_scored_whole_unless_the_key_has_a_strike(
    world: World, verifier: GroupVerifier, engine: Engine
) -> None:
    for _ in range(3):
        world.accepted(BOB)
    assert look(world, verifier, waiting(world, BOB)).verdict == "accepted"
    engine.margins = lambda seed, tokens: [WRONG, *[0.0] * (tokens - 1)]
    assert look(world, verifier, waiting(world, BOB)).code == "seeded-choice"
    assert look(world, verifier, waiting(world, BOB)).code == "seeded-choice"
    assert [len(asked) for asked in engine.asked] == [SAMPLES, SAMPLES, 1]


def test_a_group_from_before_a_suspension_is_judged_by_its_content_one_sample_first(
    world: World, verifier: GroupVerifier, engine: Engine
) -> None:
    for _ in range(3):
        world.accepted(BOB)
    before, forged = waiting(world, BOB), waiting(world, BOB)
    engine.margins = made_up
    assert look(world, verifier, forged).code == "not-generated"
    assert world.group_service.accounts.of(BOB, world.now).suspended_until is not None
    engine.margins = lambda seed, tokens: [0.0] * tokens
    assert look(world, verifier, before).verdict == "accepted"
    assert [len(asked) for asked in engine.asked] == [SAMPLES, 1, SAMPLES - 1]


def test_a_short_sample_proves_a_wrong_token_and_not_that_nothing_was_generated(
    world: World, verifier: GroupVerifier, engine: Engine
) -> None:
    engine.margins = made_up
    assert look(world, verifier, waiting(world, text="0123456789")).code == "seeded-choice"
    for _ in range(3):
        world.accepted(BOB)
    assert look(world, verifier, waiting(world, BOB, text="0123456789")).code == "not-generated"


def test_right_tokens_of_another_version_are_no_forgery(world: World, verifier: GroupVerifier, engine: Engine) -> None:
    """The versions are so far apart that the right tokens of one are mostly wrong under the next."""
    assert look(world, verifier, waiting(world)).verdict == "accepted"
    world.learner_at(1)
    engine.margins = made_up
    mistaken = waiting(world, BOB, version=1)
    assert look(world, verifier, mistaken).code == "seeded-choice"
    assert [len(asked) for asked in engine.asked] == [1, SAMPLES - 1, 1, 1], "one sample of version 0 under version 1"
    assert look(world, verifier, waiting(world, BOB, version=1)).code == "seeded-choice"
    assert len(engine.asked) == 5, "and never again under that version"


def test_made_up_groups_show_beside_versions_that_change_few_tokens(
    world: World, verifier: GroupVerifier, engine: Engine
) -> None:
    right = waiting(world)
    assert look(world, verifier, right).verdict == "accepted"
    world.learner_at(1)
    engine.margins = lambda seed, tokens: (
        [WRONG] * 5 + [0.0] * (tokens - 5) if seed in right.lease.seeds else [WRONG] * tokens
    )
    assert look(world, verifier, waiting(world, BOB, version=1)).code == "not-generated"
    world.learner_at(4)
    assert look(world, verifier, waiting(world, b"c" * 32, version=1)).code == "not-generated"


def test_a_sample_that_cannot_be_scored_tells_nothing_of_another_version(
    world: World, verifier: GroupVerifier, engine: Engine
) -> None:
    right = waiting(world)
    assert look(world, verifier, right).verdict == "accepted"
    world.learner_at(1)
    engine.margins = lambda seed, tokens: [float("nan") if seed in right.lease.seeds else WRONG] * tokens
    assert look(world, verifier, waiting(world, BOB, version=1)).code == "seeded-choice"


def test_without_a_sample_that_shows_how_versions_differ_a_fabricated_group_is_a_strike(
    world: World, verifier: GroupVerifier, engine: Engine
) -> None:
    world.learner_at(1)
    engine.margins = made_up
    codes = [look(world, verifier, waiting(world, version=1)).code for _ in range(3)]
    assert codes == ["seeded-choice"] * 3
    assert world.group_service.accounts.of(ALICE, world.now).suspended_until is not None, "three strikes"


def test_a_scorer_that_gives_too_few_scores_has_failed(world: World, verifier: GroupVerifier, engine: Engine) -> None:
    engine.left_out = 1
    for first in (None, 0):
        with pytest.raises(ChildError, match="scores for"):
            run(verifier.verify(waiting(world), first))


def test_a_scorer_that_goes_between_two_passes_is_not_asked_for_the_second(
    world: World, verifier: GroupVerifier, engine: Engine
) -> None:
    """The next process has no weights loaded yet, and would seem to fail at the group."""
    engine.dies = True
    with pytest.raises(ChildDied) as death:
        run(verifier.verify(waiting(world), first=2))
    assert death.value.told, "which counts against no group"
    assert [len(asked) for asked in engine.asked] == [1]
