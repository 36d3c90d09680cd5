"""The limits of a device: heat with hysteresis, a power cap by the driver or by pauses, and the share of the time."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from echo2.node.errors import BadConfig
from echo2.node.limits.device_limits import LEAST_DUTY, LOOK_SECONDS, HeatRule, PowerRule
from echo2.node.owner.device_sensors import NOTHING_READ, DeviceReading, DeviceSensors, PowerLimit
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import InProcessEngine, until
from tests.support.small_run import SmallRun


class StandInSensors(DeviceSensors):
    """Sensors that show what a test sets. `limit`: the driver's limit."""

    def __init__(self) -> None:
        super().__init__(_no_cards, Path("/nowhere"))
        self.shown, self.limit = DeviceReading(temperature=50.0, watts=100.0), None  # type: PowerLimit | None
        self.looks = 0

    def read(self, device: str, name: str) -> DeviceReading:
        self.looks += 1
        return self.shown

    def power_limit(self, device: str, name: str) -> PowerLimit | None:
        return self.limit


def _no_cards() -> Any:
    raise OSError("no card")


def test_a_hot_device_rests_until_it_is_ten_degrees_cooler() -> None:
    rule = HeatRule()
    assert [bool(rule.note(degrees, 80)) for degrees in (79, 80, 81, 79, 71, 70, 75)] == [
        False, False, True, True, True, False, False,
    ]  # fmt: skip
    assert rule.note(None, 80) == ""
    assert rule.note(90, 80) == "the device has 90 °C, of at most 80 (setting hottest): work goes on at 70 °C"


def test_a_device_above_its_power_computes_less_until_its_mean_is_below() -> None:
    rule, full, idle = PowerRule(150), 300.0, 50.0
    for _ in range(200):
        duty = rule.note(idle + (full - idle) * rule.duty / 100, working=True)
    assert abs(idle + (full - idle) * duty / 100 - 150) < 8
    for _ in range(200):
        rule.note(60.0, working=True)
    assert rule.duty == 100
    assert PowerRule(1).note(None, working=True) == 100
    least = PowerRule(1)
    for _ in range(200):
        least.note(300.0, working=True)
    assert least.duty == LEAST_DUTY


@on_fake_clock
async def test_a_hot_device_pauses_its_node_and_why_names_it(small_run: SmallRun) -> None:
    sensors = StandInSensors()
    async with small_run.working(hottest=80, sensors=sensors) as node:
        await until(lambda: node.daemon.rollouts.working)
        sensors.shown = DeviceReading(temperature=85.0)
        await until(lambda: node.daemon.device_states[0].paused, 2 * LOOK_SECONDS)
        why = await node.daemon.commands.why({})
        assert why["blocked"].startswith("the device has 85 °C")
        sensors.shown = DeviceReading(temperature=69.0)
        await until(lambda: node.daemon.rollouts.working, 4 * LOOK_SECONDS)


@on_fake_clock
async def test_a_limit_that_only_root_may_set_is_kept_by_pauses_and_the_command_is_said(
    small_run: SmallRun,
) -> None:
    def refuse(watts: float) -> None:
        raise OSError("nvmlDeviceSetPowerManagementLimit failed with 4")

    sensors = StandInSensors()
    sensors.limit = PowerLimit(300.0, 100.0, 350.0, refuse, lambda watts: f"sudo nvidia-smi -i 0 -pl {watts:.0f}")
    sensors.shown = DeviceReading(watts=290.0)
    with structlog.testing.capture_logs() as logs:
        async with small_run.working(power=150, sensors=sensors, engine=InProcessEngine(seconds=7.0)) as node:
            await until(lambda: node.daemon.engine.duty < 100, 100)
    (said,) = [one for one in logs if one["event"] == "power capped by pauses"]
    assert said["better"] == "sudo nvidia-smi -i 0 -pl 150"


@on_fake_clock
async def test_a_limit_that_this_user_may_set_is_put_back_at_the_end(small_run: SmallRun) -> None:
    put, sensors = list[float](), StandInSensors()
    sensors.limit = PowerLimit(300.0, 100.0, 350.0, put.append, lambda watts: "")
    async with small_run.working(power=150, sensors=sensors) as node:
        await until(lambda: put)
        assert node.daemon.engine.duty == 100
    assert put == [150, 300.0]


@on_fake_clock
async def test_a_power_that_the_card_does_not_know_ends_the_node_with_its_range(small_run: SmallRun) -> None:
    sensors = StandInSensors()
    sensors.limit = PowerLimit(300.0, 100.0, 350.0, lambda watts: None, lambda watts: "")
    async with small_run.serving():
        node = small_run.node(power=20, sensors=sensors)
        with pytest.raises(BadConfig, match="takes from 100 to 350 W"):
            await node.daemon.run()


