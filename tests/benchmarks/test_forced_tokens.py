"""The benchmark of the bound on a token: nodes of scaled rounding, forced tokens, and an attacker inside the bound."""

from functools import partial

import numpy as np
import pytest

from benchmarks.attacks.catalogue import ANSWER, ATTACKS
from benchmarks.attacks.forced_answers import ForcedAnswers
from benchmarks.trust import forced_tokens
from benchmarks.trust.forced_tokens import SIZE, TEXT
from benchmarks.trust.scaled_noise import CHOSEN, ModelPair, seeds_of
from echo2.coordinator.learner.warmup import build
from echo2.coordinator.verification.evidence import BOUND
from echo2.coordinator.verification.token_evidence import BINS, DIFFERS, ONE, STATISTICS
from echo2.engines.transformers.tf32 import EmulatedTf32, round_to_tf32
from echo2.tasks.tokenizer import EOS

SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
TABLES = {name: [ONE] * BINS for name in STATISTICS} | {BOUND: [1 << 13]}
PROMPTS = [[5, 6, 7]] * 64


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return ModelPair.of(build(SHAPE, 0), "bfloat16", EOS)


def test_noise_scales_what_the_format_rounds_and_without_it_no_token_differs(pair: ModelPair) -> None:
    drifts = []
    for noise in (0.0, 1.0, 2.0):
        tokens = np.concatenate([one.tokens for one in pair.play(PROMPTS, seeds_of("a", 64), 6, noise)])
        drifts.append(float(np.abs(tokens["drift"].astype(int)).mean()))
        assert noise or not (tokens["flags"] & DIFFERS).any()
    assert drifts[0] < 0.1 * drifts[1]
    assert 1.5 < drifts[2] / drifts[1] < 2.5


def test_a_scorer_in_tf32_sees_a_little_noise_at_a_node_that_rounds_nothing_and_the_same_tokens(
    pair: ModelPair,
) -> None:
    plain, rough = (
        one.play(PROMPTS, seeds_of("a", 64), 6, 0.0)
        for one in (pair, pair._replace(tf32=partial(EmulatedTf32, round_to_tf32)))
    )
    assert [one.ids for one in rough] == [one.ids for one in plain]
    drifts = [
        float(np.abs(np.concatenate([one.tokens["drift"] for one in of]).astype(int)).mean()) for of in (plain, rough)
    ]
    assert drifts[0] < 1.0 < drifts[1]


def test_a_rollout_ends_with_its_end_of_sequence_and_a_forced_token_misses_the_seeded_choice(pair: ModelPair) -> None:
    own = pair.play(PROMPTS, seeds_of("a", 64), 6, 0.0)
    assert all(EOS not in one.ids[:-1] and len(one.ids) == len(one.tokens) for one in own)
    forced = np.full((64, 6), CHOSEN)
    forced[3, 0] = 40 if own[3].ids[0] != 40 else 41
    seen = pair.play(PROMPTS, seeds_of("a", 64), 6, 0.0, forced)
    assert [one.ids for one in seen[:3]] == [one.ids for one in own[:3]]
    assert seen[3].ids[0] == forced[3, 0]
    assert seen[3].tokens["margin"][0] > 0


def test_an_attacker_writes_answers_where_nothing_is_evidence_and_none_beyond_the_bound(pair: ModelPair) -> None:
    groups = forced_tokens._groups(pair, 4)
    assert all(len(group.honest) == len(group.right) == SIZE for group in groups)
    assert all(TEXT.decode(one.ids).isdigit() for group in groups for one in group.right)
    wide = TABLES | {BOUND: [65_535]}
    assert forced_tokens._gain(groups, wide) > 10 * forced_tokens._gain(groups, TABLES)


def test_the_red_team_tries_forced_answers_quickly() -> None:
    assert ATTACKS[ANSWER].quick
    action = ForcedAnswers(refused=8, forged=8, honest=20)
    assert action.finding(None).is_held  # type: ignore[arg-type]
    assert not ForcedAnswers(refused=7, forged=8).finding(None).is_held  # type: ignore[arg-type]
    assert not ForcedAnswers(refused=8, forged=8, harmed=1).finding(None).is_held  # type: ignore[arg-type]
    assert not ForcedAnswers().finding(None).is_held  # type: ignore[arg-type]
