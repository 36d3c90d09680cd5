"""The rules over what the owner does: which one blocks, for how long, and what `resume` overrides."""

from datetime import datetime

import pytest

from echo2.node.owner.owner_rules import ORDER, OwnerRules
from echo2.node.owner.work_hours import parse_hours

NIGHT = datetime(2026, 3, 4, 23)
NOON = datetime(2026, 3, 4, 12)


def rules(hours: str = "", quiet: float = 60.0) -> OwnerRules:
    return OwnerRules(parse_hours(hours), quiet)


@pytest.mark.parametrize("rule", [rule for rule in ORDER if rule != "hours"])
def test_each_occasion_blocks_while_it_is_seen_and_until_it_was_quiet(rule: str) -> None:
    one = rules()
    assert one.block(0.0, NOON) is None
    one.note(rule, "steam is running", 1.0)  # type: ignore[arg-type]
    block = one.block(500.0, NOON)
    assert block is not None
    assert (block.rule, block.seconds) == (rule, 60.0)
    assert block.why == "steam is running; work goes on 60 s after that ends, or at `echo2-node resume`"
    one.note(rule, "", 1000.0)  # type: ignore[arg-type]
    block = one.block(1018.5, NOON)
    assert block is not None
    assert (block.rule, block.seconds) == (rule, 41.5)
    assert block.why == "the node waits 42 s more, or at `echo2-node resume`, since this ended: steam is running"
    assert one.block(1059.9, NOON) is not None
    assert one.block(1060.0, NOON) is None


def test_an_occasion_that_comes_again_before_it_was_quiet_begins_anew() -> None:
    one = rules()
    one.note("keyboard", "you type", 0.0)
    one.note("keyboard", "", 10.0)
    one.note("keyboard", "you type", 50.0)
    one.note("keyboard", "", 55.0)
    assert one.block(114.0, NOON) is not None
    assert one.block(115.0, NOON) is None


def test_of_several_rules_the_first_in_order_is_named() -> None:
    one = rules("22:00-06:00")
    named = []
    for rule in reversed(ORDER[1:]):
        one.note(rule, rule, 0.0)
        block = one.block(0.0, NIGHT)
        named.append(block and block.rule)
    assert named == list(reversed(ORDER[1:]))
    block = one.block(0.0, NOON)
    assert block is not None
    assert block.rule == "hours"


def test_hours_name_when_they_begin_and_begin_without_a_wait() -> None:
    one = rules("22:00-06:00")
    block = one.block(0.0, NOON)
    assert block is not None
    assert block.seconds == 10 * 3600
    assert "work begins Wed 22:00" in block.why
    assert one.block(1.0, NIGHT) is None


def test_resume_overrides_all_that_block_each_until_it_has_ended_once() -> None:
    one = rules("22:00-06:00")
    one.note("program", "steam is running", 0.0)
    one.note("battery", "on battery", 0.0)
    one.override(NOON)
    assert one.block(1.0, NOON) is None
    one.note("program", "steam is running", 2.0)
    assert one.block(2.0, NOON) is None
    one.note("program", "", 3.0)
    assert one.block(3.0, NOON) is None, "what was overridden leaves no wait"
    one.note("program", "steam is running", 4.0)
    block = one.block(4.0, NOON)
    assert block is not None
    assert block.rule == "program"
    one.note("program", "", 5.0)
    assert one.block(66.0, NIGHT) is None
    block = one.block(67.0, NOON)
    assert block is not None
    assert block.rule == "hours", "they were open once"


def test_resume_ends_the_wait_for_quiet() -> None:
    one = rules()
    one.note("gpu", "blender uses the GPU", 0.0)
    one.note("gpu", "", 1.0)
    one.override(NOON)
    assert one.block(2.0, NOON) is None


def test_an_overridden_line_counts_as_free() -> None:
    one = rules()
    one.note("metered", "the line is metered", 0.0)
    assert one.blocks("metered")
    one.override(NOON)
    assert not one.blocks("metered")
