"""A red team that is terminated clears its folder away; the folder of one that was killed goes with the next."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.attacks import command, proving_ground
from benchmarks.attacks.proving_ground import ProvingGround


class _Made(Exception):
    """The place is made so far."""


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, in which a red team makes its own and its run is not made."""

    class NoWorker:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def stop(self) -> None:
            pass

    def make(*_: Any) -> None:
        raise _Made

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(proving_ground, "Worker", NoWorker)
    monkeypatch.setattr(ProvingGround, "_make", make)
    return tmp_path


def test_the_folder_of_a_red_team_that_was_killed_goes_when_the_next_one_begins(places: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for owner in (ended.pid, os.getpid()):
        (places / f"echo2-redteam-{owner}-x" / "run").mkdir(parents=True)
    with pytest.raises(_Made):
        ProvingGround(None)
    assert [one.name for one in places.iterdir()] == [f"echo2-redteam-{os.getpid()}-x"]


def test_a_red_team_that_is_terminated_clears_its_folder_away(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[bool] = []

    def terminated(ground: ProvingGround, *_: Any) -> None:
        there.append(ground._folder.exists())
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(ProvingGround, "_make", terminated)
    with pytest.raises(KeyboardInterrupt):
        command.play([], quick=True, as_json=True, home=None, console=Console())
    assert there == [True]
    assert list(places.iterdir()) == []
