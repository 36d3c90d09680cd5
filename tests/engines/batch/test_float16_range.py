from collections.abc import Iterator

import numpy as np
import pytest

from echo2.engines.batch import float16_range
from echo2.engines.engine import EngineError
from echo2.weights.diff import Change
from echo2.weights.documents import TensorEntry

UNSIGNED = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}


def bits_of(values: list[float], source: str) -> np.ndarray:
    wide = np.array(values, np.float32)
    if source == "F16":
        return wide.astype(np.float16).view(np.uint16)
    return wide.view(np.uint32) if source == "F32" else (wide.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("source", UNSIGNED)
@pytest.mark.slow_but("F32")
def test_every_value_is_judged_as_its_cast_to_float16_is(source: str) -> None:
    """All values of 16 bits, and values of 32 bits around the bound."""
    if source == "F32":
        near = np.float32(float16_range.MOST_FLOAT16).view(np.uint32) + np.arange(-99, 99)
        bits = np.concatenate([near, near | 0x80000000]).astype(np.uint32)
        values = bits.view(np.float32)
    else:
        bits = np.arange(1 << 16, dtype=np.uint16)
        values = bits.view(np.float16).astype(np.float32)
        if source == "BF16":
            values = (bits.astype(np.uint32) << 16).view(np.float32)
    for one, value in zip(bits, values, strict=True):
        fits = bool(abs(value) < 65_504)
        try:
            float16_range.check(one[None], source, "x")
        except EngineError:
            assert not fits, value
        else:
            assert fits, value


@pytest.mark.parametrize("source", UNSIGNED)
@pytest.mark.parametrize("weight", [65_536.0, -131_072.0, float("inf"), float("nan")])
def test_a_weight_far_into_a_tensor_is_named_with_its_tensor(
    source: str, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(float16_range, "PIECE_ELEMENTS", 4)
    with np.errstate(over="ignore"):
        bits = bits_of([1.0] * 9 + [weight], source)
    sentence = r"^the\.tensor has the weight \S+, which float16 cannot hold \(less than 65,504\): this run needs"
    with pytest.raises(EngineError, match=sentence):
        float16_range.check(bits, source, "the.tensor")
    float16_range.check(bits[:9], source, "the.tensor")


def test_tensors_of_integers_pass() -> None:
    float16_range.check(np.array([0xFFFF], np.uint16), "I16", "positions")


def test_changes_come_through_up_to_the_first_that_does_not_fit() -> None:
    def change(name: str, weight: float) -> Change:
        entry = TensorEntry(name=name, dtype="BF16", shape=(3,))
        return Change(tensor=entry, index=np.array([1]), bits=bits_of([weight], "BF16"))

    def changes() -> Iterator[Change]:
        yield change("small", 1.0)
        yield change("large", 65_536.0)
        raise AssertionError("nothing is read after a refusal")

    checked = float16_range.check_changes(changes())
    assert next(checked).tensor.name == "small"
    with pytest.raises(EngineError, match=r"large has the weight 65536\.0"):
        next(checked)


def test_published_weights_are_exact_from_2_to_the_minus_17_and_off_by_2_to_the_minus_25_at_most_below() -> None:
    """All bfloat16 values that float16 can hold."""
    bits = np.arange(1 << 15, dtype=np.uint32)
    values = (bits << 16).view(np.float32)
    values = values[values < float16_range.MOST_FLOAT16]
    error = np.abs(values - values.astype(np.float16).astype(np.float32))
    assert error[values >= 2.0**-17].max() == 0.0
    assert 0.0 < error[values < 2.0**-17].max() <= 2.0**-25
