"""Fitting of what honest nodes do, on tokens whose truth is known, and the signed document."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.calibration.honest_groups import PROMPTS_LEAST
from echo2.coordinator.verification.calibration import (
    CONFIDENCE,
    NOISE_ALLOWANCE,
    TOKENS_LEAST,
    Calibration,
    TooFewTokens,
    fit,
    seal_calibration,
    tables_of,
    upper_bound,
    verify_calibration,
    widest,
)
from echo2.coordinator.verification.evidence import BOUND, LEAST_P, EProcess, Tables, exceeding, products
from echo2.coordinator.verification.token_evidence import BINS, DIFFERS, GAP_EDGES, GAP_UNIT, ONE, TOKEN, TokenArray
from echo2.p2p.errors import PeerFault
from echo2.p2p.identity import public_bytes
from echo2.protocol.authority import RoleKeys

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
LEDGER = RoleKeys(keys=[public_bytes(KEY)], threshold=1)
RUN = bytes(32)


def honest(seed: int, number: int, noise: float = 0.02) -> TokenArray:
    """Return tokens of a machine whose rounding moves a choice by `noise` nats: it differs where the gap is smaller
    than a normal deviate."""
    generator = np.random.default_rng(seed)
    gaps = generator.exponential(1.0, number)
    moved = np.abs(generator.normal(0, noise, number))
    tokens = np.zeros(number, TOKEN)
    tokens["gap"] = np.searchsorted(GAP_EDGES, gaps / GAP_UNIT, side="right")
    tokens["flags"] = np.where(moved > gaps, DIFFERS, 0) | generator.integers(0, 8, number) << 1
    tokens["margin"] = np.where(moved > gaps, gaps * 2**14, 0)
    tokens["drift"] = np.clip(generator.normal(0, noise, number) * 2**16, -32768, 32767)
    return tokens


def without_bound(tables: Tables) -> Tables:
    return {name: table for name, table in tables.items() if name != BOUND}


def calibration(**changes: object) -> Calibration:
    facts = {
        "run": RUN,
        "rounding": "bfloat16",
        "classes": ["transformers/bfloat16/cpu"],
        "devices": [],
        "builds": ["torch 2.13.0"],
        "era": 0,
        "version": 3,
        "root": bytes(range(32)),
        "machines": {"one": TOKENS_LEAST},
        "tables": without_bound(fit({"one": honest(1, TOKENS_LEAST)})),
        "bound": 700,
        "at": 1_000,
    }
    return Calibration(**(facts | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("total", "number"), [(0, 100), (1, 100), (30, 1_000), (999, 1_000), (10, 10)])
def test_the_bound_contains_the_mean_and_has_its_confidence(total: int, number: int) -> None:
    bound = upper_bound(total, number)
    assert total / number <= bound <= 1.0
    generator = np.random.default_rng(0)
    if bound < 1.0:  # a coin of that rate shows as few heads with a chance of 1 - confidence at most
        assert (generator.binomial(number, bound, 100_000) <= total).mean() <= 1 - CONFIDENCE


def test_without_any_tokens_there_is_no_bound() -> None:
    assert np.isnan(upper_bound(0, 0))


def test_a_wider_gap_is_never_given_a_higher_chance_and_where_all_or_none_may_differ_nothing_counts() -> None:
    table = fit({"one": honest(1, 20_000)})["differs"]
    assert table[:-1] == sorted(table[:-1], reverse=True)
    assert all(LEAST_P <= p <= ONE // 2 or p == ONE for p in table)
    assert table[0] == table[-1] == ONE  # 1 nat is above the bound
    assert min(table) < ONE // 500


def test_the_bound_on_a_token_follows_from_the_drift_and_few_tokens_show_it_as_many_do() -> None:
    bounds = [fit({"one": honest(1, number)})[BOUND][0] / 2**14 for number in (2_000, 20_000, 200_000)]
    assert max(bounds) < 1.2 * min(bounds)
    assert 0.3 < min(bounds) < 0.4  # 5 x 3.3 x 0.02 nats


def test_one_outlier_moves_the_bound_little_and_no_honest_token_is_beyond_it() -> None:
    tokens = honest(1, 20_000)
    calm = fit({"one": tokens})
    tokens["drift"][5] = 32_767
    assert fit({"one": tokens})[BOUND][0] < 1.1 * calm[BOUND][0]
    assert not exceeding(honest(2, 1_000_000, 1.7 * 0.02), calm).any()
    tokens["margin"][5] = calm[BOUND][0] + 1
    assert exceeding(tokens, calm).nonzero()[0].tolist() == [5]
    tokens["drift"][:100] = 32_767
    assert fit({"one": tokens})[BOUND] == [65_535]


def test_the_bounds_are_above_the_truth_and_not_far_above_it() -> None:
    table = np.array(fit({"one": honest(1, 50_000)})["differs"]) / ONE
    many = honest(2, 1_000_000)
    differs = (many["flags"] & DIFFERS) > 0
    truth = np.bincount(many["gap"], differs, BINS) / np.bincount(many["gap"], minlength=BINS)
    assert (table >= np.minimum(truth, 1.0) * 0.999).all()
    louder = honest(3, 1_000_000, NOISE_ALLOWANCE * 0.02)
    differ = np.bincount(louder["gap"], (louder["flags"] & DIFFERS) > 0, BINS)
    theirs = differ / np.bincount(louder["gap"], minlength=BINS)
    open_bins = table < 1
    assert open_bins.sum() == 3
    assert (table[open_bins] >= theirs[open_bins]).all()
    assert (table[open_bins] <= 1.1 * theirs[open_bins] + 0.01).all()


def test_a_machine_with_more_tokens_counts_no_more_than_another_and_gives_of_all_its_own() -> None:
    calm, loud = honest(1, 4_000, 0.01), honest(2, 4_000, 0.03)
    assert fit({"calm": calm, "loud": loud}) == fit({"calm": np.repeat(calm, 5), "loud": loud})


@pytest.mark.parametrize("tokens", [4_000, 20_000, 100_000])
def test_a_machine_of_up_to_the_allowed_noise_stays_out_of_doubt_whatever_the_tokens(tokens: int) -> None:
    tables = fit({str(seed): honest(seed, tokens) for seed in range(4)})
    for seed, noise in enumerate((1.0, 1.35, NOISE_ALLOWANCE)):
        assert highest(honest(100 + seed, 30_000, noise * 0.02), tables) < 10
    assert highest(honest(200, 30_000, 2.2 * 0.02), tables) > 10**6


def test_64_prompts_refuse_no_machine_that_rounds_a_little_more_as_four_long_ones_did() -> None:
    """A prompt shows some 864 places, however many tokens are drawn at them (3,456 of four prompts)."""
    generator = np.random.default_rng(0)

    def fitted(prompts: int, tokens: int) -> Tables:
        places = np.split(honest(1, 864 * prompts), prompts)
        drawn = [place[generator.integers(0, 864, tokens)] for place in places]
        return fit({str(number): np.concatenate(drawn[number::4]) for number in range(4)})

    four, many = fitted(4, 20_000), fitted(PROMPTS_LEAST, 80_000 // PROMPTS_LEAST)
    for seed in range(10, 12):
        machine = honest(seed, 120_000, 1.12 * 0.02)
        assert highest(machine, many, 40_000) < 10
        assert highest(machine, four, 40_000) > 10**3


def highest(tokens: TokenArray, tables: Tables, group: int = 1_000) -> float:
    """Return the highest E of a machine's groups."""
    evidence, peak = EProcess(), 0.0
    for start in range(0, len(tokens), group):
        evidence = evidence.after(products(tokens[start : start + group], tables))
        value = evidence.value()
        peak = max(peak, value.mantissa * 2.0**value.exponent)
    return peak


