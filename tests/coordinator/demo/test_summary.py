"""The summary of a demo, and its shortcomings."""

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.demo.demo_settings import SMOLLM2, TINY_DEMO, DemoOptions, settings_of
from echo2.coordinator.demo.summary import curve, gain, shortcomings, sparkline, summary
from echo2.coordinator.metrics.views import Evaluation, FaultView, RunState
from tests.support import pictures


def changed(**changes: object) -> RunState:
    return msgspec.structs.replace(pictures.FINISHED, **changes)


def rising(sampled: float, greedy: float) -> list[Evaluation]:
    """Return two evaluations with these rises of accuracy."""
    first, last = pictures.evaluations([0, 40])
    return [
        msgspec.structs.replace(first, sampled=0.5, greedy=0.5),
        msgspec.structs.replace(last, sampled=0.5 + sampled, greedy=0.5 + greedy),
    ]


def test_a_good_run_has_no_shortcoming() -> None:
    assert shortcomings(pictures.FINISHED, TINY_DEMO) == []


@pytest.mark.parametrize(
    ("flaw", "case"),
    {
        "it learnt too little": ({"evaluations": rising(0.25, 0.5)}, "sampled accuracy rose by 0.250, wanted 0.300"),
        "it got worse": ({"evaluations": rising(-0.5, 0.5)}, "sampled accuracy rose by -0.500"),
        "it became only more certain": ({"evaluations": rising(0.5, 0.0)}, "greedy accuracy rose by 0.000, wanted 0.3"),
        "it was evaluated once": ({"evaluations": pictures.evaluations([0])}, "no two evaluations"),
        "a group has no final state": ({"received": 549}, "549 groups were received, but 547"),
        "a group is undecided": ({"undecided": 1}, "have a final state"),
        "a refusal has no submission": ({"refused": {"late": 9}}, "but 552 have a final state"),
        "steps are missing": ({"step": 39}, "39 of 40 steps"),
        "an honest group was refused": (
            {"refused": {"late": 3, "evidence": 1}}, "groups of honest nodes were refused: 1 evidence",
        ),
        "a process died": (
            {"faults": [FaultView(at=0, what="learner ended with -9: no output")]}, "learner ended with -9",
        ),
    }.items(),
)  # fmt: skip
def test_a_shortcoming_is_one_sentence(flaw: str, case: tuple[dict[str, object], str]) -> None:
    missing = shortcomings(changed(**case[0]), TINY_DEMO)
    assert len(missing) == 1, flaw
    assert case[1] in missing[0]


def test_the_ages_of_the_groups_learned_from_stand_with_their_mean() -> None:
    text = "\n".join(summary(changed(staleness=[2, 0, 6], staleness_limit=2), 1.0, 0.9))
    assert "staleness 0: 2, 1: 0, 2: 6  (steps: groups; mean 1.50, limit 2)" in text


def test_restricted_routes_are_listed_and_required_with_ways() -> None:
    first, second, *others = [msgspec.structs.replace(node, route="direct") for node in pictures.FINISHED.nodes]
    assert "relay" not in "\n".join(summary(changed(nodes=[first, second, *others]), 1.0, 0.9))
    behind = msgspec.structs.replace(first, reached="relay")
    narrow = msgspec.structs.replace(second, route="https")
    mixed = changed(nodes=[behind, narrow, *others], relayed_bytes=12_345)
    told = "\n".join(summary(mixed, 1.0, 0.9))
    assert f"{first.name} over libp2p without an open port" in told
    assert f"{second.name} over HTTPS only" in told
    assert "relayed 12.3 kB" in told
    asked = settings_of(DemoOptions(ways=True))
    assert shortcomings(mixed, asked) == []
    assert shortcomings(changed(nodes=[first, narrow, *others]), asked) == [
        "no work was accepted from a node connected over libp2p without an open port, dialled through the "
        "coordinator's relay"
    ]


def test_with_engines_work_of_each_class_is_required_and_no_rise() -> None:
    classes = ("transformers/float32/cpu", "vllm/float32/cpu")
    asked = settings_of(DemoOptions(engines=classes))
    rows = [msgspec.structs.replace(pictures.node(1), name=name, accepted=9)
            for name in ("transformers-float32-cpu", "vllm-float32-cpu")]  # fmt: skip
    assert shortcomings(changed(nodes=rows), asked) == []
    assert shortcomings(changed(nodes=rows, evaluations=[]), asked) == []  # it need not learn
    assert shortcomings(changed(nodes=rows[:1]), asked) == ["no work was accepted from the node with vllm/float32/cpu"]


def test_exactly_the_required_rise_is_enough() -> None:
    asked = dataclasses.replace(TINY_DEMO, least_rise=0.375, least_greedy_rise=0.25)
    enough = changed(evaluations=rising(0.375, 0.25))
    assert (gain(enough), gain(enough, "greedy")) == (0.375, 0.25)
    assert shortcomings(enough, asked) == []


def test_a_policy_that_only_became_more_certain_is_a_shortcoming() -> None:
    """Use the figures of the first demos: sampled 0.174 to 0.670, greedy 0.994 to 0.998."""
    first, last = rising(0.0, 0.0)
    surer = [
        msgspec.structs.replace(first, sampled=0.174, greedy=0.994),
        msgspec.structs.replace(last, sampled=0.67, greedy=0.998),
    ]
    assert shortcomings(changed(evaluations=surer), TINY_DEMO) == [
        "held-out greedy accuracy rose by 0.004, wanted 0.300"
    ]


def test_a_run_limited_by_time_may_have_fewer_steps() -> None:
    assert shortcomings(changed(step=12), SMOLLM2) == []


def test_the_summary_has_the_figures_of_the_run() -> None:
    text = "\n".join(summary(changed(refused={"late": 3, "drift": 1}), 81.4, 0.964))
    wanted_words = (
        "sampled 0.170 → 0.728",
        "greedy  0.340 → 0.846",
        "40 in 81 s",
        "40 versions",
        "idle 3.4 %, processors busy 96 %",
        "702,000 bytes of diffs instead of 29,681,600",
        "42.3 × less",
        "8,688 accepted in 543 groups",
        "1 drift, 3 late",
        "0: 31, 1: 188, 2: 142, 3: 40, 4: 8",
        "brave-otter",
        "3,911.0 points",
    )
    for wanted in wanted_words:
        assert wanted in text


def test_the_summary_of_a_run_that_never_began_has_no_invalid_number() -> None:
    text = "\n".join(summary(pictures.EMPTY, 0.0, 0.0))
    assert "not evaluated" in text
    assert "nothing used" in text
    assert "None" not in text


def test_the_curve_is_a_markdown_table() -> None:
    lines = curve(pictures.FINISHED)
    assert lines[0] == "| step | reward | held out, sampled | held out, greedy | prompts |"
    assert lines[1] == "| --- | --- | --- | --- | --- |"
    assert lines[2] == "| 0 | – | 0.170 | 0.340 | 512 |"
    assert lines[-1].startswith("| 40 | 0.7")
    assert {text_line.count("|") for text_line in lines} == {6}


def test_a_sparkline_has_the_lowest_block_at_the_bottom_and_the_highest_at_the_top() -> None:
    assert sparkline([0, 0.5, 1, 2, -1], 0, 1) == "▁▅██▁"
    assert sparkline([], 0, 1) == ""
    assert sparkline([3, 3], 3, 3) == "▁▁"


@given(st.lists(st.floats(0, 1), max_size=300))
def test_a_sparkline_is_never_wider_than_allowed(values: list[float]) -> None:
    assert len(sparkline(values, 0, 1, 40)) == min(len(values), 40)
