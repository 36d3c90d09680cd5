"""A plan of a run: nodes, period and cost by the capacity's formulas, and what to change where none is enough."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.metrics import capacity
from echo2.coordinator.training import run_plan
from echo2.coordinator.training.run_plan import Machines, NodeTerms, RunTerms, plan_fleet, sentences
from echo2.coordinator.training.scorer_queue import ScorerTerms

RUN = RunTerms(
    step_seconds=60.0,
    rollouts=512,
    group_size=8,
    tokens=1000.0,
    payload=60e6,
    uplink=12.5e6,
    staleness=4,
    price=20.0,
    scorer=ScorerTerms(tokens_per_second=20_000.0),
)
NODE = NodeTerms(tokens_per_second=800.0, uplink=2.5e6, downlink=12.5e6, load_seconds=1.0, price=0.2)


def test_a_broadcast_takes_a_quarter_more_than_the_least_that_lines_allow() -> None:
    slow_lines = msgspec.structs.replace(NODE, uplink=0.0)
    assert run_plan.broadcast_seconds(RUN, slow_lines, 10) == pytest.approx(1.25 * 10 * 60e6 / 12.5e6)  # a star
    assert run_plan.broadcast_seconds(RUN, msgspec.structs.replace(NODE, uplink=1e9), 10) == pytest.approx(6.0)
    assert run_plan.broadcast_seconds(RUN, msgspec.structs.replace(NODE, downlink=1e6), 1) == pytest.approx(75.0)


def test_the_turnaround_has_its_four_parts_and_groups_that_run_together_take_longer() -> None:
    broadcast = run_plan.broadcast_seconds(RUN, NODE, 12)
    verdict = RUN.verdict_seconds
    assert 0.4 < verdict < 0.7, "8 x 1000 tokens at 20,000 per second, and a wait at a load of 0.43"
    assert run_plan.turnaround(RUN, NODE, 12) == pytest.approx(broadcast + 1 + 10 + verdict)
    together = msgspec.structs.replace(NODE, at_once=8)
    assert run_plan.turnaround(RUN, together, 12) == pytest.approx(broadcast + 1 + 80 + verdict)


def test_nodes_for_the_need_and_the_cost_of_a_step() -> None:
    plan = plan_fleet(RUN, NODE)
    assert plan.nodes == math.ceil(1.1 * 512 / 60 * 1000 / 800) == 12
    assert (plan.period, plan.longest_period, plan.idle) == (1, 3, 0.0)
    assert plan.cost == pytest.approx((20 + 12 * 0.2) * 60 / 3600)
    few = plan_fleet(RUN, NODE, nodes=8)
    assert few.nodes == 12
    assert few.idle == pytest.approx(1 - 8 * 0.8 / (512 / 60))
    assert few.cost == pytest.approx((20 + 8 * 0.2) * 60 / 3600 / (1 - few.idle))  # idle time is paid too


@given(
    st.floats(5, 500), st.integers(8, 4096), st.floats(10, 1e5), st.floats(1e5, 1e8), st.floats(1e4, 1e7),
    st.integers(1, 16),
)  # fmt: skip
def test_so_many_nodes_cover_the_need_that_they_lead_to_and_a_tenth_fewer_do_not_reach_the_rate(
    step: float, rollouts: int, rate: float, uplink: float, node_uplink: float, staleness: int
) -> None:
    run = msgspec.structs.replace(
        RUN, scorer=None, step_seconds=step, rollouts=rollouts, uplink=uplink, staleness=staleness
    )
    node = msgspec.structs.replace(NODE, tokens_per_second=rate, uplink=node_uplink)
    plan = plan_fleet(run, node)
    if plan.nodes is None:
        assert plan_fleet(run, node, nodes=1).nodes is None
        return
    least = capacity.least_supply(staleness, plan.period, step, plan.turnaround, rollouts)
    assert least is not None
    supply = plan.nodes * rate / run.tokens
    assert supply >= 1.1 * least * (1 - 1e-9)
    assert plan.idle == 0.0


def test_volunteers_break_even_where_they_cost_what_own_machines_cost() -> None:
    own = Machines(tokens_per_second=5000.0, price=2.5)
    assert run_plan.own_machines(RUN, own) == 2
    even = msgspec.structs.replace(NODE, price=2 * 2.5 / 12)
    assert plan_fleet(RUN, even).cost == pytest.approx((20 + 2 * 2.5) * 60 / 3600)
    assert sentences(RUN, NODE, None, own)[-1] == (
        "Generating on machines of your own takes 2 of them, and a step costs 0.4167. "
        "Volunteers break even at 0.4167 an hour each; at 0.2000 they cost less."
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"payload": 40e9}, "a version's groups are verified after 4011.5 s, and 4 steps take 240.0 s. Take S = 67"),
        ({"payload": 2e9}, "with those that the rate asks for, a version takes 706 s to all. Raise S, or the uplinks"),
        ({"staleness": 0}, "Sequential (S = 0): nothing overlaps. With 1 node a step takes 717.5 s, of which 60.0 s"),
        (
            {"period": 4, "payload": 600e6},
            "enough at S = 4 when publishing every 4 steps: publish every 2, or raise S.",
        ),
        ({"staleness": 0, "price": 36.0}, "are training, and costs 7.22. Each node more shortens it: --nodes says by"),
        ({"turnaround": 100.0, "broadcast": 5.0, "period": 2}, "A version reaches 12 nodes in 5 s"),
    ],
)
def test_the_words_say_what_to_change(changes: dict[str, float], words: str) -> None:
    assert words in " ".join(sentences(msgspec.structs.replace(RUN, **changes), NODE, None, None))


def test_a_fleet_that_is_given_is_compared_with_the_need() -> None:
    assert "12 such nodes are enough: 8 of 20 are to spare" in " ".join(sentences(RUN, NODE, 20, None))
    missing = " ".join(sentences(RUN, NODE, 8, None))
    assert "12 such nodes would be enough; 4 are missing, and the learner is idle for 25% of its time." in missing
    assert "; 1 is missing, " in " ".join(sentences(RUN, NODE, 11, None))


def test_a_scorer_that_does_not_keep_up_is_the_bottleneck_whatever_the_nodes() -> None:
    """The paper's setting on one device: 3,290 s of scoring for a step of 1,650 s."""
    paper = msgspec.structs.replace(
        RUN, step_seconds=1650.0, rollouts=2048, group_size=16, tokens=8192.0,
        scorer=ScorerTerms(tokens_per_second=5100.0),
    )  # fmt: skip
    quick = msgspec.structs.replace(NODE, tokens_per_second=2000.0)
    plan, words = plan_fleet(paper, quick, nodes=50), sentences(paper, quick, 50, None)
    assert plan.bottleneck == "scorers"
    assert plan.idle == pytest.approx(1 - 1650 / (2048 * 8192 / 5100))
    assert plan.nodes is not None
    assert plan.nodes <= 6, "as many as the scorer can take from"
    assert words[1] == (
        "The scorer verifies a step's rollouts in 3289.7 s, and the learner takes 1650.0 s: a step takes 3289.7 s, "
        "until there are 3 such scorers."
    )
    assert words[4].startswith("The bottleneck is the scorer")
    three = msgspec.structs.replace(paper, scorer=ScorerTerms(tokens_per_second=5100.0, number=3))
    assert plan_fleet(three, quick).bottleneck == "learner"
    assert plan_fleet(three, quick, nodes=2).bottleneck == "nodes"
