"""What a demo says of itself, and when it was no good."""

import dataclasses
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from coordinator.config import parse
from coordinator.demo.demo import environment
from coordinator.demo.demo_settings import SMOLLM2, TINY, DemoOptions, settings_of
from coordinator.demo.screen import PlainScreen, drawn, progress_line
from coordinator.demo.summary import curve, gain, shortcomings, sparkline, summary
from coordinator.metrics.views import Evaluation, RunState
from coordinator.run.model_folder import task_named
from coordinator.run.setup import check_sizes, settings_for
from runtime.errors import LocalFault
from tests.support import pictures


def changed(**changes: object) -> RunState:
    return msgspec.structs.replace(pictures.FINISHED, **changes)


def rising(sampled: float, greedy: float) -> list[Evaluation]:
    """Two evaluations with these rises."""
    first, last = pictures.evaluations([0, 40])
    return [
        msgspec.structs.replace(first, sampled=0.5, greedy=0.5),
        msgspec.structs.replace(last, sampled=0.5 + sampled, greedy=0.5 + greedy),
    ]


def test_a_good_run_has_no_shortcoming() -> None:
    assert shortcomings(pictures.FINISHED, TINY) == []


@pytest.mark.parametrize(
    ("flaw", "case"),
    {
        "it learnt too little": ({"evaluations": rising(0.25, 0.5)}, "sampled accuracy rose by 0.250, wanted 0.300"),
        "it unlearnt": ({"evaluations": rising(-0.5, 0.5)}, "sampled accuracy rose by -0.500"),
        "it grew surer and no better": ({"evaluations": rising(0.5, 0.0)}, "greedy accuracy rose by 0.000, wanted 0.3"),
        "it was evaluated once": ({"evaluations": pictures.evaluations([0])}, "no two evaluations"),
        "a group has no final state": ({"received": 549}, "549 groups were received, but 547"),
        "a group is undecided": ({"undecided": 1}, "have a final state"),
        "a refusal has no submission": ({"refused": {"late": 9}}, "but 552 have a final state"),
        "steps are missing": ({"step": 39}, "39 of 40 steps"),
        "a process died": ({"faults": ["learner ended with -9: no output"]}, "learner ended with -9"),
    }.items(),
)  # fmt: skip
def test_a_shortcoming_is_one_sentence(flaw: str, case: tuple[dict[str, object], str]) -> None:
    missing = shortcomings(changed(**case[0]), TINY)
    assert len(missing) == 1, flaw
    assert case[1] in missing[0]


def test_the_ways_are_told_where_one_was_not_the_plain_one_and_must_be_those_asked_for() -> None:
    first, second, *others = [msgspec.structs.replace(node, route="direct") for node in pictures.FINISHED.nodes]
    assert "relay" not in "\n".join(summary(changed(nodes=[first, second, *others]), 1.0))
    behind = msgspec.structs.replace(first, reached="relay")
    narrow = msgspec.structs.replace(second, route="https")
    mixed = changed(nodes=[behind, narrow, *others], relayed_bytes=12_345)
    told = "\n".join(summary(mixed, 1.0))
    assert f"{first.name} over libp2p without an open port" in told
    assert f"{second.name} over HTTPS only" in told
    assert "relayed 12.3 kB" in told
    asked = settings_of(DemoOptions(ways=True))
    assert shortcomings(mixed, asked) == []
    assert shortcomings(changed(nodes=[first, narrow, *others]), asked) == [
        "no work was accepted from a node connected over libp2p without an open port, dialled through the "
        "coordinator's relay"
    ]


def test_exactly_the_rise_that_was_asked_for_is_enough() -> None:
    asked = dataclasses.replace(TINY, least_rise=0.375, least_greedy_rise=0.25)
    enough = changed(evaluations=rising(0.375, 0.25))
    assert (gain(enough), gain(enough, "greedy")) == (0.375, 0.25)
    assert shortcomings(enough, asked) == []


