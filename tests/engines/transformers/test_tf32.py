"""Passes in TF32: what a card is asked for, and its emulation, by which 16-bit groups leave exact ones as they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from structlog.testing import capture_logs
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.plays.direct import generate
from echo2.engines.engine import GroupToScore, SampleScore
from echo2.engines.transformers import tf32
from echo2.engines.transformers.engine import TransformersEngine
from echo2.engines.transformers.packed_attention import PackedPass
from echo2.engines.transformers.packed_layout import PackedLayout
from echo2.engines.transformers.roundings import ROUNDING_VARIABLE, TF32, TF32_CUT
from echo2.engines.transformers.scoring import GroupScorer
from echo2.engines.transformers.tf32 import EmulatedTf32, cut_to_tf32, round_to_tf32, tensor_cores, tf32_of
from tests.support import family_models, tiny_model
from tests.support.tiny_model import OnDisk, job

CHANGES = {TF32: round_to_tf32, TF32_CUT: cut_to_tf32}


def switches() -> list[object]:
    matmul = torch.backends.cuda.matmul
    newer = getattr(matmul, "fp32_precision", None)
    return [matmul.allow_tf32, newer, torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32]


def test_a_card_computes_in_tf32_until_the_end_of_a_pass_whatever_ends_it() -> None:
    before, within = switches(), list[object]()

    def fail() -> None:
        with tensor_cores():
            within.extend(switches()[:3])
            raise ValueError("the pass fails")

    with pytest.raises(ValueError, match="the pass fails"):
        fail()
    assert within in ([True, "tf32", "high"], [True, None, "high"])
    assert switches() == before
    assert before[0] is False


CARDS = {
    "an H100": ("cuda", (9, 0), None, tensor_cores),
    "an A100": ("cuda", (8, 0), None, tensor_cores),
    "a T4": ("cuda", (7, 5), None, None),
    "a card of AMD's": ("cuda", (9, 4), "6.3", None),
    "a card of Intel's": ("xpu", (9, 0), None, None),
    "a CPU": ("cpu", (9, 0), None, None),
}


@pytest.mark.parametrize("card", CARDS)
def test_tf32_is_for_nvidias_cards_from_ampere_on(card: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, capability, rocm, wanted = CARDS[card]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", rocm)
    assert tf32_of(torch.device(kind), {}) is wanted


@pytest.mark.parametrize("asked", CHANGES)
def test_the_variable_lets_any_device_stand_in_for_a_card(asked: str) -> None:
    emulated = tf32_of(torch.device("cpu"), {ROUNDING_VARIABLE: f"split-sums,{asked}"})
    value = torch.tensor([[1 + 2.0**-11 + 2.0**-12]])
    assert emulated is not None
    with emulated():
        product = value @ torch.ones(1, 1)
    assert float(product) == (1.0 if asked == TF32_CUT else 1 + 2.0**-10)


def test_a_value_is_rounded_to_the_nearest_of_10_bits() -> None:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 10
    rounded = round_to_tf32(values)
    below = (values.view(torch.int32) & ~0x1FFF).view(torch.float32)
    above = (below.view(torch.int32) + 0x2000).view(torch.float32)
    assert bool(((rounded == below) | (rounded == above)).all())
    nearest = torch.minimum((values - below).abs(), (values - above).abs())
    assert torch.equal((values - rounded).abs(), nearest)
    assert torch.equal(cut_to_tf32(values), below)
    for change in CHANGES.values():
        assert torch.equal(change(values.half().float()), values.half().float())
        assert torch.equal(change(values.bfloat16()), values.bfloat16())


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "of places": {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril(1)},
    "of numbers": {"attn_mask": torch.linspace(-2, 2, 25).view(5, 5), "scale": 0.3},
}


@pytest.mark.parametrize("mask", MASKS)
def test_emulated_attention_is_the_same_function_by_products_that_round(mask: str) -> None:
    random = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(2, heads, 5, 8, generator=random) for heads in (4, 2, 2))
    exact = scaled_dot_product_attention(query, key, value, enable_gqa=True, **MASKS[mask])
    with EmulatedTf32(round_to_tf32):
        emulated = scaled_dot_product_attention(query, key, value, enable_gqa=True, **MASKS[mask])
    torch.testing.assert_close(emulated, exact, rtol=0, atol=5e-3)
    assert not torch.allclose(emulated, exact, rtol=0, atol=1e-5)


PRODUCTS = {
    "a linear layer": lambda a, b: torch.nn.functional.linear(a, b.T, torch.full((3,), 1e-4)) - 1e-4,
    "@": lambda a, b: a @ b,
    "bmm": lambda a, b: torch.bmm(a[None], b[None])[0],
    "matmul of a tensor": lambda a, b: a.matmul(b),
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_both_factors_of_a_product_round_and_nothing_else_does(product: str) -> None:
    random = torch.Generator().manual_seed(2)
    first, second = torch.randn(4, 6, generator=random), torch.randn(6, 3, generator=random)
    plain = first * first + first.exp()
    with EmulatedTf32(round_to_tf32):
        emulated = PRODUCTS[product](first, second)
        assert torch.equal(first * first + first.exp(), plain)
    torch.testing.assert_close(emulated, round_to_tf32(first) @ round_to_tf32(second), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", ["qwen3", "llama3", "gemma3"])
def test_angles_of_positions_are_no_product_that_rounds(family: str, tmp_path: Path) -> None:
    """10,001 times a frequency needs 14 bits: in TF32 the angle would be off by whole radians."""
    rotary = _model(tmp_path, family).base_model.rotary_emb
    arguments = [torch.zeros(1, 1), torch.tensor([[2049, 10_001]])]
    if family == "gemma3":
        arguments.append("full_attention")  # type: ignore[arg-type]
    exact: tuple[Tensor, ...] = rotary(*arguments)
    with EmulatedTf32(round_to_tf32):
        emulated: tuple[Tensor, ...] = rotary(*arguments)
    assert all(torch.equal(one, other) for one, other in zip(exact, emulated, strict=True))


def _model(folder: Path, family: str) -> Any:
    on_disk = family_models.make(folder / family, family)
    engine = TransformersEngine()
    engine.load(on_disk.folder, on_disk.snapshot)
    return engine._live_model().model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    torch.set_num_threads(1)
    return tiny_model.make(tmp_path_factory.mktemp("tiny"), seed=3, eos_bias=0.6)


@pytest.fixture
def emulating(tiny: OnDisk, monkeypatch: pytest.MonkeyPatch) -> Iterator[TransformersEngine]:
    monkeypatch.setenv(ROUNDING_VARIABLE, TF32)
    yield loaded(tiny)
    assert not torch.overrides._get_current_function_mode_stack(), "whatever was scored, the mode is left"


def loaded(tiny: OnDisk) -> TransformersEngine:
    engine = TransformersEngine()
    engine.load(tiny.folder, tiny.snapshot)
    return engine


@pytest.fixture(scope="module")
def exact(tiny: OnDisk) -> GroupToScore:
    asked = job(3, samples=8, limit=30)
    return GroupToScore(asked, generate(loaded(tiny), asked))


@pytest.fixture(scope="module")
def coarse(tiny: OnDisk) -> list[GroupToScore]:
    """Return groups of a 16-bit class."""
    asked = [job(number, samples=4 + number, limit=12 * number + 4) for number in range(4)]
    engine = loaded(tiny)
    return [GroupToScore(msgspec.structs.replace(one, tf32=True), generate(engine, one)) for one in asked]


def values(outcome: object) -> NDArray[np.float64]:
    assert isinstance(outcome, list)
    scores: list[SampleScore] = outcome
    return np.concatenate([[*one.logprobs, *one.margins, *one.gaps] for one in scores])


def test_an_exact_group_keeps_its_bits_whatever_is_scored_in_tf32_before_beside_and_after_it(
    emulating: TransformersEngine, tiny: OnDisk, exact: GroupToScore, coarse: list[GroupToScore]
) -> None:
    alone = values(loaded(tiny).score_groups([exact])[0])
    emulating.score_groups(coarse[:2])
    beside = emulating.score_groups([coarse[0], exact, *coarse[1:]])[1]
    emulating.score_groups(coarse)
    after = emulating.score_groups([exact])[0]
    assert np.array_equal(values(beside), alone)
    assert np.array_equal(values(after), alone)


def test_groups_of_16_bit_classes_are_scored_in_tf32_to_its_rounding(
    emulating: TransformersEngine, coarse: list[GroupToScore]
) -> None:
    in_float32 = [GroupToScore(msgspec.structs.replace(one.job, tf32=False), one.samples) for one in coarse]
    rough, plain = (
        np.concatenate([one.logprobs for outcome in emulating.score_groups(groups) for one in outcome])  # type: ignore[union-attr]
        for groups in (coarse, in_float32)
    )
    assert 1e-4 < np.abs(rough - plain).mean() < 3e-3


def test_without_a_card_the_class_changes_nothing(tiny: OnDisk, coarse: list[GroupToScore]) -> None:
    engine = loaded(tiny)
    in_float32 = [GroupToScore(msgspec.structs.replace(one.job, tf32=False), one.samples) for one in coarse]
    for rough, plain in zip(engine.score_groups(coarse), engine.score_groups(in_float32), strict=True):
        assert values(rough) == pytest.approx(values(plain), abs=1e-5)


def test_a_pass_has_groups_of_one_precision_and_outcomes_keep_their_order(
    emulating: TransformersEngine, exact: GroupToScore, coarse: list[GroupToScore], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, own = list[int](), PackedPass.hidden_states

    def hidden(self: PackedPass, layout: PackedLayout) -> Tensor:
        sizes.append(layout.ids.shape[1])
        return own(self, layout)

    mixed = [coarse[0], exact, coarse[1], exact]
    emulating.score_groups(mixed)
    monkeypatch.setattr(PackedPass, "hidden_states", hidden)
    outcomes = emulating.score_groups(mixed)
    assert len(sizes) == 2
    assert sizes[0] > 0.9 * 2 * (exact.tokens - len(exact.samples))
    for group, outcome in zip(mixed, outcomes, strict=True):
        alone = emulating.score_groups([group])[0]
        assert values(outcome) == pytest.approx(values(alone), abs=1e-5 if group is exact else 1e-2)


def test_groups_that_are_padded_are_scored_in_tf32_as_well(
    emulating: TransformersEngine, exact: GroupToScore, coarse: list[GroupToScore], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = emulating.score_groups([exact, coarse[2]])
    monkeypatch.setattr(PackedPass, "of", lambda model: None)
    scorer = GroupScorer(emulating._live_model().model)
    padded = scorer.score([exact, coarse[2]])
    plain = scorer.score([GroupToScore(msgspec.structs.replace(coarse[2].job, tf32=False), coarse[2].samples)])
    assert values(padded[0]) == pytest.approx(values(together[0]), abs=1e-5)
    assert values(padded[1]) == pytest.approx(values(together[1]), abs=2e-2)
    assert values(padded[1]) != pytest.approx(values(plain[0]), abs=1e-5)


def test_a_model_whose_packed_passes_fail_in_tf32_is_scored_in_float32_and_says_so(
    emulating: TransformersEngine, coarse: list[GroupToScore], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = PackedPass.equals_own
    monkeypatch.setattr(
        PackedPass, "equals_own", lambda self, tolerance=None: tolerance is None and own(self, tolerance)
    )
    scorer = GroupScorer(emulating._live_model().model)
    with capture_logs() as logs:
        outcome = scorer.score(coarse[:1])[0]
    assert [one["event"] for one in logs] == ["groups of 16-bit classes are scored in float32"]
    plain = GroupToScore(msgspec.structs.replace(coarse[0].job, tf32=False), coarse[0].samples)
    assert np.array_equal(values(outcome), values(scorer.score([plain])[0]))


def test_a_pass_in_tf32_that_fails_leaves_exact_groups_as_they_were(
    emulating: TransformersEngine, exact: GroupToScore, coarse: list[GroupToScore], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = values(emulating.score_groups([exact])[0])
    own = PackedPass.hidden_states

    def failing(self: PackedPass, layout: PackedLayout) -> Tensor:
        if torch.overrides._get_current_function_mode_stack():
            raise RuntimeError("absurd")
        return own(self, layout)

    emulating.score_groups(coarse[:1])
    monkeypatch.setattr(PackedPass, "hidden_states", failing)
    rough, kept = emulating.score_groups([coarse[0], exact])
    assert isinstance(rough, RuntimeError)
    assert np.array_equal(values(kept), before)


def test_nothing_but_a_pass_is_in_tf32(
    emulating: TransformersEngine, tiny: OnDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Generation takes no notice of the class: evaluations and answers of canaries are the same."""
    asked = job(5, samples=4, limit=20)
    monkeypatch.setattr(tf32, "round_to_tf32", lambda values: pytest.fail("a product was rounded"))
    rough = generate(emulating, msgspec.structs.replace(asked, tf32=True))
    assert rough == generate(emulating, asked)
