"""Fixtures of the runtime's tests."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_LONGEST = 60
"""Bytes of a folder's path for which that of a socket two levels below is short enough for every system."""


@pytest.fixture
def short_path(tmp_path: Path) -> Iterator[Path]:
    """A folder of this test in which sockets can lie: where the one of pytest has a long path, one in /tmp, as
    runtime/control_client.py chooses it."""
    if len(os.fsencode(tmp_path)) <= _LONGEST:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="echo2-") as folder:
        yield Path(folder).resolve()
