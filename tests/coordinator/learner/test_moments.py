"""Moments in 8 bits are near those in float32, the same after a checkpoint, and the same however rows are divided."""

import math

import pytest
import torch
from torch import Tensor

from echo2.coordinator.learner import moments as moments_module
from echo2.coordinator.learner.moments import BLOCK, CodedMoments, PlainMoments, moments_of

UPDATES = torch.tensor(7.0)
SHAPES = {"of whole blocks": (6, 512), "of a block and a part": (5, 300), "of three axes": (4, 8, 40), "narrow": (9, 3)}


def drawn(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return moments of many sizes."""
    chance = torch.Generator().manual_seed(seed)
    sizes = torch.exp(3 * torch.randn(shape, generator=chance))
    first = 1e-3 * sizes * torch.randn(shape, generator=chance)
    return first, (1e-3 * sizes * torch.randn(shape, generator=chance)).square()


def coded(parameter: Tensor, first: Tensor, second: Tensor, first_row: int = 0) -> CodedMoments:
    moments = CodedMoments(parameter, first_row)
    for piece in moments.pieces:
        moments.write(piece, first[piece], second[piece], UPDATES)
    return moments


@pytest.mark.parametrize("sentence", SHAPES)
def test_each_value_is_one_of_its_two_nearest_codes(sentence: str) -> None:
    first, second = drawn(SHAPES[sentence])
    moments = coded(torch.empty(SHAPES[sentence]), first, second)
    greatest = first.abs().max()
    assert torch.allclose(moments.first(), first, rtol=0.07, atol=float(greatest) * 2**-12)
    assert moments.first().shape == moments.second().shape == first.shape
    apart = (moments.second().sqrt() - second.sqrt()).abs() / second.sqrt()
    least = second.sqrt() > second.sqrt().max() * 2**-16
    assert apart[least].max() < 0.046
    assert bool((moments.second() > 0).all()), "an update would divide by 0"


def test_rounding_is_right_in_the_mean_also_where_a_value_moves_less_than_a_code() -> None:
    parameter = torch.empty(1, 4096)
    values = torch.full((1, 4096), 0.9)
    values[:, ::BLOCK] = 1.0
    moments = CodedMoments(parameter, 0)
    for number in range(200):
        for piece in moments.pieces:
            first, second = moments.read(piece)
            moments.write(piece, first.lerp_(values, 0.01), second.lerp_(values, 0.01), torch.tensor(float(number)))
    expected = 0.9 * (1 - 0.99**200)
    assert float(moments.first()[:, 1::BLOCK].mean()) == pytest.approx(expected, rel=0.02)
    assert float(moments.second()[:, 1:BLOCK].mean()) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("sentence", SHAPES)
def test_a_checkpoint_of_their_values_gives_the_same_codes(sentence: str) -> None:
    shape = SHAPES[sentence]
    moments = coded(torch.empty(shape), *drawn(shape))
    again = CodedMoments(torch.empty(shape), 0)
    again.take(moments.first(), moments.second())
    for one, other in zip((*moments._codes, *moments._greatest), (*again._codes, *again._greatest), strict=True):
        assert torch.equal(one, other)


def test_rows_have_the_same_codes_on_any_number_of_ranks_and_in_pieces_of_any_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = (6, 300)
    first, second = drawn(shape)
    whole = coded(torch.empty(shape), first, second)
    for rows in (slice(0, 4), slice(4, 6)):
        part = coded(torch.empty(shape)[rows], first[rows], second[rows], rows.start)
        assert torch.equal(part.first(), whole.first()[rows])
        assert torch.equal(part.second(), whole.second()[rows])
    monkeypatch.setattr(moments_module, "CODED_ELEMENTS", 700)
    pieces = coded(torch.empty(shape), first, second)
    assert len(pieces.pieces) == 3
    assert torch.equal(pieces.second(), whole.second())
    none = coded(torch.empty(0, 300), first[:0], second[:0], 6)
    assert none.first().shape == (0, 300)


def test_zeros_stay_zeros_and_values_too_small_to_matter_become_zeros() -> None:
    parameter = torch.empty(2, 300)
    zeros = torch.zeros(2, 300)
    moments = coded(parameter, zeros, zeros)
    assert not moments.first().any()
    assert not moments.second().any()
    moments = coded(parameter, zeros + 1e-30, zeros + 1e-38)
    assert not moments.second().any()


def test_they_take_two_bytes_of_an_element_and_norms_stay_in_float32() -> None:
    shape = (64, 1024)
    assert moments_of(torch.empty(shape), "8bit", 0).nbytes == pytest.approx(2.03125 * math.prod(shape))
    assert moments_of(torch.empty(shape), "float32", 0).nbytes == 8 * math.prod(shape)
    assert moments_of(torch.empty(shape), "host", 0).nbytes == 0
    assert isinstance(moments_of(torch.empty(64), "8bit", 0), PlainMoments)


def test_pieces_of_a_large_parameter_are_small_and_end_with_a_whole_register() -> None:
    moments = PlainMoments(torch.empty(49_152, 60), on_host=False)
    pieces = [one for one in moments.pieces if isinstance(one, slice)]
    assert [one.start for one in pieces[1:]] == [one.stop for one in pieces[:-1]]
    assert (pieces[0].start, pieces[-1].stop) == (0, 49_152)
    assert all(60 * (one.stop - one.start) <= moments_module.CPU_ELEMENTS for one in pieces)
    assert all(one.stop % 16 == 0 for one in pieces)