@on_fake_clock
async def test_slow_changes_the_share_of_the_time_of_an_engine(small_run: SmallRun) -> None:
    async with small_run.working(slow_duty=30) as node:
        await until(lambda: node.daemon.rollouts.working)
        await node.daemon.commands.slow({"slow": True})
        assert node.daemon.engine.duty == 30
        await node.daemon.commands.slow({"slow": False})
        assert node.daemon.engine.duty == 100


TWO: dict[str, Any] = {"gpu": "cuda:0,cuda:1", "make": InProcessEngine}


@on_fake_clock
async def test_each_device_has_its_own_share_of_the_time_and_the_owner_changes_it_by_hand(small_run: SmallRun) -> None:
    limits = {"1": {"duty": 30, "reserve": 2}, "7": {"duty": 5}}
    with structlog.testing.capture_logs() as logs:
        async with small_run.working(**TWO, devices=limits, duty=80, slow_duty=50) as node:
            engines, commands = node.daemon.fleet.engines, node.daemon.commands
            await until(lambda: all(worker.done for worker in node.daemon.rollouts.workers))

            def duties() -> list[int]:
                return [engine.duty for engine in engines]

            assert duties() == [80, 30]
            rows = (await commands.status({}))["engines"]
            assert [(row["device"], row["duty"], row["reserve"]) for row in rows] == [
                ("cuda:0", 80, None), ("cuda:1", 30, 2_000_000_000),
            ]  # fmt: skip
            assert (await commands.why({}))["limits"][1] == {
                "device": "cuda:1", "duty": 30, "hottest": None, "power": None, "reserve": 2_000_000_000,
            }  # fmt: skip
            answer = await commands.caps({"changes": {"duty": "60"}, "gpu": "1"})
            assert (duties(), answer["changed"][:19]) == ([80, 60], "until the node ends")
            assert answer["devices"] == [{"device": "cuda:0", "duty": 80}, {"device": "cuda:1", "duty": 60}]
            await commands.slow({"slow": True})
            assert duties() == [50, 30]
            await commands.slow({"slow": False})
            await commands.caps({"changes": {"duty": "90", "uplink": "4"}})
            assert (duties(), node.daemon.connectivity.plan_client.limits.uplink) == ([90, 90], 500_000)
            with pytest.raises(BadConfig, match="no device 7: it computes on cuda:0, cuda:1"):
                await commands.caps({"changes": {"duty": "60"}, "gpu": "7"})
            assert (await commands.caps({}))["changed"] == ""
    (said,) = [one for one in logs if one["event"] == "limits of a device that is not used"]
    assert (said["device"], said["devices"]) == ("7", "cuda:0, cuda:1")


@on_fake_clock
async def test_each_device_has_its_own_heat_and_power(small_run: SmallRun) -> None:
    put, sensors = list[float](), StandInSensors()
    sensors.limit = PowerLimit(300.0, 100.0, 350.0, put.append, lambda watts: "")
    sensors.shown = DeviceReading(temperature=75.0)
    limits = {"0": {"power": 150}, "cuda:1": {"hottest": 70}}
    async with small_run.working(**TWO, devices=limits, hottest=80, power=350, sensors=sensors) as node:
        await until(lambda: node.daemon.device_states[1].paused, 4 * LOOK_SECONDS)
        assert not node.daemon.device_states[0].paused
        rows = (await node.daemon.commands.why({}))["devices"]
        assert [(row["device"], row["blocked"][:44]) for row in rows] == [
            ("cuda:1", "the device has 75 °C, of at most 70 (setting"),
        ]  # fmt: skip
        assert put == [150]


@pytest.mark.parametrize(("limit", "looked"), [({"duty": 50}, False), ({"hottest": 80.0}, True)])
@on_fake_clock
async def test_sensors_are_read_for_heat_and_power_alone(
    small_run: SmallRun, limit: dict[str, float], looked: bool
) -> None:
    sensors = StandInSensors()
    async with small_run.working(devices={"cpu": limit}, sensors=sensors) as node:
        await until(lambda: node.daemon.rollouts.working)
        await asyncio.sleep(3 * LOOK_SECONDS)
    assert (sensors.looks > 0) == looked


def test_a_driver_that_hangs_keeps_one_thread() -> None:
    ends, begun = threading.Event(), list[str]()

    class HangingSensors(StandInSensors):
        def read(self, device: str, name: str) -> DeviceReading:
            begun.append(device)
            ends.wait(60)
            return self.shown

    async def main() -> None:
        sensors = HangingSensors()
        engines: Any = [SimpleNamespace(probed=SimpleNamespace(kind="cuda:0", name="RTX 3060"))]
        try:
            assert [await sensors.read_all(engines) for _ in range(2)] == [[NOTHING_READ]] * 2
            assert begun == ["cuda:0"]
        finally:
            ends.set()

    asyncio.run(main())
