"""The caps that the keys of `echo2-node top` change, and their steps."""

from typing import Any

import pytest

from echo2.node.top.changed_cap import DUTIES, RATES, ChangedCap, caps_of
from tests.support.node_status import STATUS


def test_each_of_several_devices_has_a_duty_to_change() -> None:
    alone = {**STATUS, "engines": STATUS["engines"][:1]}
    lines = [ChangedCap("uplink"), ChangedCap("downlink")]
    assert caps_of(STATUS) == [ChangedCap("duty"), ChangedCap("duty", "cuda:0"), ChangedCap("duty", "cuda:1"), *lines]
    assert caps_of(alone) == caps_of({}) == [ChangedCap("duty"), *lines]


@pytest.mark.parametrize(
    ("cap", "value", "less", "more"),
    [
        (ChangedCap("duty"), 100, "90", "100"),
        (ChangedCap("duty"), 37, "30", "40"),
        (ChangedCap("duty"), 5, "5", "10"),
        (ChangedCap("uplink"), None, "512", "none"),
        (ChangedCap("uplink"), 512, "256", "none"),
        (ChangedCap("uplink"), 5.5, "4", "8"),
        (ChangedCap("uplink"), 0.05, "0.05", "0.25"),
    ],
)
def test_a_step_is_the_next_one_of_the_ladder(cap: ChangedCap, value: float | None, less: str, more: str) -> None:
    status: dict[str, Any] = {"caps": {cap.key: value}}
    for up, text in ((False, less), (True, more)):
        assert cap.step(status, up=up) == {"command": "caps", "changes": {cap.key: text}, "gpu": None}


def test_a_cap_is_said_with_its_device_value_and_unit() -> None:
    words = [cap.text(STATUS).partition(" (")[0] for cap in caps_of(STATUS)]
    assert words == [
        "duty of all devices: 100 %", "duty of cuda:0: 100 %", "duty of cuda:1: 50 %", "uplink: 4 Mbit/s",
        "downlink: no limit",
    ]  # fmt: skip


def test_the_ladders_rise() -> None:
    assert sorted(set(DUTIES)) == list(DUTIES)
    assert sorted(set(RATES)) == list(RATES)
