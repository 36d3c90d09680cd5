"""The arguments by which a request to vLLM asks for its noise."""

import json

import pytest

from echo2.engines.vllm.noise_request import MOST_TOKEN_NUMBER, NoiseRequest

SEED = bytes(range(16))


def test_it_comes_back_as_it_was_sent_through_json() -> None:
    noise = NoiseRequest(SEED, 7)
    assert NoiseRequest.read(json.loads(json.dumps(noise.arguments))) == noise
    assert NoiseRequest.read({"echo2_seed": SEED.hex()}) == NoiseRequest(SEED, 0)


def test_a_temperature_is_told_only_where_it_is_not_1() -> None:
    assert NoiseRequest(SEED, 7, 1000, 5).arguments == NoiseRequest(SEED, 7).arguments
    hot = NoiseRequest(SEED, 7, 800, 5)
    assert NoiseRequest.read(json.loads(json.dumps(hot.arguments))) == hot
    with pytest.raises(ValueError, match="from 500 to 2000 thousandths, not 80"):
        NoiseRequest.read(hot.arguments | {"echo2_temperature": 80})


@pytest.mark.parametrize("arguments", [None, {}, {"other": 1}, {"echo2_first": 3}])
def test_a_request_without_a_seed_asks_for_none(arguments: dict[str, int] | None) -> None:
    assert NoiseRequest.read(arguments) is None


@pytest.mark.parametrize(
    ("seed", "first"), [("ab", 0), (7, 0), ("x" * 32, 0), (None, 0), (SEED.hex(), -1),
                        (SEED.hex(), MOST_TOKEN_NUMBER + 1), (SEED.hex(), "many"), (SEED.hex(), None)],
)  # fmt: skip
def test_arguments_that_cannot_be_read_are_refused(seed: object, first: object) -> None:
    with pytest.raises(ValueError, match="echo2_seed must be 32 hexadecimal digits and echo2_first a number"):
        NoiseRequest.read({"echo2_seed": seed, "echo2_first": first})
