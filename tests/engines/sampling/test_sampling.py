import hashlib
import json
import struct
from typing import Any

import numpy as np
import pytest
import torch

from echo2.engines.engine import GAP_MOST
from echo2.engines.sampling import noise_bits, sampling, sampling_numpy
from echo2.engines.sampling import sampling_reference as reference
from echo2.engines.temperature import factor_of
from tests.support import paths

VECTORS = json.loads((paths.VECTORS / "sampling.json").read_text())
TEMPERED = json.loads((paths.VECTORS / "sampling_at_temperature.json").read_text())


def seed(number: int) -> bytes:
    return hashlib.blake2b(b"seed %d" % number, digest_size=16).digest()


def vector_logits(vocabulary: int) -> list[float]:
    """Return the logits of the golden vectors: a fixed pattern between -5 and 5, exact in float32."""
    return [((token * 7919) % 640 - 320) / 64 for token in range(vocabulary)]


def bits_of(keys: torch.Tensor, count: int) -> list[list[int]]:
    return noise_bits.bits(keys, count)[0][:, :count].tolist()


def gumbel_of(keys: torch.Tensor, count: int) -> torch.Tensor:
    return sampling._gumbel(sampling._noise(keys, count)[0].clone())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"position {vector['position']}")
def test_the_noise_is_the_golden_noise(vector: dict[str, object]) -> None:
    drawn_seed, position = bytes.fromhex(str(vector["seed"])), vector["position"]
    assert isinstance(position, int)
    key = reference.key(drawn_seed, position)
    assert f"{key:016x}" == vector["key"]
    tensor_key = sampling.keys([(drawn_seed, position)])
    assert tensor_key.item() % 2**64 == key
    count = len(vector["bits"])  # type: ignore[arg-type]
    assert bits_of(tensor_key, count)[0] == vector["bits"]
    assert [reference.bits(key, token) for token in range(count)] == vector["bits"]
    noise = gumbel_of(tensor_key, count)[0].tolist()
    assert noise == pytest.approx(vector["gumbel"], rel=1e-6, abs=1e-6)
    assert [reference.gumbel(bits) for bits in vector["bits"]] == vector["gumbel"]
    logits = vector_logits(321)
    assert reference.choose(logits, key) == vector["token"]
    assert sampling.choose(torch.tensor([logits]), tensor_key)[0].item() == vector["token"]


@pytest.mark.parametrize("vector", TEMPERED, ids=lambda vector: f"temperature {vector['temperature']}")
def test_the_choice_at_a_temperature_is_the_golden_choice(vector: dict[str, Any]) -> None:
    temperature, pair = vector["temperature"], (bytes.fromhex(vector["seed"]), vector["position"])
    assert struct.pack(">f", factor_of(temperature)).hex() == vector["factor"]
    tempered, key = reference.temper(vector_logits(321), temperature), reference.key(*pair)
    assert [struct.pack(">f", value).hex() for value in tempered[:4]] == vector["tempered"]
    assert reference.choose(tempered, key) == vector["token"] != reference.choose(vector_logits(321), key)
    by_torch = sampling.temper(torch.tensor([vector_logits(321)]), [temperature])
    assert by_torch[0].tolist() == tempered
    token, logprob = sampling.choose(by_torch, sampling.keys([pair]))
    assert (token.item(), logprob.item()) == (vector["token"], pytest.approx(vector["logprob"], abs=2e-5))
    by_numpy = sampling_numpy.temper(np.array([vector_logits(321)], np.float32), temperature)
    assert by_numpy[0].tolist() == tempered
    token_by_numpy, logprob_by_numpy = sampling_numpy.choose(by_numpy, sampling_numpy.keys([pair]))
    assert token_by_numpy.tolist() == [vector["token"]]
    assert logprob_by_numpy.tolist() == pytest.approx([vector["logprob"]], abs=2e-5)


