"""Fixtures of whole networks: folders in memory, because they write much, and a coordinator's handlers without a
network."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from p2p.handlers import Handlers, MethodHandler
from tests.support.quick_disk import quick_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Replace pytest's own by a folder in memory."""
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[str, MethodHandler]:
    """Collect the handlers of the first peer that serves any, the coordinator; by method."""
    first: dict[str, MethodHandler] = {}
    serve = Handlers.serve

    def serving(self: Handlers, method: str, handler: MethodHandler, *, limit: int) -> None:
        first.setdefault(method, handler)
        serve(self, method, handler, limit=limit)

    monkeypatch.setattr(Handlers, "serve", serving)
    return first
