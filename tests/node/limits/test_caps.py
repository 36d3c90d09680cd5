"""The owner's caps: two sets, by hand and by hours, and the bytes of a month."""

from datetime import datetime
from typing import Any

import pytest

from echo2.node.config import NodeConfig
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
