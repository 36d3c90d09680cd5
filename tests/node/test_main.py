"""The start of a daemon: its log, its invite, its network."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from node.config import NodeConfig
from node.main import set_up_log


@pytest.fixture
def _logging_as_before() -> Iterator[None]:
    root, network = logging.getLogger(), logging.getLogger("p2p")
    handlers, levels = root.handlers[:], (root.level, network.level)
    root.handlers.clear()
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    network.setLevel(levels[1])
    structlog.reset_defaults()


@pytest.mark.usefixtures("_logging_as_before")
@pytest.mark.parametrize(("level", "shown"), [("debug", 3), ("info", 1), ("warning", 1), ("error", 0)])
def test_what_the_network_plane_says_has_the_nodes_form(
    level: str, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    set_up_log(NodeConfig(log=level, json_logs=True))
    logging.getLogger("p2p").debug("a stream was reset")
    logging.getLogger("p2p").info("%s is reached directly now", "a peer")
    logging.getLogger("p2p").warning("%s is dropped", "a peer")
    logging.getLogger("asyncio").debug("nobody's concern")
    said = [json.loads(text_line) for text_line in stream.getvalue().splitlines()]
    assert len(said) == shown
    if said:
        assert (said[-1]["level"], said[-1]["event"]) == ("warning", "a peer is dropped")
        assert "timestamp" in said[-1]
