"""The limits of each device: temperature, power, and the share of the time in which it computes.

Rules
1. A device that is hotter than `hottest` rests until it is `COOLER` degrees below. Each device has the limits of its
   own table of the settings, where it has one. A table of a device on which this node does not compute is said in the
   log, and does no harm: another node of this user may read the same file.
2. `power` is the driver's limit of the card where this user may set it, and is put back at the end. Where only root
   may, the log has the command to run, and the device computes for a smaller share of the time until its mean power is
   below `power`.
3. The share of the time is the smaller of that of the caps in force (node/limits/caps.py) and that of rule 2.
4. A sensor that a machine lacks is said once; its limit is then without effect.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

import structlog

from echo2.engines.devices.devices import names_device, value_for
from echo2.engines.process.versioned import VersionedEngine
from echo2.node.config import NodeConfig
from echo2.node.errors import BadConfig
from echo2.node.limits.caps import OwnerCaps
from echo2.node.owner.device_sensors import NOTHING_READ, DeviceReading, DeviceSensors, PowerLimit
from echo2.node.run_state import DeviceRunState

COOLER: Final = 10.0
LOOK_SECONDS: Final = 5.0
LEAST_DUTY: Final = 5
_MEMORY: Final = 0.2
"""Weight of a new reading in the mean power: some 25 s."""

_log = structlog.get_logger("node")


class HeatRule:
    """Rule 1 for one device. Pure."""

    def __init__(self) -> None:
        self._hot = False

    def note(self, temperature: float | None, hottest: float) -> str:
        """Return why the device rests at a temperature, a sentence; empty: it works."""
        if temperature is not None:
            self._hot = temperature > hottest - (COOLER if self._hot else 0.0)
        if not self._hot or temperature is None:
            return ""
        return (
            f"the device has {temperature:.0f} °C, of at most {hottest:g} (setting hottest): work goes on at "
            f"{hottest - COOLER:g} °C"
        )


class PowerRule:
    """Rule 2's share of the time for one device. Pure."""

    def __init__(self, most: int) -> None:
        self._most, self._mean = most, 0.0
        self.duty = 100

    def note(self, watts: float | None, *, working: bool) -> int:
        """Return the percent of the time in which the device computes, after another reading."""
        if watts is not None and working:
            self._mean += (watts - self._mean) * (_MEMORY if self._mean else 1.0)
            step = max(0.8, min(1.1, self._most / max(self._mean, 1.0)))
            self.duty = max(LEAST_DUTY, min(100, int(self.duty * step + 0.5)))
        return self.duty


class DeviceLimits:
    """The limits of a node's devices. `states`: states of the devices, in the order of the engines.
    `sensors`: None: nothing can be read. `caps`: caps in force."""

    def __init__(
        self, config: NodeConfig, engines: Sequence[VersionedEngine], states: Sequence[DeviceRunState],
        sensors: DeviceSensors | None, caps: OwnerCaps,
    ) -> None:  # fmt: skip
        self._config, self._engines, self._states, self._sensors = config, engines, states, sensors
        self._caps = caps
        self._heat = [HeatRule() for _ in engines]
        self._power: dict[int, PowerRule] = {}
        self._said = set[str]()
        for engine in engines:
            engine.duty = caps.now.duty_of(engine.device_name)

    def limit_of(self, key: str, number: int) -> Any:
        """Return the limit of an engine's device, by its name in the settings; None: it has none."""
        return value_for(self._config.by_device(key), self._engines[number].device_name)

    async def put_duties(self) -> None:
        """Let each device compute for its share of the time."""
        for number in range(len(self._engines)):
            await self._put_duty(number)

    async def run(self) -> None:
        """Keep the limits until cancelled. Raises `BadConfig` for a power that a card cannot have."""
        set_limits = await self._cap_power()
        try:
            while self._config.devices or self._config.hottest is not None or self._power:
                self._name_unused()
                readings = await self._sensors.read_all(self._engines) if self._sensors and self._needs_sensors else []
                for number, reading in enumerate(readings or [NOTHING_READ] * len(self._engines)):
                    await self._look(number, reading)
                await asyncio.sleep(LOOK_SECONDS)
            await asyncio.Event().wait()
        finally:
            for limit in set_limits:
                with contextlib.suppress(OSError):
                    limit.put_back()

    @property
    def _needs_sensors(self) -> bool:
        """Whether some limit is kept by what is read: a table may have a duty or a reserve alone."""
        return bool(self._power) or any(limit is not None for limit in self._config.by_device("hottest").values())

    async def _cap_power(self) -> list[PowerLimit]:
        """Set the drivers' limits, and say where that is not possible (rule 2); return those that were set."""
        done = list[PowerLimit]()
        for number, engine in enumerate(self._engines):
            if (watts := self.limit_of("power", number)) is None:
                continue
            kind, name = (engine.probed.kind, engine.probed.name) if engine.probed else ("", "")
            limit = self._sensors.power_limit(kind, name) if self._sensors is not None else None
            if limit is not None and not limit.least <= watts <= limit.most:
                raise BadConfig(
                    f"power {watts}: {name} takes from {limit.least:.0f} to {limit.most:.0f} W: choose one of these"
                )
            if limit is not None and limit.present <= watts:
                continue
            try:
                if limit is None:
                    raise OSError("no driver's limit can be seen")
                limit.put(watts)
                done.append(limit)
            except OSError as error:
                command = limit.command(watts) if limit is not None else ""
                self._power[number] = PowerRule(watts)
                _log.warning("power capped by pauses", device=kind, watts=watts, reason=str(error), better=command)
        return done

    async def _look(self, number: int, reading: DeviceReading) -> None:
        state, engine = self._states[number], self._engines[number]
        if (hottest := self.limit_of("hottest", number)) is not None:
            self._say_missing("temperature", reading.temperature, number)
            state.give_way(self._heat[number].note(reading.temperature, hottest), LOOK_SECONDS)
        if (rule := self._power.get(number)) is not None:
            self._say_missing("power", reading.watts, number)
            rule.note(reading.watts, working=not state.paused and engine.rows.running > 0)
        await self._put_duty(number)

    async def _put_duty(self, number: int) -> None:
        engine, rule = self._engines[number], self._power.get(number)
        await engine.change_duty(min(self._caps.now.duty_of(engine.device_name), 100 if rule is None else rule.duty))

    def _name_unused(self) -> None:
        """Say which tables are of devices on which this node does not compute, once these are chosen."""
        names = [engine.device_name for engine in self._engines]
        if any(engine.chooser is not None and not engine.chosen for engine in self._engines):
            return
        for name in self._config.devices.keys() - self._said:
            self._said.add(name)
            if not any(names_device(name, device) for device in names):
                _log.warning("limits of a device that is not used", device=name, devices=", ".join(names))

    def _say_missing(self, what: str, value: float | None, number: int) -> None:
        name = f"{what} of {self._engines[number].device}"
        if value is None and name not in self._said and self._engines[number].probed is not None:
            self._said.add(name)
            _log.warning("limit without a sensor", limit=name)
