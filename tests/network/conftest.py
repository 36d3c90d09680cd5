"""Fixtures for tests of whole networks: a folder in memory, since a network writes much; a run of a fake coordinator;
the handlers of a coordinator."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2.coordinator import daemon
from echo2.coordinator.publishing import broadcast_planner
from echo2.p2p.handlers import Handlers, MethodHandler
from tests.support.quick_disk import quick_folder
from tests.support.small_run import SmallRun


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Replace pytest's temporary folder by one in memory."""
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def small_run(tmp_path: Path) -> SmallRun:
    return SmallRun(tmp_path)


@pytest.fixture
def slow_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a coordinator look after its state every five seconds: most of what a simulated hour costs."""
    monkeypatch.setattr(daemon, "EXPIRY_POLL_SECONDS", 5.0)
    monkeypatch.setattr(broadcast_planner, "NODE_POLL_SECONDS", 2.0)


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[str, MethodHandler]:
    """Collect the handlers, by method, of the first peer that serves any: the coordinator."""
    first: dict[str, MethodHandler] = {}
    serve = Handlers.serve

    def serving(self: Handlers, method: str, handler: MethodHandler, *, limit: int) -> None:
        first.setdefault(method, handler)
        serve(self, method, handler, limit=limit)

    monkeypatch.setattr(Handlers, "serve", serving)
    return first
