"""The devices on which a node computes, and the engine for each, from the owner's settings.

Rules
1. GPUs that are named by numbers alone, or `all`, get their kind from the first engine that sees any
   (engines/process/device_list.py).
2. One device gets the owner's engine, which may be auto. Each of several gets it too; for auto it is the first engine
   installed that computes on such a device, and in the owner's number format.
3. Settings that no machine could meet are `BadConfig`: an engine that is not in this build, or that has not the number
   format or the kind of device. `NoUsableDevice` is for things that this machine alone lacks: the engine's packages,
   the device.
"""

from collections.abc import Sequence

from echo2.engines import registry
from echo2.engines.devices.devices import NoDevice
from echo2.engines.engine import Dtype, dtype_named
from echo2.engines.process.candidates import Candidate
from echo2.engines.process.device_list import ALL_DEVICES, device_list, hardware_of, has_bare_numbers, numbered_devices
from echo2.engines.process.trials import Make, sights
from echo2.engines.temperature import RULES, rule_of
from echo2.node.config import NodeConfig
from echo2.node.errors import BadConfig, NoUsableDevice
from echo2.protocol.authority import RunSpec
from echo2.protocol.engine_classes import admits, parts


async def with_devices(config: NodeConfig, make: Make) -> NodeConfig:
    """Return the settings with every GPU named by its kind. Raises `NoUsableDevice`, `BadConfig`."""
    check_engine(config)
    if not has_bare_numbers(config.gpu):
        try:
            device_list(config.gpu)
        except NoDevice as error:
            raise BadConfig(str(error)) from error
        return config
    try:
        devices = numbered_devices(config.gpu, await sights(make, _engines(config)))
    except NoDevice as error:
        raise NoUsableDevice(str(error)) from error
    return config.model_copy(update={"gpu": ",".join(devices)})


def check_engine(config: NodeConfig) -> None:
    """Check the engine that the settings name against rule 3. Raises `BadConfig`."""
    if config.engine == registry.AUTO_ENGINE:
        return
    try:
        row = registry.engine_row(config.engine)
        if (dtype := dtype_named(config.dtype)) is not None:
            row.check(dtype)
    except registry.UnknownEngine as error:
        raise BadConfig(str(error)) from error
    if row is registry.SERVER and ("," in config.gpu or config.gpu == ALL_DEVICES):
        raise BadConfig(f"--gpu {config.gpu}: a server that runs already is one engine: leave --gpu out")
    kinds = [] if has_bare_numbers(config.gpu) else [one.partition(":")[0] for one in config.gpu.split(",")]
    for kind in kinds:
        if kind not in (registry.AUTO_ENGINE, *row.devices):
            raise BadConfig(
                f"--gpu {config.gpu}: engine {row.name} computes on {', '.join(row.devices)}, not on {kind}"
            )


def engine_for(device: str, config: NodeConfig) -> str:
    """Return the engine for a device (rule 2)."""
    if config.engine != registry.AUTO_ENGINE or "," not in config.gpu:
        return config.engine
    kind, dtype = device.partition(":")[0], dtype_named(config.dtype)
    rows = map(registry.choose, registry.installed_engines())
    able = (row.name for row in rows if kind in row.devices and (dtype is None or dtype in row.dtypes))
    return next(able, registry.AUTO_ENGINE)


def dtype_for(runspec: RunSpec, engine_class: str) -> Dtype:
    """Return the number format that a run wants of an engine whose owner names none: the run's own, or where the run
    does not admit the engine in it, the first in which it does. `engine_class`: the engine's, in any format."""
    own = dtype_named(runspec.compute_dtype) or "float32"
    name, _, kind = parts(engine_class)
    row = registry.find(name)
    able = [own, *(row.dtypes if row is not None else ())]
    return next((one for one in able if admits(f"{name}/{one}/{kind}", runspec.engines)), own)


def spread_over(config: NodeConfig, cards: Sequence[Candidate]) -> NodeConfig:
    """Return the settings of a node that computes on all of several equal cards; as they are for fewer than two."""
    if len(cards) < 2:
        return config
    devices = ",".join(one.device for one in cards)
    return config.model_copy(update={"gpu": devices, "engine": cards[0].engine, "dtype": cards[0].dtype})


def sampling_fault(engine_class: str, runspec: RunSpec) -> str:
    """Return why an engine cannot choose tokens as a run says; empty: it can."""
    fault = registry.fault_of_sampling(parts(engine_class)[0], runspec.sampling)
    if not fault and runspec.sampling in RULES and runspec.sampling != rule_of(runspec.temperature):
        return f"the run contradicts itself: rule {runspec.sampling}, temperature {runspec.temperature / 1000}"
    return fault


async def candidates_of(config: NodeConfig, make: Make, compute_dtype: str) -> list[Candidate]:
    """Return what a node with these settings, which name devices, would compute with, a candidate per device.
    `compute_dtype`: the run's number format. Raises `NoUsableDevice`, `BadConfig`."""
    config = await with_devices(config, make)
    seen = {one.engine: one for one in await sights(make, _engines(config))}
    dtype = dtype_named(config.dtype) or dtype_named(compute_dtype) or "float32"
    rows = [(device, registry.choose(engine_for(device, config)).name) for device in device_list(config.gpu)]
    return [
        Candidate(engine=engine, dtype=dtype, device=device, hardware=hardware_of(device, seen[engine].inventory))
        for device, engine in rows
    ]


def _engines(config: NodeConfig) -> list[str]:
    return registry.installed_engines() if config.engine == registry.AUTO_ENGINE else [config.engine]
