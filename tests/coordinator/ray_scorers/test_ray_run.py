"""Scorers of Ray on a cluster of this machine, with an engine without a model: deaths, hangs, and what is refused."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import TypeVar

import psutil
import pytest

from benchmarks.attacks.light_node import lease_of, opened
from benchmarks.load.bare import Bare, bare, until
from benchmarks.load.folder import make_run
from benchmarks.load.light import LightNode
from benchmarks.scorers.ray_hosts import RayHosts, ray_hosts
from benchmarks.scorers.slow_scorer import VARIABLE
from echo2.coordinator.command_line.serving import scorers_of_run
from echo2.coordinator.ray_scorers.cluster_check import check_cluster
from echo2.coordinator.run import key_checks
from echo2.coordinator.settings.computing import Computing
from echo2.coordinator.settings.scorer_config import ScorerSection
from echo2.runtime import stand_ins
from echo2.runtime.errors import LocalFault

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray: make test-ray"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]
GROUPS, GROUP, TOKENS = 120, 4, 20

T = TypeVar("T")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHosts]:
    env = {stand_ins.VARIABLE: "scorer=benchmarks.scorers.slow_scorer", VARIABLE: "0.002"}
    with ray_hosts(tmp_path_factory.mktemp("ray"), env) as cluster:
        for _ in range(3):
            cluster.add(num_cpus=1, num_gpus=1)
        yield cluster


async def submitted(at: Bare, groups: int) -> None:
    """Have so many groups handed in."""
    node = LightNode(at.terms(TOKENS))
    await at.ask("hello", node.hello())
    for _ in range(groups):
        answer = opened(await at.ask("lease", node.ask()))
        assert isinstance(answer, bytes), answer
        await at.ask("submit", node.submit(lease_of(answer)))


def decided(at: Bare) -> int:
    return at.database.value("SELECT count(*) FROM verdicts WHERE verdict = 'accepted'")


async def more_decided(at: Bare, groups: int = 6) -> None:
    before = decided(at)
    await until(lambda: decided(at) >= min(GROUPS, before + groups))


def engine_of(actor: psutil.Process) -> psutil.Process | None:
    try:
        return next(iter(actor.children()), None)
    except psutil.NoSuchProcess:
        return None


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def eventually(look: Callable[[], T | None]) -> T:
    """Return what a look shows, once it shows something."""
    async with asyncio.timeout(120):
        while not (seen := look()):  # noqa: ASYNC110 (no event tells of it)
            await asyncio.sleep(0.002)
    return seen


async def test_no_death_and_no_hang_costs_a_verdict_or_gives_one_twice(hosts: RayHosts, tmp_path: Path) -> None:
    faults = list[str]()
    run = await asyncio.to_thread(
        make_run,
        tmp_path / "run", now=time.time_ns() // 1_000_000,
        run={"group_size": GROUP, "limit": TOKENS, "batch_groups": GROUPS, "staleness": 8},
        leases={"minimum_seconds": 600.0, "per_node": GROUPS, "canaries": 0.0, "audits": 0.0},
        https={"listen": ["/ip4/127.0.0.1/tcp/0"]},
        scorer={"ray": hosts.address, "devices": ("cuda",) * 3, "silence_seconds": 3.0},
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        cluster, scorers = scorers_of_run(run, Computing("cpu", 1, ""), faults.append)
        stack.push_async_callback(cluster.stop)
        for scorer in scorers:
            stack.push_async_callback(scorer.stop)
        at = await stack.enter_async_context(bare(run, scorers=scorers))
        await submitted(at, GROUPS)
        await more_decided(at)
        await until(lambda: len(hosts.actors()) == 3)
        first = hosts.actors()
        assert {one.parent() for one in first} == {hosts.raylet(host) for host in hosts.hosts}, "one on each host"
        for victim in first:
            victim.kill()
            await more_decided(at)
        await until(lambda: len({*hosts.actors()} - {*first}) == 3 and all(map(engine_of, hosts.actors())))
        hung = await eventually(lambda: engine_of(hosts.actors()[0]))
        os.kill(hung.pid, SIGSTOP)
        await until(lambda: any("ended as hung" in fault for fault in faults))
        await more_decided(at)
        lost = hosts.hosts.pop()
        orphans = await eventually(lambda: hosts.actors_of(lost))
        hosts.raylet(lost).kill()
        await until(lambda: not any(map(is_alive, orphans)))
        await more_decided(at)
        assert cluster.deaths == 0, "no death of an actor was one of the driver"
        os.kill(await eventually(lambda: cluster.pid), SIGKILL)
        await more_decided(at)
        hosts.add(num_cpus=1, num_gpus=1)
        await until(lambda: decided(at) == GROUPS)
        assert at.database.value("SELECT count(*) FROM undecided") == 0
        assert at.database.value("SELECT count(*) FROM verdicts") == GROUPS
        await until(lambda: len(hosts.actors()) == 3)


async def test_the_driver_has_no_keys_and_none_of_the_coordinators_environment(
    hosts: RayHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHO2_COORD_PASSPHRASE", "secret")
    run = await asyncio.to_thread(
        make_run,
        tmp_path / "run", now=time.time_ns() // 1_000_000, https={"listen": ["/ip4/127.0.0.1/tcp/0"]},
        scorer={"ray": hosts.address, "devices": ("cuda",)},
    )  # fmt: skip
    cluster, _ = scorers_of_run(run, Computing("cpu", 1, ""), print)
    assert cluster is not None
    try:
        await cluster.look()
        driver = psutil.Process(cluster.pid)
        assert "secret" not in driver.environ().values()
        assert driver.num_fds() < 4096
        keys = str(run.folder.keys.absolute())
        assert os.listdir(keys)
        assert not os.listdir(f"/proc/{driver.pid}/root{keys}"), "the driver sees no key"
    finally:
        await cluster.stop()


@pytest.mark.parametrize(
    ("section", "env", "sentence"),
    [
        ({"devices": ("cuda",) * 9}, {}, r"asks Ray for 9 GPUs, and its hosts have \d: name fewer, or add hosts"),
        ({"devices": ("cpu",) * 9}, {}, r"asks Ray for 9 CPUs, and its hosts have \d"),
        ({"ray": "127.0.0.1:1"}, {}, "which this host cannot join: nothing answers there"),
        ({"ray": "auto"}, {"RAY_TMPDIR": "/nowhere"}, "cannot join: no cluster of Ray runs on this host"),
        ({}, {"RAY_AUTH_TOKEN": "ab" * 32}, r"cannot join: .*its token, RAY_AUTH_TOKEN, is another"),
    ],
    ids=["too few GPUs", "too few CPUs", "no cluster", "none of this host", "another token"],
)
def test_a_cluster_that_does_not_fit_is_refused_in_a_sentence(
    hosts: RayHosts, monkeypatch: pytest.MonkeyPatch, section: dict[str, object], env: dict[str, str], sentence: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(LocalFault, match=sentence) as refused:
        check_cluster(ScorerSection(**{"ray": hosts.address, "devices": ("cuda",), **section}))  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def test_a_cluster_of_another_version_of_ray_is_refused(hosts: RayHosts) -> None:
    from ray._raylet import GcsClient

    client, key, space = GcsClient(address=hosts.address), b"CLUSTER_METADATA", b"cluster"
    stored = client.internal_kv_get(key, space)
    client.internal_kv_put(key, json.dumps(json.loads(stored) | {"ray_version": "2.9.0"}).encode(), True, space)
    try:
        with pytest.raises(LocalFault, match=r"cannot join: Version mismatch.*2\.9\.0"):
            check_cluster(ScorerSection(ray=hosts.address, devices=("cuda",)))
    finally:
        client.internal_kv_put(key, stored, True, space)


def test_the_doctor_says_what_a_cluster_has_and_that_its_network_must_be_private(hosts: RayHosts) -> None:
    (check,) = key_checks.ray_cluster(ScorerSection(ray=hosts.address, devices=("cuda",)))
    assert "GPUs and" in check.actual
    assert "its network must be private" in check.actual
    assert check.remedy == ""