def test_a_policy_that_only_grew_surer_did_not_get_better() -> None:
    """The first demos: sampled 0.174 to 0.670, greedy 0.994 to 0.998."""
    first, last = rising(0.0, 0.0)
    surer = [
        msgspec.structs.replace(first, sampled=0.174, greedy=0.994),
        msgspec.structs.replace(last, sampled=0.67, greedy=0.998),
    ]
    assert shortcomings(changed(evaluations=surer), TINY) == ["held-out greedy accuracy rose by 0.004, wanted 0.300"]


def test_a_run_of_as_many_steps_as_time_gives_may_stop_early() -> None:
    assert shortcomings(changed(step=12), SMOLLM2) == []


def test_the_summary_tells_what_was_asked() -> None:
    text = "\n".join(summary(pictures.FINISHED, 81.4))
    wanted_words = (
        "sampled 0.170 → 0.728",
        "greedy  0.340 → 0.846",
        "40 in 81 s",
        "40 versions",
        "idle 3.4 %",
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


def test_a_summary_of_a_run_that_never_began_has_no_numbers_from_nowhere() -> None:
    text = "\n".join(summary(pictures.EMPTY, 0.0))
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


def test_a_line_at_most_every_five_seconds_and_fewer_while_nothing_happens() -> None:
    now, seen = 0.0, list[float]()
    screen = PlainScreen(lambda text_line: seen.append(now), lambda: now)
    for second in range(100):
        now = float(second)
        screen.show(changed(step=min(second, 12)), now, "http://x")
    assert seen == [0, 5, 10, 15, 45, 75]


def test_what_happens_is_said_at_once() -> None:
    lines = list[str]()
    screen = PlainScreen(lines.append, lambda: 0.0)
    screen.show(pictures.BUSY, 1.0, "http://x")
    screen.say("something happened")
    assert lines == [progress_line(pictures.BUSY, 1.0), "something happened"]


@pytest.mark.parametrize("state", [pictures.EMPTY, pictures.BUSY, pictures.FINISHED], ids=["empty", "busy", "finished"])
def test_the_live_picture_fits_an_old_terminal(state: RunState) -> None:
    console = Console(width=80, height=24, record=True, force_terminal=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(drawn(state, 12.0, "http://127.0.0.1:12345/"))
    lines = capture.get().splitlines()
    assert len(lines) <= 24
    assert any("http://127.0.0.1:12345/" in text_line for text_line in lines)


@pytest.mark.parametrize("settings", [TINY, SMOLLM2], ids=["tiny", "smollm2"])
def test_the_settings_are_ones_that_a_coordinator_takes(settings: object) -> None:
    assert isinstance(settings, type(TINY))
    flags = {"run": {"steps": settings.steps, **settings.run}, "learner": settings.learner}
    config = settings_for(settings.model, flags, env={})
    check_sizes(config, task_named(config.run.task))
    assert config.run.steps == settings.steps
    assert parse(flags, source="demo").run.task == settings.run["task"]


@pytest.mark.parametrize(
    "options",
    [DemoOptions(nodes=0), DemoOptions(nodes=17), DemoOptions(seconds=0), DemoOptions(nodes=1, ways=True)],
)
def test_an_impossible_choice_is_one_line(options: DemoOptions) -> None:
    with pytest.raises(LocalFault, match="choose"):
        settings_of(options)


def test_nothing_of_the_users_settings_reaches_the_demo(tmp_path: Path) -> None:
    variables = environment({"ECHO2_INVITE": "x", "ECHO2_COORD_WEB_PORT": "1", "PATH": "/bin"}, tmp_path)
    assert variables["PATH"] == "/bin"
    assert [name for name in variables if name.startswith("ECHO2_")] == ["ECHO2_CONFIG"]
    assert variables["OMP_NUM_THREADS"] == "1"
    assert variables["OMP_WAIT_POLICY"] == "passive"
