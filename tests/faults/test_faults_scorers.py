"""A coordinator with two scorers, one of which is killed or hangs: it costs no verdict and gives none twice."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.processes import ROLES, Run, make_template, running, until
from tests.faults.verdicts import goes_on
from tests.support.quick_disk import quick_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SILENCE = 15.0
"""Seconds of silence after which a scorer counts as hung. A start of torch on a busy machine is silent for long."""


@pytest.fixture(scope="module")
def two_scorers() -> Iterator[Path]:
    with quick_folder() as folder:
        more = {"scorer": {"devices": ("cpu", "cpu"), "silence_seconds": SILENCE}}
        yield make_template(folder / "run", more=more)


def scorers(run: Run) -> list[psutil.Process]:
    """Return the living processes of the scorers, the oldest first."""
    found = []
    for child in run.coordinator.children():
        try:
            if ROLES["scorer"] in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return sorted(found, key=lambda child: child.create_time())


def two(run: Run) -> list[psutil.Process]:
    """Wait until both scorers run."""
    return until("both scorers run", lambda: found if len(found := scorers(run)) == 2 else None)


def test_a_scorer_that_is_killed_costs_no_verdict_and_gives_none_twice(two_scorers: Path, tmp_path: Path) -> None:
    with running(two_scorers, tmp_path, "ann", "bob") as run:
        run.coordinator.past(2)
        first, second = two(run)
        assert run.coordinator.state().capacity.scorers == 2
        assert (run.coordinator.folder.scorer / "2" / "held").is_dir()
        for victim in (first, second):
            victim.kill()
            goes_on(run)
        until("a scorer runs again", lambda: set(scorers(run)) - {first, second})
        scorers(run)[0].kill()
        goes_on(run)
        until("a death is named", lambda: [one for one in run.coordinator.state().faults if "scorer" in one.what])


def test_a_scorer_that_hangs_costs_only_time(two_scorers: Path, tmp_path: Path) -> None:
    with running(two_scorers, tmp_path, "ann", "bob") as run:
        run.coordinator.past(2)
        victim, _ = two(run)
        version, stopped = run.coordinator.state().version, time.monotonic()
        os.kill(victim.pid, signal.SIGSTOP)
        until("the hung one is ended", lambda: victim not in scorers(run))
        assert time.monotonic() - stopped > SILENCE
        until("it is named", lambda: [one for one in run.coordinator.state().faults if "ended as hung" in one.what])
        run.coordinator.past(version + 2)
        goes_on(run)
