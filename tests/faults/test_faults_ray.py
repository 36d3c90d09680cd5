"""A coordinator with three scorers on three hosts of Ray: deaths and hangs cost no verdict and give none twice."""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from benchmarks.scorers.ray_hosts import RayHosts, ray_hosts
from tests.faults.processes import Run, make_template, running, until
from tests.faults.verdicts import goes_on
from tests.support.quick_disk import quick_folder

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray: make test-ray"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
SILENCE = 15.0
"""Seconds of silence after which a scorer counts as hung."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[RayHosts]:
    with quick_folder() as folder, ray_hosts(folder) as cluster:
        for _ in range(3):
            cluster.add(num_cpus=1)
        yield cluster


@pytest.fixture(scope="module")
def three_scorers(hosts: RayHosts) -> Iterator[Path]:
    with quick_folder() as folder:
        scorer = {"ray": hosts.address, "devices": ("cpu",) * 3, "silence_seconds": SILENCE}
        yield make_template(folder / "run", more={"scorer": scorer})


def three(run: Run, hosts: RayHosts, gone: set[psutil.Process]) -> list[psutil.Process]:
    """Wait until the three actors run, none of them `gone`."""

    def all_run() -> list[psutil.Process] | None:
        assert run.coordinator.alive, run.coordinator.last_words()
        actors = hosts.actors()
        return actors if len(actors) == 3 and not gone & set(actors) else None

    return until("three actors run", all_run)


def engine_of(actor: psutil.Process) -> psutil.Process:
    return until("it has an engine", lambda: next(iter(actor.children()), None))


def test_actors_that_are_killed_or_hang_cost_no_verdict_and_give_none_twice(
    hosts: RayHosts, three_scorers: Path, tmp_path: Path
) -> None:
    with running(three_scorers, tmp_path, "ann", "bob") as run:
        run.coordinator.past(2)
        first = three(run, hosts, set())
        assert {one.parent() for one in first} == {hosts.raylet(host) for host in hosts.hosts}
        assert run.coordinator.state().capacity.scorers == 3
        for victim in first:
            victim.kill()
            goes_on(run)
        second = three(run, hosts, set(first))
        engines = [engine_of(actor) for actor in second]
        os.kill(engines[0].pid, signal.SIGSTOP)
        until("it is named", lambda: [one for one in run.coordinator.state().faults if "ended as hung" in one.what])
        goes_on(run)
        until("the hung one is gone", lambda: not engines[0].is_running() or engines[0].status() == "zombie")
        third = three(run, hosts, {second[0]})
        engine_of(third[1]).kill()
        goes_on(run)
        lost = hosts.hosts.pop()
        hosts.raylet(lost).kill()
        goes_on(run)
        hosts.add(num_cpus=1)
        three(run, hosts, set())
        goes_on(run)
        driver = next(one for one in run.coordinator.children() if "ray_driver" in " ".join(one.cmdline()))
        driver.kill()
        goes_on(run)
        three(run, hosts, set(third))
