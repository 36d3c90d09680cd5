"""The lock of a run folder."""

import os
from pathlib import Path

import pytest

from echo2.coordinator.database.run_folder import FolderInUse, RunFolder, lock_run


def test_a_run_folder_is_locked_by_one_coordinator_at_a_time(home: Path) -> None:
    with lock_run(RunFolder(home)):
        with (
            pytest.raises(FolderInUse, match=f"another coordinator \\(process {os.getpid()}\\) runs in"),
            lock_run(RunFolder(home)),
        ):
            pass
        assert (home / "lock").read_text() == f"{os.getpid()}\n"
    with lock_run(RunFolder(home)):
        pass