def test_engines_of_a_further_device_only_widen_the_bounds() -> None:
    own, calm, loud = (fit({"one": honest(seed, 20_000, noise)}) for seed, noise in ((1, 0.02), (2, 0.01), (3, 0.03)))
    assert all(p <= q for name in own for p, q in zip(own[name], widest([own, calm])[name], strict=True))
    wider = widest([own, loud])
    assert all(max(p, r) == q for name in own for p, q, r in zip(own[name], wider[name], loud[name], strict=True))
    assert wider[BOUND] == loud[BOUND]


def test_more_machines_make_the_bounds_narrower() -> None:
    few, many = (fit({str(seed): honest(seed, 4_000) for seed in range(count)}) for count in (1, 6))
    shown = [(p, q) for name in without_bound(few) for p, q in zip(few[name], many[name], strict=True) if p < ONE]
    assert sum(q < p for p, q in shown) > 0.9 * len(shown)


def test_a_machine_left_out_is_not_refused_and_coarser_arithmetic_is() -> None:
    tables = fit({str(seed): honest(seed, 8_000) for seed in range(4)})
    left_out, coarse = EProcess(), EProcess()
    for start in range(0, 4_000, 200):
        left_out = left_out.after(products(honest(9, 4_000)[start : start + 200], tables))
        coarse = coarse.after(products(honest(9, 4_000, 0.08)[start : start + 200], tables))
    assert not left_out.value().reaches(10)
    assert coarse.value().reaches(10**6)


def test_bins_that_no_machine_has_shown_cannot_be_lost_in() -> None:
    tokens = honest(1, 4_000)
    tokens["gap"] = BINS - 1
    tables = fit({"one": tokens})
    assert tables["margin"][:-1] == [ONE] * (BINS - 1)
    assert tables["differs"][:-1] == [ONE] * (BINS - 1)
    assert tables["margin"][-1] < ONE


@pytest.mark.parametrize("machines", [{}, {"one": honest(1, TOKENS_LEAST - 1)}])
def test_too_few_tokens_calibrate_nothing(machines: dict[str, TokenArray]) -> None:
    with pytest.raises(TooFewTokens):
        fit(machines)


def test_a_sealed_calibration_is_verified_by_the_ledger_key() -> None:
    sealed = seal_calibration(calibration(), KEY)
    assert verify_calibration(sealed, RUN, LEDGER) == calibration()
    assert tables_of(calibration()) == fit({"one": honest(1, TOKENS_LEAST)}) | {BOUND: [700]}


OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
BAD = {
    "another key": seal_calibration(calibration(), OTHER),
    "another run": seal_calibration(calibration(run=bytes([1]) * 32), KEY),
    "a table too short": seal_calibration(calibration(tables={"differs": [LEAST_P] * (BINS - 1)}), KEY),
    "a greatest margin of 0": seal_calibration(calibration(bound=0), KEY),
    "a bound of 0": seal_calibration(calibration(tables={"differs": [0] * BINS}), KEY),
    "a bound above 1": seal_calibration(calibration(tables={"differs": [ONE + 1] * BINS}), KEY),
    "a table that lacks": seal_calibration(calibration(tables={"differs": [ONE] * BINS}), KEY),
    "no document": b"no document",
}


@pytest.mark.parametrize("sealed", BAD.values(), ids=BAD.keys())
def test_other_documents_are_no_calibration(sealed: bytes) -> None:
    with pytest.raises(PeerFault):
        verify_calibration(sealed, RUN, LEDGER)
