"""What a model takes of a card's memory, and which settings make it fit."""

import pytest

from echo2.coordinator.learner.memory_plan import MemorySettings, card_bytes, describe_memory, parts_of, refusal
from echo2.coordinator.learner.messages import MemoryCounted
from echo2.runtime.errors import LocalFault

QWEN3_4B = MemoryCounted(
    parameters=4_022_468_096, layers=6_145_964, again=199_692, layer=170_792, layer_parameters=100_930_816,
    words=151_936, width=2560,
)  # fmt: skip
CARD = 80 * 10**9


def test_the_parts_are_those_of_the_learners_rules() -> None:
    parts = parts_of(QWEN3_4B, 8192, MemorySettings())
    assert parts.state == 12 * QWEN3_4B.parameters
    assert parts.gradients == 6 * QWEN3_4B.parameters
    assert parts.activations == 8192 * (199_692 + 170_792)
    assert parts.head == 8 * 4096 * 151_936 + 4 * 151_936 * 2560
    assert parts_of(QWEN3_4B, 8192, MemorySettings(state="host")).state == 4 * QWEN3_4B.parameters
    assert parts_of(QWEN3_4B, 8192, MemorySettings(state="8bit")).state == 6.03125 * QWEN3_4B.parameters
    assert parts_of(QWEN3_4B, 8192, MemorySettings("float32", recompute=False)).activations == 8192 * 6_145_964
    assert parts_of(QWEN3_4B, 8192, MemorySettings(ranks=4)).state == 3 * QWEN3_4B.parameters


def test_a_rank_has_embedding_and_head_and_a_layer_as_far_as_that_is_larger_than_its_activations() -> None:
    ranks, whole = MemorySettings(ranks=8), 2 * 2 * 151_936 * 2560
    assert parts_of(QWEN3_4B, 8192, MemorySettings()).collected == 0
    assert parts_of(QWEN3_4B, 8192, ranks).collected == whole
    assert parts_of(QWEN3_4B, 1024, ranks).collected == whole + 10 * 100_930_816 - 1024 * 170_792
    kept = MemorySettings(recompute=False, ranks=8)
    assert parts_of(QWEN3_4B, 8192, kept).collected == whole + 10 * 100_930_816
    assert parts_of(QWEN3_4B, 8, MemorySettings("float32", ranks=8)).collected == pytest.approx(
        4 * 151_936 * 2560 * 2 + 16 * 100_930_816 - 8 * 170_792
    )


def test_a_learner_that_does_not_fit_is_refused_with_the_setting_that_would_do() -> None:
    refused = refusal(QWEN3_4B, 8192, CARD, MemorySettings())
    assert refused.startswith("the learner needs 8")
    assert "with ranks 1, optimiser_state host, recompute always, compute_dtype bfloat16 it fits" in refused
    assert refusal(QWEN3_4B, 8192, CARD, MemorySettings(state="host")) == ""
    assert refusal(QWEN3_4B, 8192, CARD, MemorySettings(ranks=2)) == ""
    assert "no setting for 8 cards or fewer" in refusal(QWEN3_4B, 8192, 8 * 10**9, MemorySettings())


def test_the_table_names_each_part_and_what_fits() -> None:
    lines = describe_memory(QWEN3_4B, 8192, CARD)
    assert "state 48.3, gradients 24.1, activations 3.0 (0.370 MB per token), head 6.5" in lines[1]
    assert "scorer 16.1, calibration while it lasts 24.1 more" in lines[3]
    assert lines[5].endswith("lacks 3.0")
    assert lines[6].endswith("fits, with the scorer beside it")
    assert lines[7].startswith("  learner.ranks 1, optimiser_state 8bit")
    assert lines[7].endswith("58.0, fits, with the scorer beside it")


@pytest.mark.parametrize("text", ["80", "80 MB", "0GB", "-1GB", "1e3GB"])
def test_a_card_is_named_by_its_memory(text: str) -> None:
    assert (card_bytes("80GB"), card_bytes("24 GiB")) == (CARD, 24 << 30)
    with pytest.raises(LocalFault, match="write it as 80GB or 24GiB"):
        card_bytes(text)
