"""The owner's caps: two sets, by hand and by hours, and the bytes of a month."""

from datetime import datetime
from typing import Any

import pytest

from echo2.node.config import NodeConfig
from echo2.node.errors import BadConfig
from echo2.node.limits.caps import TRICKLE_MBIT, Caps, MonthTraffic, OwnerCaps

MONDAY = datetime(2026, 11, 30, 12, 0)


class Local:
    """The owner's clock."""

    def __init__(self) -> None:
        self.now = MONDAY

    def __call__(self) -> datetime:
        return self.now


def caps(local: Local, **settings: Any) -> OwnerCaps:
    return OwnerCaps(NodeConfig(**settings), local)


def test_the_slow_set_is_in_force_in_its_hours_and_at_the_owners_word() -> None:
    local = Local()
    own = caps(local, uplink=8, downlink=50, slow_hours="mon-fri 17:00-23:00", slow_uplink=1, slow_duty=30)
    assert own.now == Caps(8, 50, 100)
    local.now = MONDAY.replace(hour=18)
    assert own.now == Caps(1, 50, 30), "what the slow set lacks is that of the first"
    own.by_hand = False
    assert own.now == Caps(8, 50, 100)
    own.by_hand, local.now = True, MONDAY
    assert own.now == Caps(1, 50, 30)
    own.by_hand = None
    assert not own.slow


def test_without_hours_it_is_never_slow_by_itself() -> None:
    assert not caps(Local(), slow_uplink=1).slow


def test_a_month_that_is_used_up_ends_with_the_month() -> None:
    local = Local()
    own = caps(local, month_up=1, month_down=2)
    own.month = MonthTraffic().add(10**9, 10**9, local())
    assert (own.now.uplink, own.no_download) == (TRICKLE_MBIT, "")
    own.month = own.month.add(0, 10**9, local())
    assert own.no_download.startswith("the 2 GB of download for November are used up (setting month_down)")
    local.now = datetime(2026, 12, 1)
    assert (own.now.uplink, own.no_download) == (None, "")
    assert own.month.add(5, 0, local()) == MonthTraffic("2026-12", 5, 0)


@pytest.mark.parametrize(
    "wrong",
    [{"month_up": 0}, {"month_down": -1}, {"uplink": 0}, {"duty": 0}, {"duty": 101}, {"slow_duty": 4},
     {"slow_hours": "8:00-8:00"}, {"slow_uplink": -2}, {"slow_downlink": "nan"}],
    ids=str,
)  # fmt: skip
def test_a_cap_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        NodeConfig(**wrong)


def test_a_device_has_its_own_duty_and_is_never_faster_while_slow() -> None:
    own = caps(Local(), duty=80, slow_duty=40, devices={"1": {"duty": 20}, "cpu": {"duty": 90}, "0": {"power": 200}})
    devices = ("cuda:0", "cuda:1", "cpu")
    assert [own.now.duty_of(device) for device in devices] == [80, 20, 90]
    own.by_hand = True
    assert [own.now.duty_of(device) for device in devices] == [40, 20, 40]


def test_what_the_owner_changes_by_hand_changes_the_set_in_force() -> None:
    own = caps(Local(), uplink=8, slow_uplink=1, devices={"1": {"duty": 20}})
    own.change({"uplink": "none", "downlink": "2.5"})
    own.change({"duty": "60"}, ["cuda:1"])
    assert own.now[:3] == (None, 2.5, 100)
    assert [own.now.duty_of(device) for device in ("cuda:0", "cuda:1")] == [100, 60]
    own.change({"duty": "50"})
    assert [own.now.duty_of(device) for device in ("cuda:0", "cuda:1")] == [50, 50], "without a device: all"
    own.by_hand = True
    assert own.now[:3] == (1, None, 100), "the other set is as it was"


@pytest.mark.parametrize(
    ("texts", "devices", "said"),
    [
        ({"uplnk": "4"}, [], "unknown cap uplnk; did you mean uplink"),
        ({"hottest": "70"}, [], "unknown cap hottest; known are uplink, downlink, duty"),
        ({"uplink": "0"}, [], "uplink should be greater than 0, not 0"),
        ({"uplink": "4", "duty": "none"}, [], "duty should be a whole number, not 'none'"),
        ({"duty": "101"}, ["cuda:1"], "duty should be less than or equal to 100, not 101"),
        ({"uplink": "4"}, ["cuda:1"], "a device has one cap that can be changed"),
        ({}, ["cuda:1"], "a device has one cap that can be changed"),
    ],
)
def test_a_change_that_cannot_be_is_one_sentence_and_changes_nothing(
    texts: dict[str, str], devices: list[str], said: str
) -> None:
    own = caps(Local(), uplink=8)
    with pytest.raises(BadConfig, match=said):
        own.change(texts, devices)
    assert own.now == Caps(8, None, 100)
