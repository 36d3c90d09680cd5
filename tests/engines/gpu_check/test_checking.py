"""The check as both programs run it, on this CPU."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from echo2.engines.gpu_check import checking
from echo2.engines.gpu_check.check_rows import UNSEEN
from echo2.engines.gpu_check.checking import Report, check, show
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit

PROGRAMS = {"echo2-node": "echo2.node.cli", "echo2-coord": "echo2.coordinator.cli"}


def run(module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", module, "gpu-check", *arguments],
        capture_output=True, text=True, check=False, timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_volunteer_gets_a_table_of_this_cpu_and_a_file_to_attach(tmp_path: Path) -> None:
    done = run("echo2.node.cli", "--quick", "--gpu", "cpu", "--write", str(tmp_path / "table.txt"), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = msgspec.json.decode(done.stdout, type=Report)
    rows = {row.what: row for row in report.rows}
    for what in ("memory bandwidth", "product of matrices, float32", "checking pass, float32"):
        assert rows[what].value
        assert float(rows[what].value.split()[0]) > 0
    assert [row.value[-3:] for what, row in rows.items() if what.startswith("decode step, 16 rows")] == [" ms"]
    assert rows["product of matrices, tf32"].verdict == rows["checking pass, tf32"].verdict == UNSEEN
    written = (tmp_path / "table.txt").read_text()
    assert json.loads(written)["rows"] == json.loads(done.stdout)["rows"]
    for secret in (str(tmp_path), str(Path.home()), socket.gethostname(), sys.executable):
        assert secret not in written


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_device_that_does_not_exist_is_one_sentence(program: str) -> None:
    faults = {"cuda:7": "cuda:7 does not exist", "vulkan": "does not compute on vulkan", "x": "is no device"}
    for device, words in faults.items():
        done = run(PROGRAMS[program], "--quick", "--gpu", device)
        assert (done.returncode, done.stdout) == (Exit.NO_DEVICE, ""), "the code of `join --gpu`"
        assert done.stderr.startswith(f"{program}: ")
        assert words in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_an_operator_gets_the_same_table(tmp_path: Path) -> None:
    done = run("echo2.coordinator.cli", "--quick", "--gpu", "cpu", "--write", str(tmp_path / "table"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "memory bandwidth" in done.stdout
    assert (tmp_path / "table").read_text().splitlines()[2:4] == done.stdout.splitlines()[2:4]


def test_a_measuring_process_that_dies_leaves_a_table_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MEASURING_MODULE", "no_such_module")
    rows = {row.what: row for row in check("cpu", quick=True).rows}
    assert rows["processor"].value
    assert "No module named no_such_module" in rows["memory bandwidth"].remedy
    assert rows["memory bandwidth"].verdict == UNSEEN


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    report = Report(program="echo2 1", at="2026-01-01 00:00", rows=[])
    with pytest.raises(LocalFault, match=r"none/table cannot be written \(No such file or directory\)"):
        show(report, as_json=False, file=tmp_path / "none" / "table")


def test_a_link_or_a_device_is_not_replaced_by_the_table(tmp_path: Path) -> None:
    """As root, `--write /dev/stdout` and `--write /dev/null` replaced the device's name for the whole system."""
    report = Report(program="echo2 1", at="2026-01-01 00:00", rows=[])
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "nowhere", "folder"):
        with pytest.raises(LocalFault, match="would be replaced: name another file"):
            show(report, as_json=False, file=tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
