"""The home folder of a node: its lock, and the commands that find it locked."""

import os
from pathlib import Path

import pytest

from node.errors import TryLater
from node.home import locked


def test_two_daemons_never_share_a_home(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(TryLater, match=f"process {os.getpid()}"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
