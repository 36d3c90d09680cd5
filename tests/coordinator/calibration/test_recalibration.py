"""Test the times at which a class is calibrated again, and a failure of it: on a fake clock, without engines."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from echo2.coordinator.calibration import recalibration
from echo2.coordinator.calibration.recalibration import CALIBRATION_RETRY_SECONDS, Recalibration, VersionNumber, due
from echo2.coordinator.verification.calibration import Calibration
from echo2.runtime.errors import LocalFault
from tests.support.clock import on_fake_clock

ROUNDING = "bfloat16"
CLASSES = ["transformers/bfloat16/cpu", "vllm/bfloat16/cuda"]
DEVICES = ["vllm/bfloat16/cuda, a card"]


def made_with(version: int, era: int = 1, rounding: str = ROUNDING, at: int = 1) -> Calibration:
    return Calibration(
        run=bytes(32), rounding=rounding, classes=CLASSES, builds=[], era=era, version=version, root=bytes(32),
        machines={}, tables={}, bound=1, at=at, devices=DEVICES,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("at", "every", "is_due"),
    [
        (VersionNumber(1, 209), 200, False),
        (VersionNumber(1, 210), 200, True),
        (VersionNumber(1, 5_000), 0, False),
        (VersionNumber(2, 11), 200, True),
    ],
)
def test_a_class_is_due_after_so_many_versions_or_in_another_era(at: VersionNumber, every: int, is_due: bool) -> None:
    assert due([made_with(10)], at, every) == ([ROUNDING] if is_due else [])


class Calibrations:
    """Stands in for the calibration: takes 60 s each, fails while `fault` is set, and moves the class on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.newest = {ROUNDING: made_with(0)}
        self.published: VersionNumber | None = None
        self.fault: LocalFault | None = None
        self.tried: list[float] = []
        self.opened = 0
        monkeypatch.setattr(recalibration, "calibrate_classes", self._calibrate)
        run: Any = SimpleNamespace(config=SimpleNamespace(calibration=SimpleNamespace(every=200, tokens=2_000)))
        self.recalibration = Recalibration(
            run, self.newest.values, lambda: self.published, self._opened, lambda: int(anyio.current_time() * 1000)
        )

    async def _calibrate(self, run: object, classes: list[str], tokens: int, now: int, devices: list[str]) -> Path:
        """Each is made at time 1 of the run, as by a clock that was set back."""
        assert (classes, devices, tokens, self.published is not None) == (CLASSES, DEVICES, 2_000, True)
        self.tried.append(anyio.current_time())
        await anyio.sleep(60)
        if self.fault:
            raise self.fault
        self.newest[ROUNDING] = made_with(self.published.version)
        return Path("new.calibration")

    def _opened(self) -> None:
        self.opened += 1


@pytest.fixture
def calibrations(monkeypatch: pytest.MonkeyPatch) -> Calibrations:
    return Calibrations(monkeypatch)


@on_fake_clock
async def test_a_class_is_calibrated_each_two_hundred_versions_while_others_work(calibrations: Calibrations) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calibrations.recalibration.run)
        await anyio.sleep(100)
        assert calibrations.tried == []
        for version in range(0, 1_000, 10):  # a version per second
            calibrations.published = VersionNumber(1, version)
            await anyio.sleep(10)
        tasks.cancel_scope.cancel()
    assert 4 <= len(calibrations.tried) <= 5
    assert calibrations.opened >= 3


@on_fake_clock
async def test_a_calibration_that_fails_leaves_the_old_one_and_is_tried_again_after_an_hour(
    calibrations: Calibrations,
) -> None:
    calibrations.published, calibrations.fault = VersionNumber(1, 300), LocalFault("no memory")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calibrations.recalibration.run)
        await anyio.sleep(CALIBRATION_RETRY_SECONDS)
        assert len(calibrations.tried) == 1
        assert calibrations.newest[ROUNDING].version == 0
        calibrations.fault = None
        await anyio.sleep(200)
        tasks.cancel_scope.cancel()
    assert len(calibrations.tried) == 2
    assert calibrations.newest[ROUNDING].version == 300
    assert calibrations.opened == 1


@on_fake_clock
async def test_a_class_in_which_a_day_ended_in_doubt_is_calibrated_once_for_that_day(
    calibrations: Calibrations,
) -> None:
    to_come = calibrations.recalibration.to_come
    calibrations.published = VersionNumber(1, 0)
    assert not to_come(ROUNDING, 500), "its own engines would generate with the same weights again"
    calibrations.published = VersionNumber(1, 3)
    assert not to_come(ROUNDING, 1), "it was made after that day"
    assert not to_come("another class", 500)
    assert to_come(ROUNDING, 500)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calibrations.recalibration.look)
        await anyio.sleep(30)
        assert to_come(ROUNDING, 500), "it is being made"
    assert len(calibrations.tried) == 1
    calibrations.published = VersionNumber(1, 9)
    assert not to_come(ROUNDING, 500)
    await calibrations.recalibration.look()
    assert len(calibrations.tried) == 1
    assert to_come(ROUNDING, 900), "a later day"
    await calibrations.recalibration.look()
    assert len(calibrations.tried) == 2


@on_fake_clock
async def test_no_day_waits_for_a_calibration_that_this_machine_cannot_make(calibrations: Calibrations) -> None:
    calibrations.published, calibrations.fault = VersionNumber(1, 3), LocalFault("no such device")
    assert calibrations.recalibration.to_come(ROUNDING, 500)
    await calibrations.recalibration.look()
    assert not calibrations.recalibration.to_come(ROUNDING, 500)
