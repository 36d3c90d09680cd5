"""Weights in blocks of 32, as GGUF stores them."""

import numpy as np
import pytest

from echo2.weights.lora.block_formats import BLOCK_BYTES, BlockFormat, fits, quantise, restore

FORMATS: tuple[BlockFormat, ...] = ("q8_0", "q4_0")
ROWS = np.random.Generator(np.random.Philox(7)).normal(0, 0.02, (6, 96)).astype(np.float32)


def test_a_block_of_eight_bits_is_a_scale_and_32_quanta() -> None:
    row = np.zeros((1, 32), np.float32)
    row[0, :4] = [12.7, -12.7, 0.1, 0.25]
    packed = quantise(row, "q8_0")
    assert packed.shape == (1, 34)
    assert packed[0, :2].view(np.float16)[0] == np.float16(0.1)
    assert packed[0, 2:].view(np.int8)[:5].tolist() == [127, -127, 1, 3, 0], "2.5 is rounded away from zero"


def test_a_block_of_four_bits_has_weights_0_to_15_in_the_low_halves() -> None:
    row = np.zeros((1, 32), np.float32)
    row[0, 0], row[0, 1], row[0, 16] = -8.0, 7.0, 3.0
    packed = quantise(row, "q4_0")
    assert packed.shape == (1, 18)
    assert packed[0, :2].view(np.float16)[0] == 1.0, "the weight of the largest absolute value becomes -8"
    assert [hex(byte) for byte in packed[0, 2:5]] == ["0xb0", "0x8f", "0x88"]
    assert restore(packed, "q4_0")[0, [0, 1, 16, 17]].tolist() == [-8.0, 7.0, 3.0, 0.0]


@pytest.mark.parametrize("form", FORMATS)
def test_bytes_are_those_of_the_gguf_library(form: BlockFormat) -> None:
    quants = pytest.importorskip("gguf.quants", reason="the package gguf is not installed (extra gguf)")
    kind = getattr(pytest.importorskip("gguf").GGMLQuantizationType, form.upper())
    packed = quantise(ROWS, form)
    np.testing.assert_array_equal(packed, quants.quantize(ROWS, kind))
    np.testing.assert_array_equal(restore(packed, form), quants.dequantize(packed, kind))


@pytest.mark.parametrize(("form", "most"), [("q8_0", 1 / 254), ("q4_0", 1 / 8)])
def test_a_weight_is_off_by_half_a_step_at_most(form: BlockFormat, most: float) -> None:
    off = np.abs(restore(quantise(ROWS, form), form) - ROWS).reshape(-1, 32)
    largest = np.abs(ROWS).reshape(-1, 32).max(axis=1, keepdims=True)
    # float16 rounds the scale by 2^-11 of it, and so the largest weight by that share.
    assert (off <= (most + 2**-11) * largest).all()


@pytest.mark.parametrize("form", FORMATS)
def test_restored_weights_quantise_to_themselves_and_zeros_stay_zeros(form: BlockFormat) -> None:
    once = restore(quantise(ROWS, form), form)
    if form == "q8_0":
        np.testing.assert_allclose(restore(quantise(once, form), form), once, rtol=2**-10)
    assert not restore(quantise(np.zeros((2, 64), np.float32), form), form).any()
    assert quantise(ROWS, form).shape == (6, 3 * BLOCK_BYTES[form])


@pytest.mark.parametrize(("shape", "wanted"), [((4, 64), True), ((4, 48), False), ((64,), False), ((2, 4, 32), False)])
def test_blocks_take_matrices_of_whole_blocks(shape: tuple[int, ...], wanted: bool) -> None:
    assert fits(shape) is wanted
