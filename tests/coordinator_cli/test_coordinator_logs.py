"""The log: plain lines or coloured ones for people, JSON lines in the run folder always."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from coordinator import logs
from runtime.errors import LocalFault


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_it_was_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, raising = root.handlers[:], root.level, logging.raiseExceptions
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:], logging.raiseExceptions = handlers, raising
    root.setLevel(level)
    structlog.reset_defaults()


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / logs.FILE).read_text().splitlines()]


def test_both_kinds_of_logger_reach_the_terminal_and_the_file(tmp_path: Path) -> None:
    stream = io.StringIO()
    logs.set_up(tmp_path / "logs", stream=stream)
    structlog.get_logger("coordinator").info("a version", version=3, root=b"\xab\xcd")
    logging.getLogger("p2p").warning("%s left", "a peer")
    structlog.get_logger("coordinator").debug("too fine")
    told = lines(tmp_path / "logs")
    assert [(line["event"], line["level"], line["logger"]) for line in told] == [
        ("a version", "info", "coordinator"),
        ("a peer left", "warning", "p2p"),
    ]
    assert told[0]["root"] == "abcd"
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().count("\n") == 2


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_terminals_and_honour_no_color(
    no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    stream = Terminal()
    logs.set_up(None, stream=stream)
    structlog.get_logger("coordinator").info("hello")
    assert ("\x1b" in stream.getvalue()) is coloured


def test_a_fault_is_logged_with_its_traceback_in_one_json_line(tmp_path: Path) -> None:
    logs.set_up(tmp_path, stream=io.StringIO())
    try:
        raise ValueError("odd")
    except ValueError:
        logging.getLogger("p2p").exception("it failed")
    (line,) = lines(tmp_path)
    assert line["event"] == "it failed"
    assert "ValueError" in json.dumps(line)


def test_a_stream_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    stream = io.StringIO()
    logs.set_up(tmp_path, stream=stream)
    stream.close()
    structlog.get_logger("coordinator").info("still here")
    assert [line["event"] for line in lines(tmp_path)] == ["still here"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(LocalFault, match=f"cannot write the log in {tmp_path / 'logs'}"):
        logs.set_up(tmp_path / "logs")
