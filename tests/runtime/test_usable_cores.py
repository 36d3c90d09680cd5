"""The cores at hand are those of the scheduler and of the container, not those of the machine around it."""

import os
from pathlib import Path

import pytest

from echo2.runtime.usable_cores import threads_of, usable_cores

EIGHT = set(range(8))


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: EIGHT, raising=False)


def belongs_to(files: Path, groups: str) -> None:
    (files / "proc/self").mkdir(parents=True)
    (files / "proc/self/cgroup").write_text(groups)


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 2),
                                              ("10000 100000", 1), ("9900000 100000", 8), ("", 8)])  # fmt: skip
def test_a_container_of_version_2_bounds_them(quota: str, cores: int, tmp_path: Path) -> None:
    belongs_to(tmp_path, "0::/outer/inner\n")
    (tmp_path / "sys/fs/cgroup/outer/inner").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/outer/inner/cpu.max").write_text("max 100000\n")
    (tmp_path / "sys/fs/cgroup/outer/cpu.max").write_text(f"{quota}\n")
    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [(-1, 8), (300_000, 3)])
def test_a_container_of_version_1_bounds_them(quota: int, cores: int, tmp_path: Path) -> None:
    belongs_to(tmp_path, "4:memory:/\n3:cpu,cpuacct:/box\n")
    group = tmp_path / "sys/fs/cgroup/cpu/box"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == cores


def test_without_control_groups_they_are_the_schedulers(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 8


def test_auto_is_the_variables_number_or_a_share_of_the_cores() -> None:
    assert threads_of(3, environ={"OMP_NUM_THREADS": "1"}) == 3
    assert threads_of("auto", environ={"OMP_NUM_THREADS": "2"}) == 2
    assert threads_of("auto", environ={"OMP_NUM_THREADS": "2,1"}) == 2
    for unsaid in ("", "0", "all"):
        assert threads_of("auto", environ={"OMP_NUM_THREADS": unsaid}) == usable_cores()
    assert threads_of("auto", 2, {}) == usable_cores() // 2
    assert threads_of("auto", 1000, {}) == 1
