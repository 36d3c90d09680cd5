"""A run of a fake coordinator per test."""

from pathlib import Path

import pytest

from tests.support.small_run import SmallRun


@pytest.fixture
def small_run(tmp_path: Path) -> SmallRun:
    return SmallRun(tmp_path)
