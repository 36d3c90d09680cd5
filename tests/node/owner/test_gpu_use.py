"""Other programs on a GPU: by a stand-in of NVML, and by files like those of the kernel."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from echo2.node.owner import gpu_use
from echo2.node.owner.gpu_use import ClientShares, GpuUse, NoGpuSource, NvidiaShares


class Nvml:
    """NVML with one card. `samples`: (process, microseconds, share of the card in percent). `codes`: what calls return
    in place of 0. `computing`: processes that compute."""

    def __init__(self, cards: int = 1) -> None:
        self.cards, self.codes = cards, dict[str, int]()
        self.samples: list[tuple[int, int, int]] = []
        self.computing: list[int] = []

    def __getitem__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            return self.codes.get(name) or int(getattr(self, name)(*arguments) or 0)

        return call

    def nvmlInit_v2(self) -> None: ...

    def nvmlDeviceGetCount_v2(self, count: Any) -> None:
        count._obj.value = self.cards

    def nvmlDeviceGetHandleByIndex_v2(self, number: Any, card: Any) -> None:
        card._obj.value = number.value + 1

    def nvmlDeviceGetProcessUtilization(self, card: Any, rows: Any, count: Any, since: Any) -> int:
        new = [one for one in self.samples if one[1] > since.value]
        if not new:
            return 6
        count._obj.value = len(new) + 1  # the library asks for some rows more than it fills
        if rows is None:
            return 7
        count._obj.value = len(new)
        for row, (process, at, share) in zip(rows, new, strict=False):
            row.pid, row.at, row.sm = process, at, share
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, card: Any, count: Any, rows: Any) -> None:
        count._obj.value = len(self.computing)
        for row, process in zip(rows, self.computing, strict=False):
            row.pid = process


def test_shares_are_the_mean_of_the_samples_since_the_last_look() -> None:
    library = Nvml()
    shares = NvidiaShares(library)
    assert shares() == {}
    library.samples = [(70, 1000, 40), (70, 2000, 20), (80, 2000, 5)]
    assert shares() == {70: pytest.approx(0.3), 80: pytest.approx(0.05)}
    assert shares() == {}, "nothing new"
    library.samples.append((80, 3000, 90))
    assert shares() == {80: pytest.approx(0.9)}


def test_a_card_that_states_no_shares_counts_what_computes_on_it() -> None:
    library = Nvml()
    library.codes["nvmlDeviceGetProcessUtilization"] = 3
    library.computing = [70, 80]
    assert NvidiaShares(library)() == {70: 1.0, 80: 1.0}


def test_a_library_that_fails_or_shows_no_card_is_no_source() -> None:
    with pytest.raises(OSError, match="no card"):
        NvidiaShares(Nvml(0))
    library = Nvml()
    library.codes["nvmlInit_v2"] = 9
    with pytest.raises(OSError, match="nvmlInit_v2 failed with 9"):
        NvidiaShares(library)


def client(root: Path, process: int, file: int, number: int, nanoseconds: int) -> None:
    """Write a process's file of a card as the kernel shows it."""
    for folder in ("fd", "fdinfo"):
        (root / str(process) / folder).mkdir(parents=True, exist_ok=True)
    if not (root / str(process) / "fd" / str(file)).is_symlink():
        (root / str(process) / "fd" / str(file)).symlink_to("/dev/dri/renderD128")
    (root / str(process) / "fdinfo" / str(file)).write_text(
        f"pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t{number}\ndrm-engine-gfx:\t{nanoseconds} ns\n"
        "drm-engine-dec:\t5 ns\ndrm-memory-vram:\t200 KiB\n"
    )


def test_the_kernels_counters_give_shares_and_a_client_with_two_files_counts_once(tmp_path: Path) -> None:
    now = [100.0]
    client(tmp_path, 7, 3, 1, 10**9)
    client(tmp_path, 7, 4, 1, 10**9)
    (tmp_path / "8" / "fd").mkdir(parents=True)
    shares = ClientShares(tmp_path, lambda: now[0])
    assert shares() == {7: 0.0}
    now[0] += 1.0
    client(tmp_path, 7, 3, 1, 10**9 + 400_000_000)
    client(tmp_path, 7, 4, 1, 10**9 + 400_000_000)
    client(tmp_path, 9, 3, 2, 900_000_000)
    assert shares() == {7: pytest.approx(0.4), 9: 0.0}
    now[0] += 1.0
    client(tmp_path, 9, 3, 2, 1_200_000_000)
    assert shares() == {7: 0.0, 9: pytest.approx(0.3)}


@pytest.mark.skipif(sys.platform != "linux", reason="a process of ours is a child here")
def test_of_the_processes_on_a_card_those_of_this_node_do_not_count() -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as ours:
        try:
            name = psutil.Process(1).name()
            assert GpuUse("x", lambda: {ours.pid: 0.9, 1: 0.5}).look() == f"{name} uses the GPU"
            assert GpuUse("x", lambda: {ours.pid: 0.9, 1: 0.09}).look() == "", "a desktop draws its windows"
            assert GpuUse("x", lambda: {2**22 + 5: 0.9}).look() == "", "it has ended"
        finally:
            ours.kill()


def test_a_machine_without_gpus_says_why_their_use_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(gpu_use.ctypes, "CDLL", missing)
    monkeypatch.setattr(gpu_use, "system_gpus", list)
    assert gpu_use.gpu_use() == NoGpuSource("NVML: libnvidia-ml.so.1: cannot open shared object file")
