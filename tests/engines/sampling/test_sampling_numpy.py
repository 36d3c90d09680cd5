import json

import numpy as np
import pytest
import torch

from echo2.engines.sampling import sampling, sampling_numpy
from echo2.engines.sampling import sampling_reference as reference
from tests.support import paths

VECTORS = json.loads((paths.VECTORS / "sampling.json").read_text())


def seed(number: int) -> bytes:
    return number.to_bytes(16, "little")


def vector_logits(vocabulary: int) -> list[float]:
    """Return the logits of the golden vectors: a fixed pattern between -5 and 5, exact in float32."""
    return [((token * 7919) % 640 - 320) / 64 for token in range(vocabulary)]


def noise_of(key: np.uint64, count: int) -> tuple[list[int], list[float]]:
    """Return the bits and the Gumbel noise of the first `count` tokens."""
    room = sampling_numpy._buffers(count)
    w = sampling_numpy._noise(key, room)
    return room.words.view(np.int32)[:count].tolist(), sampling_numpy._gumbel(w).tolist()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"position {vector['position']}")
def test_the_noise_is_the_golden_noise(vector: dict[str, object]) -> None:
    position = vector["position"]
    assert isinstance(position, int)
    key = sampling_numpy.keys([(bytes.fromhex(str(vector["seed"])), position)])
    assert f"{key[0]:016x}" == vector["key"]
    bits, noise = noise_of(key[0], len(vector["bits"]))  # type: ignore[arg-type]
    assert bits == vector["bits"]
    assert noise == pytest.approx(vector["gumbel"], rel=1e-6, abs=1e-6)
    logits = np.array([vector_logits(321)], np.float32)
    assert sampling_numpy.choose(logits, key)[0].tolist() == [vector["token"]]


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 50, 777])
@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0, 30.0])
def test_numpy_chooses_as_torch_does(vocabulary: int, scale: float) -> None:
    pairs = [(seed(row), row * row) for row in range(200)]
    logits = torch.randn(200, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * scale
    tokens, logprobs = sampling_numpy.choose(logits.numpy(), sampling_numpy.keys(pairs))
    expected, expected_logprobs = sampling.choose(logits, sampling.keys(pairs))
    assert tokens.tolist() == expected.tolist()
    assert logprobs.tolist() == pytest.approx(expected_logprobs.tolist(), abs=1e-5)
    assert (logprobs <= 0).all()
    tokens, logprobs = sampling_numpy.greedy(logits.numpy())
    expected, expected_logprobs = sampling.greedy(logits)
    assert tokens.tolist() == expected.tolist()
    assert logprobs.tolist() == pytest.approx(expected_logprobs.tolist(), abs=1e-5)


def test_the_choice_is_that_of_the_reference_in_plain_python() -> None:
    logits = np.random.default_rng(4).standard_normal((20, 99), np.float32) * 2
    pairs = [(seed(row), row) for row in range(20)]
    tokens, _ = sampling_numpy.choose(logits, sampling_numpy.keys(pairs))
    assert tokens.tolist() == [
        reference.choose(row, reference.key(*pair)) for row, pair in zip(logits.tolist(), pairs, strict=True)
    ]


@pytest.mark.parametrize("bits", [0, 1, 2**24, 2**30, 2**31 - 2**7, 2**31 - 1])
def test_the_noise_is_finite_at_both_ends(bits: int) -> None:
    w = np.minimum((np.float32(bits) + np.float32(0.5)) * np.float32(2.0**-31), sampling_numpy._W_MAX)
    noise = float(sampling_numpy._gumbel(np.array([w], np.float32))[0])
    assert noise == pytest.approx(reference.gumbel(bits), rel=1e-6)
    assert -2.82 < noise < 22.2


def test_equal_scores_go_to_the_lowest_id() -> None:
    """Equal noise cannot be arranged, but logits so large that float32 loses the noise can."""
    logits = np.full((50, 40), -1.0, np.float32)
    logits[:, [7, 21, 33]] = 2.0**40
    tokens, _ = sampling_numpy.choose(logits, sampling_numpy.keys((seed(row), 0) for row in range(50)))
    assert tokens.tolist() == [7] * 50


def test_a_certain_token_has_log_probability_zero_and_never_more() -> None:
    logits = np.full((3, 100), -50.0, np.float32)
    logits[:, 9] = 50.0
    tokens, logprobs = sampling_numpy.choose(logits, sampling_numpy.keys((seed(row), 0) for row in range(3)))
    assert tokens.tolist() == [9] * 3
    assert logprobs.tolist() == [0.0] * 3


def test_logits_that_are_not_finite_give_a_log_probability_that_is_not_finite() -> None:
    logits = np.zeros((2, 10), np.float32)
    logits[0, 3], logits[1, 4] = np.nan, np.inf
    _, logprobs = sampling_numpy.choose(logits, sampling_numpy.keys([(seed(0), 0), (seed(1), 0)]))
    assert not np.isfinite(logprobs).any()


def test_a_seed_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        sampling_numpy.keys([(b"short", 0)])
