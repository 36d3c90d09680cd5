"""The devices on which a node computes, and the engine for each, from the owner's settings.

Rules
1. GPUs that are named by numbers alone, or `all`, get their kind from the first engine that sees any
   (engines/device_list.py). A setting that no machine could meet is `BadConfig`; one that this machine cannot meet is
   `NoUsableDevice`.
2. One device gets the owner's engine, which may be auto. Each of several gets it too; for auto it is the first engine
   installed that computes on such a device, and in the owner's number format.
"""

from engines import registry
from engines.candidates import Candidate
from engines.device_list import device_list, hardware_of, numbered, numbered_devices
from engines.devices import NoDevice
from engines.engine import dtype_named
from engines.trials import Make, sights
from node.config import NodeConfig
from node.errors import BadConfig, NoUsableDevice


async def with_devices(config: NodeConfig, make: Make) -> NodeConfig:
    """Return the settings with every GPU named by its kind. Raises `NoUsableDevice`, `BadConfig`."""
    if config.engine == registry.SERVER.name and ("," in config.gpu or config.gpu == "all"):
        raise BadConfig(f"--gpu {config.gpu}: a server that runs already is one engine: leave --gpu out")
    if not numbered(config.gpu):
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


def engine_for(device: str, config: NodeConfig) -> str:
    """Return the engine for a device (rule 2)."""
    if config.engine != registry.AUTO or "," not in config.gpu:
        return config.engine
    kind, dtype = device.partition(":")[0], dtype_named(config.dtype)
    rows = map(registry.choose, registry.installed())
    able = (row.name for row in rows if kind in row.devices and (dtype is None or dtype in row.dtypes))
    return next(able, registry.AUTO)


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
    return registry.installed() if config.engine == registry.AUTO else [config.engine]
