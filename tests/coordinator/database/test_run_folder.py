"""The lock of a run folder."""

import os
from pathlib import Path

import pytest

from echo2.coordinator.database.run_folder import FolderInUse, RunFolder, locked


def test_a_run_folder_is_locked_by_one_coordinator_at_a_time(home: Path) -> None:
    with locked(RunFolder(home)):
        with (
            pytest.raises(FolderInUse, match=f"another coordinator \\(process {os.getpid()}\\) runs in"),
            locked(RunFolder(home)),
        ):
            pass
        assert (home / "lock").read_text() == f"{os.getpid()}\n"
    with locked(RunFolder(home)):
        pass
