"""A volunteer's first day (first_day.py), shortened: each of its checks holds. Its bars are for a machine at rest."""

import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

STEPS = ("pip install", "join", "service install", "top", "play a game", "sleep", "lose power", "update", "leave")


def test_the_first_day_goes_as_the_page_for_volunteers_says() -> None:
    argv = [sys.executable, "-m", "tests.dist.first_day", "--quick"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=850)
    if done.returncode == 2:
        pytest.skip(done.stdout.strip())
    steps = [row for row in done.stdout.splitlines() if re.match(r" *\d+:\d\d ", row)]
    assert len(steps) == len(STEPS), done.stdout + done.stderr
    assert [word for word, row in zip(STEPS, steps, strict=True) if word not in row] == []
