"""A cluster of Ray on this machine: a control service, and raylets in processes of their own."""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).absolute().parents[2]
TOKEN = secrets.token_hex(32)
"""The token of this process's clusters: Ray reads it once, when it is imported."""


class RayHosts:
    """The cluster. `address`: HOST:PORT of its control service. Its first host, where the driver is, runs no scorer."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address
        self.hosts = list[Any]()

    def add(self, **resources: float) -> None:
        """Add a host."""
        self.hosts.append(self._cluster.add_node(**resources))

    def raylet(self, host: Any) -> psutil.Process:
        """Return the process that is a host."""
        return psutil.Process(host.all_processes["raylet"][0].process.pid)

    def actors(self) -> list[psutil.Process]:
        """Return the living processes of actors, the oldest first."""
        actors = [actor for host in self.hosts for actor in self.actors_of(host)]
        return sorted(actors, key=lambda one: one.create_time())

    def actors_of(self, host: Any) -> list[psutil.Process]:
        """Return the living processes of a host's actors."""
        try:
            return [one for one in self.raylet(host).children(recursive=True) if _is_actor(one)]
        except psutil.NoSuchProcess:
            return []


def _is_actor(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and "ray::ScorerActor" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


@contextmanager
def ray_hosts(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[RayHosts]:
    """Run a cluster whose hosts keep their weights in `folder`. `env`: further variables of the hosts."""
    more = {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "XDG_CACHE_HOME": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", **(env or {}),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }  # fmt: skip
    with _environment(more):
        from ray.cluster_utils import Cluster

        first = {"num_cpus": 0, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=first)
        try:
            yield RayHosts(cluster)
        finally:
            cluster.shutdown()


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """Have these variables within the block: what is started gets them."""
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
