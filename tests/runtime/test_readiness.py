"""A daemon reports to the socket that its service manager names, and to nothing else."""

import socket
import sys
from pathlib import Path

import pytest

from echo2.runtime import readiness


def listener(address: str) -> socket.socket:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(address)
    manager.settimeout(5)
    return manager


def test_readiness_and_end_are_reported_over_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with listener("socket") as manager:
        monkeypatch.setenv(readiness.VARIABLE, str(Path("socket").absolute()))
        if len(str(Path("socket").absolute())) > 100:
            pytest.skip("the test's folder has too long a path for a socket")
        readiness.report_ready("works:\nall is well")
        readiness.report_stopping("ends")
        assert manager.recv(1000) == b"READY=1\nSTATUS=works: all is well"
        assert manager.recv(1000) == b"STOPPING=1\nSTATUS=ends"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract sockets")
def test_readiness_is_reported_over_an_abstract_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"echo2-test-{hash(tmp_path):x}"
    with listener(f"\0{name}") as manager:
        monkeypatch.setenv(readiness.VARIABLE, f"@{name}")
        readiness.report_ready("works")
        assert manager.recv(1000).startswith(b"READY=1\n")


@pytest.mark.parametrize("place", ["", "/nowhere/at all", "vsock:2:1234", "relative", "@" + "x" * 200])
def test_a_manager_that_is_not_there_changes_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(readiness.VARIABLE, place)
    readiness.report_ready("works")
    readiness.report_stopping("ends")


def test_a_manager_that_reads_nothing_stops_no_daemon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with listener("s"):
        monkeypatch.setenv(readiness.VARIABLE, str(tmp_path / "s"))
        for _ in range(2_000):
            readiness.report_ready("works")
