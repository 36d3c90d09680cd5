"""The share of the time in which an engine's process computes, and the memory that its owner keeps."""

import os
from collections.abc import Sequence
from typing import Any

import pytest

from echo2.engines.devices.memory_reserve import RESERVE_VARIABLE, less_reserve, settle_reserve
from echo2.engines.process import host as host_module
from echo2.engines.process.host import MOST_NAP, EngineHost
from echo2.engines.process.messages import DutyCall


class Clock:
    """A clock, as `time` has it, on which sleeping takes its time and nothing else does. `slept`: naps, seconds."""

    def __init__(self) -> None:
        self.now, self.slept = 50.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Host(EngineHost):
    """A host whose steps take 0.1 s each."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock, self.steps = clock, 0
        self._groups = {1}

    def _generate(self) -> Sequence[tuple[int, object]]:
        self._clock.now += 0.1
        self.steps += 1
        return []


@pytest.mark.parametrize(("percent", "share"), [(100, 1.0), (50, 0.5), (5, 0.05)])
def test_steps_take_their_share_of_the_time_in_naps_between_which_calls_are_answered(
    percent: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(host_module, "time", clock)
    host: Any = Host(clock)
    host.duty(DutyCall(percent=percent))
    began = clock.now
    while clock.now < began + 60.0:
        assert list(host.step()) == []
    assert host.steps * 0.1 / (clock.now - began) == pytest.approx(share, rel=0.05)
    assert max(clock.slept, default=0.0) <= MOST_NAP


def test_the_owners_reserve_is_not_counted_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RESERVE_VARIABLE, raising=False)
    assert less_reserve(10) == 10
    monkeypatch.setenv(RESERVE_VARIABLE, "4")
    assert (less_reserve(10), less_reserve(3)) == (6, 0)
    monkeypatch.setenv(RESERVE_VARIABLE, "much")
    assert less_reserve(10) == 10


@pytest.mark.parametrize(
    ("device", "left"), [("cuda:0", 8), ("cuda:1", 5), ("vulkan:2", 10), ("cpu", 6)], ids=lambda one: str(one)
)
def test_a_device_has_the_reserve_of_its_name_or_number_else_that_of_all(
    monkeypatch: pytest.MonkeyPatch, device: str, left: int
) -> None:
    monkeypatch.setenv(RESERVE_VARIABLE, "=2 cuda:1=5 2=0 cpu=4")
    settle_reserve(device, os.environ)
    assert less_reserve(10) == left
