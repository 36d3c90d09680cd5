"""Groups that are scored together have the scores that each has alone, and each its own error."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from benchmarks.plays.direct import generate
from echo2.engines.batch.request_batch import ProgramLost
from echo2.engines.engine import EngineError, GroupToScore, NoMemory, SampleScore
from echo2.engines.transformers import scoring
from echo2.engines.transformers.engine import TransformersEngine
from echo2.engines.transformers.packed_attention import PackedPass
from echo2.engines.transformers.packed_layout import PackedLayout
from echo2.engines.transformers.padded_scoring import score_padded
from echo2.engines.transformers.scoring import GroupScorer
from echo2.engines.transformers.token_scores import TokenScores
from tests.support import tiny_model
from tests.support.tiny_model import job

CPU = torch.device("cpu")
AGREE = 1e-5


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TransformersEngine:
    """Return a model that ends its turns often, so that environments answer and lengths differ."""
    torch.set_num_threads(1)
    tiny = tiny_model.make(tmp_path_factory.mktemp("chatty"), seed=3, eos_bias=0.6)
    engine = TransformersEngine()
    engine.load(tiny.folder, tiny.snapshot)
    return engine


@pytest.fixture(scope="module")
def groups(engine: TransformersEngine) -> list[GroupToScore]:
    """Return groups of several lengths; one of them has rollouts with hints that the environment gave."""
    asked = [("reverse", 8, 20), ("add", 1, 1), ("guess", 3, 40), ("reverse", 16, 9)]
    jobs = [job(index, samples=samples, limit=limit, task=task) for index, (task, samples, limit) in enumerate(asked)]
    return [*(GroupToScore(one, generate(engine, one)) for one in jobs), game(engine)]


def game(engine: TransformersEngine) -> GroupToScore:
    for index in range(50):
        asked = job(index, samples=32, limit=9, task="guess")
        samples = generate(engine, asked)
        if any(len(sample.turns) > 1 for sample in samples):
            return GroupToScore(asked, samples)
    raise AssertionError("no game with two turns")


def by_padding(engine: TransformersEngine, group: GroupToScore) -> list[SampleScore]:
    model = engine._live_model().model
    with torch.inference_mode():
        return score_padded(model, TokenScores(model), *group)


def agree(outcome: object, expected: list[SampleScore]) -> None:
    assert isinstance(outcome, list)
    for one, other in zip(outcome, expected, strict=True):
        assert list(one.logprobs) == pytest.approx(list(other.logprobs), abs=AGREE)
        assert list(one.margins) == pytest.approx(list(other.margins), abs=AGREE)
        assert list(one.gaps) == pytest.approx(list(other.gaps), abs=AGREE)
        assert [value == 0.0 for value in one.margins] == [value == 0.0 for value in other.margins]


@pytest.mark.slow
def test_groups_of_several_turns_and_lengths_score_together_as_by_padded_passes(
    engine: TransformersEngine, groups: list[GroupToScore]
) -> None:
    samples = [sample for group in groups for sample in group.samples]
    assert any(len(sample.turns) > 1 for sample in samples)
    assert len({len(sample.tokens) for sample in samples}) > 5
    assert len({len(group.job.prompt) for group in groups}) > 1
    for group, outcome in zip(groups, engine.score_groups(groups), strict=True):
        agree(outcome, by_padding(engine, group))
        assert isinstance(outcome, list)
        assert {margin for score in outcome for margin in score.margins} == {0.0}


def test_a_wrong_token_has_the_same_margin_by_both_passes(
    engine: TransformersEngine, groups: list[GroupToScore]
) -> None:
    wrong = [
        GroupToScore(group.job, [
            msgspec.structs.replace(one, tokens=[(token + place) % 20 for place, token in enumerate(one.tokens)])
            for one in group.samples
        ])
        for group in groups
    ]  # fmt: skip
    for group, outcome in zip(wrong, engine.score_groups(wrong), strict=True):
        expected = by_padding(engine, group)
        agree(outcome, expected)
        assert len(group.samples) < 3 or max(margin for score in expected for margin in score.margins) > 1.0


def test_a_group_that_does_not_fit_gets_its_own_error_and_its_neighbours_their_scores(
    engine: TransformersEngine, groups: list[GroupToScore]
) -> None:
    first, second, *_ = groups
    outside = msgspec.structs.replace(second.samples[0], tokens=[10**6], turns=[1])
    spoilt = GroupToScore(second.job, [outside, *second.samples[1:]])
    missing = GroupToScore(second.job, second.samples[1:])
    empty = GroupToScore(msgspec.structs.replace(first.job, prompt=[]), first.samples)
    *errors, outcome = engine.score_groups([spoilt, missing, empty, first])
    assert [type(error) for error in errors] == [EngineError] * 3
    assert [word in str(error) for word, error in zip(("vocabulary", "per seed", "prompt"), errors, strict=True)] == [
        True
    ] * 3
    agree(outcome, by_padding(engine, first))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), RuntimeError("absurd")])
def test_an_error_in_a_pass_is_the_outcome_of_the_group_that_causes_it_alone(
    engine: TransformersEngine, groups: list[GroupToScore], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, bad = PackedPass.hidden_states, groups[1].job.prompt

    def hidden(self: PackedPass, layout: PackedLayout) -> Any:
        if str(bad)[1:-1] in str(layout.ids.tolist()):
            raise error
        return own(self, layout)

    engine.score_groups(groups[:1])  # the model is checked by passes that work
    monkeypatch.setattr(PackedPass, "hidden_states", hidden)
    outcomes = engine.score_groups([groups[0], groups[1], groups[3]])
    if isinstance(error, torch.OutOfMemoryError):
        assert isinstance(outcomes[1], NoMemory)
        assert str(outcomes[1]).endswith(
            "end other programs that use it, or choose another in scorer.devices (no room)"
        )
    else:
        assert outcomes[1] is error
    agree(outcomes[0], by_padding(engine, groups[0]))
    agree(outcomes[2], by_padding(engine, groups[3]))
    with pytest.raises(type(outcomes[1])):
        engine.score(*groups[1])


def test_a_card_that_is_lost_in_a_pass_ends_the_process_and_is_the_outcome_of_no_group(
    engine: TransformersEngine, groups: list[GroupToScore], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(self: PackedPass, layout: PackedLayout) -> Any:
        raise RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later")

    engine.score_groups(groups[:1])
    monkeypatch.setattr(PackedPass, "hidden_states", hidden)
    with pytest.raises(ProgramLost, match=r"^the device failed: CUDA error: unspecified launch failure$"):
        engine.score_groups(groups[:2])


def test_passes_are_cut_at_their_bound_and_a_larger_group_is_padded(
    engine: TransformersEngine, groups: list[GroupToScore], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    own = PackedPass.hidden_states

    def hidden(self: PackedPass, layout: PackedLayout) -> Any:
        passes.append(layout.ids.shape[1])
        return own(self, layout)

    engine.score_groups(groups[:1])
    monkeypatch.setattr(PackedPass, "hidden_states", hidden)
    sizes = sorted(group.tokens for group in groups)
    monkeypatch.setattr(scoring, "PASS_TOKENS", sizes[-2])
    outcomes = engine.score_groups(groups)
    assert max(passes) <= sizes[-2]
    assert len(passes) >= 2
    for group, outcome in zip(groups, outcomes, strict=True):
        agree(outcome, by_padding(engine, group))


def test_a_model_without_packed_passes_is_scored_with_padding(
    engine: TransformersEngine, groups: list[GroupToScore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PackedPass, "of", lambda model: None)
    scorer = GroupScorer(engine._live_model().model)
    for group, outcome in zip(groups, scorer.score(groups), strict=True):
        assert outcome == by_padding(engine, group)


def test_scores_follow_the_weights_of_a_new_version(tmp_path: Path) -> None:
    old = tiny_model.make(tmp_path)
    engine = TransformersEngine()
    engine.load(old.folder, old.snapshot)
    asked = job(1, samples=4, limit=12)
    samples = generate(engine, asked)
    before = engine.score(asked, samples)
    new, _ = tiny_model.next_version(old)
    engine.load(new.folder, new.snapshot)
    after = engine.score(asked, samples)
    assert max(abs(a - b) for a, b in zip(before[0].logprobs, after[0].logprobs, strict=True)) > 1e-3
    agree(after, by_padding(engine, GroupToScore(asked, samples)))


def test_on_a_gpu_passes_are_bounded_by_its_memory_and_halved_after_an_out_of_memory(
    groups: list[GroupToScore], engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = GroupScorer(engine._live_model().model)
    each = scoring.token_bytes(engine._live_model().model.config)
    monkeypatch.setattr(GroupScorer, "_on_cpu", False)
    monkeypatch.setattr(scoring, "LEAST_PASS", 8)
    for free, tokens in ((0, 8), (2 * 5_000 * each, 5_000), (1 << 60, scoring.MOST_PASS)):
        monkeypatch.setattr(scoring, "free_memory", lambda device, free=free: free)
        assert scorer.pass_tokens == tokens
    sizes: list[int] = []

    def failing(self: PackedPass, layout: PackedLayout) -> Any:
        sizes.append(layout.ids.shape[1])
        if len(sizes) == 1:
            raise torch.OutOfMemoryError("no room")
        return own(self, layout)

    own = PackedPass.hidden_states
    scorer.score(groups[:1])
    monkeypatch.setattr(PackedPass, "hidden_states", failing)
    total = sum(group.tokens for group in groups)
    for group, outcome in zip(groups, scorer.score(groups), strict=True):
        agree(outcome, by_padding(engine, group))
    assert scorer.pass_tokens == total // 2
    sizes.append(0)
    scorer.score(groups)
    assert max(sizes[-2:]) <= total // 2
