"""The memory at hand is that of the container, not that of the machine around it."""

from pathlib import Path

import psutil
import pytest

from echo2.runtime.host_memory import available_memory, describe_kill, memory_limit

MIB = 1 << 20


@pytest.fixture(autouse=True)
def a_large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    plenty = psutil.virtual_memory()._replace(available=64 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: plenty)


def belongs_to(files: Path, groups: str) -> None:
    (files / "proc/self").mkdir(parents=True)
    (files / "proc/self/cgroup").write_text(groups)


def group_of_version_2(folder: Path, most: str, used: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon {used - cached}\ninactive_file {cached}\n")


def test_without_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert available_memory(tmp_path) == 64 << 30


def test_a_container_has_what_its_limit_leaves_and_what_its_cached_files_take(tmp_path: Path) -> None:
    belongs_to(tmp_path, "0::/\n")
    group_of_version_2(tmp_path / "sys/fs/cgroup", str(2048 * MIB), 1000 * MIB, 300 * MIB)
    assert available_memory(tmp_path) == 1348 * MIB


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    belongs_to(tmp_path, "0::/user.slice/echo2.service\n")
    top = tmp_path / "sys/fs/cgroup/user.slice"
    group_of_version_2(top / "echo2.service", "max", 10 * MIB, 0)
    group_of_version_2(top, str(500 * MIB), 200 * MIB, 0)
    assert available_memory(tmp_path) == 300 * MIB


def test_version_1_and_a_container_that_sees_its_own_group_as_the_top(tmp_path: Path) -> None:
    belongs_to(tmp_path, "12:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n")
    top = tmp_path / "sys/fs/cgroup/memory"
    top.mkdir(parents=True)
    (top / "memory.limit_in_bytes").write_text(f"{800 * MIB}\n")
    (top / "memory.usage_in_bytes").write_text(f"{300 * MIB}\n")
    (top / "memory.stat").write_text(f"cache 1\ntotal_inactive_file {20 * MIB}\n")
    assert available_memory(tmp_path) == 520 * MIB


def test_a_group_above_its_limit_has_nothing_left_and_unreadable_files_say_nothing(tmp_path: Path) -> None:
    belongs_to(tmp_path, "0::/a\nnonsense\n")
    group_of_version_2(tmp_path / "sys/fs/cgroup/a", str(10 * MIB), 11 * MIB, 0)
    assert available_memory(tmp_path) == 0
    (tmp_path / "sys/fs/cgroup/a/memory.max").write_text("much\n")
    assert available_memory(tmp_path) == 64 << 30


def test_a_container_may_take_its_limit_and_a_machine_all_it_has(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) == psutil.virtual_memory().total
    belongs_to(tmp_path, "0::/\n")
    group_of_version_2(tmp_path / "sys/fs/cgroup", "max", 0, 0)
    assert memory_limit(tmp_path) == psutil.virtual_memory().total
    group_of_version_2(tmp_path / "sys/fs/cgroup", str(2048 * MIB), 0, 0)
    assert memory_limit(tmp_path) == 2048 * MIB


def test_a_kill_for_memory_is_told_where_the_kernel_says_so(tmp_path: Path) -> None:
    belongs_to(tmp_path, "0::/job\n")
    group = tmp_path / "sys/fs/cgroup/job"
    group_of_version_2(group, "2000000000", 0, 0)
    (group / "memory.peak").write_text("1990000000\n")
    assert describe_kill(tmp_path) == ""
    (group / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert describe_kill(tmp_path) == (
        "the kernel kills processes here for memory: their control group may have 2.0 GB and had 2.0 GB in use"
    )
