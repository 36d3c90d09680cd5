"""Whole networks write much: their folders lie in memory. A coordinator's handlers may be called without a network."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from p2p.handlers import Handlers, MethodHandler
from tests.support.quick_disk import quick_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In place of pytest's own."""
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[str, MethodHandler]:
    """The handlers of the first peer that serves anything, the coordinator; by method."""
    first: dict[str, MethodHandler] = {}
    serve = Handlers.serve

    def serving(self: Handlers, method: str, handler: MethodHandler, *, limit: int) -> None:
        first.setdefault(method, handler)
        serve(self, method, handler, limit=limit)

    monkeypatch.setattr(Handlers, "serve", serving)
    return first