def test_rows_of_several_temperatures_are_each_at_their_own() -> None:
    logits = torch.randn(4, 99, generator=torch.Generator().manual_seed(5))
    mixed = sampling.temper(logits.clone(), [1000, 800, 2000, 1000])
    assert torch.equal(mixed[0], logits[0])
    for row, temperature in ((1, 800), (2, 2000)):
        assert torch.equal(mixed[row], sampling.temper(logits[row : row + 1].clone(), [temperature])[0])
    assert torch.equal(sampling.temper(logits.clone(), [1000] * 4), logits)


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 50, 64, 999])
def test_torch_equals_the_reference(vocabulary: int) -> None:
    pairs = [(seed(row), row * row) for row in range(20)]
    keys = sampling.keys(pairs)
    raw, noise = bits_of(keys, vocabulary), gumbel_of(keys, vocabulary)
    for row, pair in enumerate(pairs):
        key = reference.key(*pair)
        expected = [reference.bits(key, token) for token in range(vocabulary)]
        assert raw[row] == expected
        assert noise[row].tolist() == pytest.approx([reference.gumbel(bits) for bits in expected], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("bits", [0, 1, 2**24, 2**30, 2**31 - 2**7, 2**31 - 1])
def test_the_noise_is_finite_at_both_ends(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = torch.tensor([[bits, 0]], dtype=torch.int32)
    monkeypatch.setattr(noise_bits, "bits", lambda key, vocabulary: (drawn.clone(), torch.empty_like(drawn)))
    noise = gumbel_of(torch.zeros(1, dtype=torch.int64), 1).item()
    assert noise == pytest.approx(reference.gumbel(bits), rel=1e-6)
    assert -2.82 < noise < 22.2


def test_choices_are_distributed_as_the_softmax_says() -> None:
    """Chi-square with 11 degrees of freedom: 99.9 % of honest samples lie below 31.3. The seeds are fixed."""
    count, weights = 40_000, torch.tensor([30.0, 20, 10, 8, 8, 8, 6, 4, 3, 1.5, 1, 0.5])
    probabilities = weights / weights.sum()
    for repeat in range(3):
        keys = sampling.keys((seed(number), repeat) for number in range(count))
        tokens, logprobs = sampling.choose(probabilities.log().expand(count, -1), keys)
        observed = torch.bincount(tokens, minlength=12)
        assert ((observed - count * probabilities) ** 2 / (count * probabilities)).sum() < 31.3
        assert torch.allclose(logprobs, probabilities.log()[tokens], atol=1e-6)


def test_neighbouring_positions_are_independent() -> None:
    """Pairs of fair bits at positions p and p + 1 of one seed: chi-square with 3 degrees of freedom below 16.3."""
    count = 20_000
    logits = torch.zeros(count, 2)
    first, second = (sampling.choose(logits, sampling.keys((seed(n), p) for n in range(count)))[0] for p in (7, 8))
    observed = torch.bincount(first * 2 + second, minlength=4)
    assert ((observed - count / 4) ** 2 / (count / 4)).sum() < 16.3


def test_equal_scores_go_to_the_lowest_id() -> None:
    """Equal noise cannot be arranged, but logits so large that float32 loses the noise can."""
    keys = sampling.keys((seed(row), 0) for row in range(50))
    logits = torch.full((50, 40), -1.0)
    logits[:, [7, 21, 33]] = 2.0**40
    assert sampling.choose(logits, keys)[0].tolist() == [7] * 50


def test_margins_do_not_depend_on_how_rows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(20, 99, generator=torch.Generator().manual_seed(2))
    keys, tokens = sampling.keys((seed(row), row) for row in range(20)), torch.arange(20)
    whole = sampling.margin(logits, keys, tokens)
    monkeypatch.setattr(sampling, "BLOCK", 7 * 99)
    cut = sampling.margin(logits, keys, tokens)
    assert all(torch.equal(one, other) for one, other in zip(whole, cut, strict=True))


def test_lazy_margins_are_those_of_the_full_noise() -> None:
    generator = torch.Generator().manual_seed(1)
    for scale in (0.0, 0.3, 3.0, 30.0):
        logits = torch.randn(200, 777, generator=generator) * scale
        keys = sampling.keys((seed(row), row) for row in range(200))
        scores = logits + gumbel_of(keys, 777)
        chosen, logprobs = sampling.choose(logits, keys)
        margins, again, gaps = sampling.margin(logits, keys, chosen)
        assert margins.tolist() == [0.0] * 200
        assert torch.allclose(logprobs, again, atol=1e-5)
        other = torch.randint(777, (200,), generator=generator)
        margins, other_logprobs, same_gaps = sampling.margin(logits, keys, other)
        best, second = scores.topk(2).values.unbind(-1)
        assert torch.allclose(gaps, (best - second).clamp(max=GAP_MOST), atol=2e-5)
        assert torch.equal(gaps, same_gaps)
        expected = scores.amax(-1) - scores.gather(1, other[:, None])[:, 0]
        assert torch.allclose(margins, expected, atol=2e-5)
        assert torch.equal(margins == 0, other == chosen)
        assert torch.allclose(other_logprobs, logits.log_softmax(-1).gather(1, other[:, None])[:, 0], atol=2e-5)


def test_a_device_without_64_bit_integers_gives_the_same_to_the_bit() -> None:
    """By keys in halves, as on MPS (engines.sampling.noise_bits)."""
    logits = torch.randn(70, 777, generator=torch.Generator().manual_seed(3)) * 3
    key, tokens = sampling.keys((seed(row), row) for row in range(70)), torch.arange(70)
    halves = key.view(torch.int32).view(-1, 2)
    for one, other in zip(sampling.choose(logits, key), sampling.choose(logits, halves), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(sampling.margin(logits, key, tokens), sampling.margin(logits, halves, tokens), strict=True):
        assert torch.equal(one, other)


def test_the_gap_of_a_lone_token_is_the_widest() -> None:
    keys = sampling.keys((seed(row), 0) for row in range(20))
    lone = torch.full((20, 40), -60.0)
    lone[:, 9] = 60.0
    assert sampling.margin(lone, keys, torch.full((20,), 9))[2].tolist() == [GAP_MOST] * 20


def test_a_certain_token_has_log_probability_zero_and_never_more() -> None:
    logits = torch.full((3, 100), -50.0)
    logits[:, 9] = 50.0
    keys = sampling.keys((seed(row), 0) for row in range(3))
    tokens, logprobs = sampling.choose(logits, keys)
    assert tokens.tolist() == [9] * 3
    assert logprobs.tolist() == [0.0] * 3


def test_a_seed_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        sampling.keys([(b"short", 0)])


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0], [1], []])
def test_the_greatest_of_logits_with_noise_is_the_choice(rows: list[int]) -> None:
    logits = torch.randn(3, 301, generator=torch.Generator().manual_seed(4)) * 2
    pairs = [(bytes([row]) * 16, 7 + row) for row in rows]
    places = None if rows == [0, 1, 2] else torch.tensor(rows, dtype=torch.int64)
    chosen = sampling.add_noise_of(logits.clone(), sampling.keys(pairs), places).argmax(-1).tolist()
    expected = logits.argmax(-1).tolist()
    for row, pair in zip(rows, pairs, strict=True):
        expected[row] = int(sampling.choose(logits[row : row + 1], sampling.keys([pair]))[0])
    assert chosen == expected
