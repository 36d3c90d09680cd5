"""Verdicts after an unclean stop: no work is credited before the whole of run.sqlite is checked."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from echo2.coordinator import daemon
from tests.support.clock import run_fake
from tests.support.fake_coordinator import until
from tests.support.swarm import Swarm, accepted, make_swarm, working

CHECK_TAKES = 200.0
"""Duration of the check, in seconds of the fake clock."""
ACCEPTED = "SELECT count(*) FROM entries WHERE kind = 'lease.accepted'"
RECEIVED = "SELECT count(*) FROM submissions"


async def slow(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Run the work for a thread in this one. The check of the file takes `CHECK_TAKES`."""
    if function is daemon.check:
        await anyio.sleep(CHECK_TAKES)
    return function(*given)


async def stopped(swarm: Swarm) -> None:
    """Run a coordinator until it has checked its file, and stop it cleanly."""
    async with swarm.coordinating() as coordinator:
        await until(lambda: coordinator.group_service.database.checked, 600)


async def life(swarm: Swarm) -> tuple[int, int]:
    """Return how many groups were received and how many accepted during the check. Groups are accepted after it."""
    anyio.to_thread.run_sync = slow  # type: ignore[assignment] # the fake clock puts it back
    async with swarm.coordinating() as coordinator:
        database, node = coordinator.group_service.database, swarm.node("alice")
        async with working(node):
            await anyio.sleep(CHECK_TAKES - 20)
            before = database.value(RECEIVED), database.value(ACCEPTED)
            await until(lambda: accepted(node) >= 2, 600)
    return before


def test_no_verdict_is_given_before_the_check_after_an_unclean_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the file is checked, leases are given and groups are received."""
    monkeypatch.setattr("echo2.coordinator.database.database.LARGE_DATABASE_BYTES", 0)
    swarm = make_swarm(tmp_path)
    run_fake(lambda: stopped(swarm))
    with closing(sqlite3.connect(tmp_path / "run" / "run.sqlite")) as left, left:
        left.execute("INSERT INTO facts VALUES ('in_use', 1)")
    received, credited = run_fake(lambda: life(swarm))
    assert received >= 2
    assert credited == 0
