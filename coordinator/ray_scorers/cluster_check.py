"""Check, before anything is signed or started, that Ray has the scorers that the settings ask for.

A program that reaches the ports of a cluster of Ray runs code on all of its hosts, and Ray encrypts nothing by default.
So a cluster that asks for no token is refused, and `NETWORK_WARNING` is said wherever one is named.
"""

import asyncio
import importlib.util
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from echo2.coordinator.ray_scorers.messages import Cluster, ClusterFacts
from echo2.coordinator.ray_scorers.remote_engine import RayCluster
from echo2.coordinator.settings.scorer_config import ScorerSection
from echo2.engines.process.supervisor import Restarts
from echo2.runtime.backoff import Backoff
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.declared_requirements import version_of
from echo2.runtime.errors import LocalFault
from echo2.runtime.installation import command_adding
from echo2.runtime.printable import printable
from echo2.runtime.settings import SettingsFault

NETWORK_WARNING: Final = "its network must be private: whoever reaches Ray's ports runs code on its hosts"
_PASSED: Final = ("HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR", "XDG_CACHE_HOME")


def driver_environment(environ: Mapping[str, str], more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of the driver: what Python and Ray need of the coordinator's. `more`: further ones."""
    passed = {name: value for name, value in environ.items() if name in _PASSED or name.startswith("RAY_")}
    return passed | dict(more or {})


def check_cluster(section: ScorerSection) -> str:
    """Check the cluster of `scorer.ray`, where it is set; return what it has, in words. Raises `SettingsFault`,
    `LocalFault`."""
    if not section.ray:
        return ""
    if importlib.util.find_spec("ray") is None:
        raise LocalFault(f"scorer.ray needs Ray, which this installation of echo2 lacks: {command_adding('ray')}")
    cluster, facts = asyncio.run(_look(section.ray))
    if not facts.secured:
        raise SettingsFault(
            f"scorer.ray is {section.ray}, whose Ray asks for no token: start it anew on each host with "
            "RAY_AUTH_MODE=token (docs/several-gpus.md)"
        )
    if facts.echo2 != (here := version_of("echo2")):
        raise SettingsFault(
            f"scorer.ray is {section.ray}, whose hosts have echo2 {printable(facts.echo2) or 'not at all'}, and this "
            f"one {here}: install the same on all"
        )
    gpus = sum(device != "cpu" for device in section.ray_devices)
    cpus = len(section.ray_devices) - gpus
    for wanted, present, what in ((gpus, cluster.gpus, "GPUs"), (cpus, cluster.cpus, "CPUs")):
        if wanted > present:
            raise SettingsFault(
                f"scorer.devices asks Ray for {wanted} {what}, and its hosts have {present:g}: name fewer, or add hosts"
            )
    return f"Ray at {section.ray} has {cluster.gpus:g} GPUs and {cluster.cpus:g} CPUs for {section.number} scorers"


async def _look(address: str) -> tuple[Cluster, ClusterFacts]:
    with tempfile.TemporaryDirectory(prefix="echo2-ray-") as folder:
        ray = RayCluster(address, Path(folder), driver_environment(os.environ), Restarts(Backoff(0.1, 1.0)))
        try:
            return await ray.look()
        except ChildError as error:
            why = error.message
        except ChildDied as death:
            why = str(death)
        except TimeoutError:
            why = "it does not answer"
        finally:
            await ray.stop()
    raise LocalFault(f"scorer.ray is {address}, which this host cannot join: {printable(why)}")
