"""Three ways to the same bits: numpy, PyTorch in 64-bit integers, PyTorch in pairs of 32-bit integers."""

import json

import numpy as np
import pytest
import torch

from echo2.engines.sampling import noise_bits
from echo2.engines.sampling import sampling_reference as reference
from tests.support import paths

VECTORS = json.loads((paths.VECTORS / "sampling.json").read_text())
RANDOM = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, 40, np.int64)
EDGES = np.array([0, 1, -1, 2**32 - 1, 2**32, -(2**32), -(2**63), 2**63 - 1, 0x7FFFFFFF, 0x80000000], np.int64)
KEYS = np.concatenate([EDGES, RANDOM])


def by_numpy(keys: np.ndarray, vocabulary: int) -> torch.Tensor:
    return noise_bits.bits(noise_bits.keys_of(keys.copy(), "cpu"), vocabulary)[0].clone()


def by_words(keys: np.ndarray, vocabulary: int) -> torch.Tensor:
    words = (vocabulary + 1) // 2
    out = torch.empty(len(keys), 2 * words, dtype=torch.int32)
    steps = noise_bits._increments(words, torch.device("cpu"))
    noise_bits._in_words(steps, torch.from_numpy(keys), out.view(torch.int64), torch.empty(len(keys), words).long())
    return out


def by_halves(keys: np.ndarray, vocabulary: int) -> torch.Tensor:
    halves = torch.from_numpy(keys.view(np.int32).reshape(-1, 2))
    return noise_bits.bits(halves, vocabulary)[0].clone()


WAYS = {"numpy": by_numpy, "64-bit integers": by_words, "pairs of 32-bit integers": by_halves}


@pytest.mark.parametrize("bits", WAYS.values(), ids=WAYS.keys())
def test_each_way_gives_the_golden_bits(bits) -> None:  # type: ignore[no-untyped-def]
    for vector in VECTORS:
        key = np.array([int(vector["key"], 16)], np.uint64).view(np.int64)
        count = len(vector["bits"])
        assert bits(key, count)[0, :count].tolist() == vector["bits"]


@pytest.mark.parametrize("vocabulary", [1, 2, 7, 64, 1001])
@pytest.mark.parametrize("bits", WAYS.values(), ids=WAYS.keys())
def test_each_way_gives_the_reference_for_keys_of_all_kinds(bits, vocabulary: int) -> None:  # type: ignore[no-untyped-def]
    drawn = bits(KEYS, vocabulary)[:, :vocabulary].tolist()
    for key, row in zip(KEYS.view(np.uint64), drawn, strict=True):
        assert row == [reference.bits(int(key), token) for token in range(vocabulary)]


def test_rows_that_are_hashed_in_parts_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = by_numpy(KEYS, 300)
    monkeypatch.setattr(noise_bits, "HASHED_WORDS", 400)
    assert torch.equal(by_numpy(KEYS, 300), whole)


def test_keys_are_64_bits_wide_but_on_mps() -> None:
    assert noise_bits.keys_of(KEYS.copy(), "cpu").tolist() == KEYS.tolist()
    meta = noise_bits.keys_of(KEYS.copy(), "meta")
    assert (meta.dtype, meta.shape) == (torch.int64, (len(KEYS),))
