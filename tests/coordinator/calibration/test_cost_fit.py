"""The Costs that are fitted to times, and what is measured for them."""

import random

import pytest

from echo2.coordinator.calibration.cost_fit import (
    COMPLETIONS,
    DENOMINATOR,
    GIVEN_TOKEN_COST,
    PROMPTS,
    REFERENCE,
    SAMPLES,
    GroupShape,
    ShapeTime,
    costs_of,
    fit,
    shapes,
)
from echo2.protocol.group_weights import Costs, scaled_cost, whole_weight

RUN = b"r" * 32


def times_by(costs: Costs, noise: float = 0.0) -> list[ShapeTime]:
    """Return the times of an engine that costs just so, each off by at most the share `noise`."""
    chance = random.Random(1)
    return [
        ShapeTime(shape, 1e-12 * scaled_cost(costs, shape.prompt, [[shape.completion]] * SAMPLES)
                  * (1 + noise * chance.uniform(-1, 1)))
        for shape in shapes(None, 96)
    ]  # fmt: skip


def engine(attended: int, dearer: float) -> Costs:
    return Costs(
        run=RUN, given=GIVEN_TOKEN_COST, attention=GIVEN_TOKEN_COST // attended, decode=round(DENOMINATOR * dearer),
        denominator=DENOMINATOR, unit=1, builds=[], at=0,
    )  # fmt: skip


@pytest.mark.parametrize(("attended", "dearer"), [(64, 1.5), (512, 5.625), (1024, 9.5), (4096, 40.0)])
def test_the_factors_of_an_engine_are_found_again_from_its_times(attended: int, dearer: float) -> None:
    found = fit(times_by(engine(attended, dearer)))
    assert found.spread < 1.02
    assert found.decode / DENOMINATOR == pytest.approx(dearer, rel=0.05)
    assert found.attention == pytest.approx(GIVEN_TOKEN_COST / attended, rel=0.2)
    noisy = fit(times_by(engine(attended, dearer), noise=0.1))
    assert noisy.spread < 1.25


def test_one_re_is_an_eighth_of_the_reference_group() -> None:
    costs = costs_of(fit(times_by(engine(512, 5.0))), RUN, ["torch 2"], 7)
    assert whole_weight(costs, REFERENCE.prompt, [[REFERENCE.completion]] * SAMPLES) == 8_000
    assert (costs.run, costs.builds, costs.at) == (RUN, ["torch 2"], 7)


def test_shapes_fit_the_models_context_and_the_runs_limit() -> None:
    assert shapes(None, 1_000) == [GroupShape(p, c) for p in PROMPTS for c in COMPLETIONS]
    for context in (2, 5, 64, 512, 1_024, 8_192):
        for limit in (1, 8, 96, 4_096):
            found = shapes(context, limit)
            assert len(set(found)) == len(found) > 0
            assert all(1 <= one.completion <= limit and one.prompt >= 1 for one in found)
            assert all(one.prompt + one.completion <= context for one in found)
