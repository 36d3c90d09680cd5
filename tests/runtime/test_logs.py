"""The log: plain lines or coloured ones for people, JSON lines in the run folder always."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from echo2.runtime import logs
from echo2.runtime.errors import LocalFault
from echo2.runtime.logs import set_up_logging, to_file, to_stream
from tests.support.logging_state import logging_as_before

FILE = "daemon.jsonl"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_it_was_before() -> Iterator[None]:
    with logging_as_before():
        yield


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(text_line) for text_line in (folder / FILE).read_text().splitlines()]


def test_both_kinds_of_logger_reach_the_terminal_and_the_file(tmp_path: Path) -> None:
    stream = io.StringIO()
    set_up_logging(to_stream(stream), to_file(tmp_path / "logs" / FILE), named=True)
    structlog.get_logger("coordinator").info("a version", version=3, root=b"\xab\xcd")
    logging.getLogger("p2p").warning("%s left", "a peer")
    structlog.get_logger("coordinator").debug("too fine")
    told = lines(tmp_path / "logs")
    assert [(event["event"], event["level"], event["logger"]) for event in told] == [
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
    set_up_logging(to_stream(stream))
    structlog.get_logger("coordinator").info("hello")
    assert ("\x1b" in stream.getvalue()) is coloured


def test_a_fault_is_logged_with_its_traceback_in_one_json_line(tmp_path: Path) -> None:
    set_up_logging(to_file(tmp_path / FILE))
    try:
        raise ValueError("odd")
    except ValueError:
        logging.getLogger("p2p").exception("it failed")
    (event,) = lines(tmp_path)
    assert event["event"] == "it failed"
    assert "ValueError" in json.dumps(event)


def test_a_stream_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    stream = io.StringIO()
    set_up_logging(to_stream(stream), to_file(tmp_path / FILE))
    stream.close()
    structlog.get_logger("coordinator").info("still here")
    assert [event["event"] for event in lines(tmp_path)] == ["still here"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(LocalFault, match=f"cannot write the log in {tmp_path / 'logs'}"):
        to_file(tmp_path / "logs" / FILE)


def test_secrets_are_blotted_out_wherever_they_come_from(tmp_path: Path) -> None:
    set_up_logging(to_file(tmp_path / FILE))
    structlog.get_logger("node").info("joined", invite="echo2-abc", key_passphrase="x", peer="p")
    (event,) = lines(tmp_path)
    assert (event["invite"], event["key_passphrase"], event["peer"]) == ("***", "***", "p")


def test_a_message_stays_on_one_line_whatever_a_peer_put_into_it() -> None:
    stream = io.StringIO()
    set_up_logging(to_stream(stream))
    logging.getLogger("p2p").info("peer %s dropped", "x\n2026-01-01 [info] paid\x1b[31m é")
    (text_line,) = stream.getvalue().splitlines()
    assert r"peer x\n2026-01-01 [info] paid\x1b[31m é dropped" in text_line


def test_a_field_cannot_control_the_terminal() -> None:
    """A field without a blank is shown as it is: a coordinator's sentence cleared its volunteers' screens."""
    stream = io.StringIO()
    set_up_logging(to_stream(stream))
    structlog.get_logger("node").warning("no lease given", reason="\x1b[2Jwell\u202e")
    assert not {"\x1b", "\u202e"} & set(stream.getvalue())
    assert "well" in stream.getvalue()


def test_a_traceback_cannot_control_the_terminal_and_keeps_its_lines() -> None:
    stream = io.StringIO()
    set_up_logging(to_stream(stream))
    try:
        raise ValueError("\x1b[2Jwell\u202e\rfine")
    except ValueError:
        structlog.get_logger("node").exception("it failed")
    shown = stream.getvalue()
    assert not {"\x1b", "\u202e", "\r"} & set(shown)
    assert r"ValueError: \x1b[2Jwell\u202e\rfine" in shown
    assert len(shown.splitlines()) > 3


def test_a_traceback_in_the_file_shows_no_local_variables(tmp_path: Path) -> None:
    set_up_logging(to_file(tmp_path / FILE))

    def unlock(key_file: str) -> None:
        raise ValueError("odd")

    try:
        unlock("-".join(("open", "sesame")))
    except ValueError:
        structlog.get_logger("node").exception("it failed")
    (event,) = lines(tmp_path)
    assert "ValueError" in json.dumps(event)
    assert "open-sesame" not in json.dumps(event)


def test_libraries_have_a_level_of_their_own_and_our_lines_keep_theirs() -> None:
    stream = io.StringIO()
    set_up_logging(to_stream(stream, json_lines=True), level="debug", libraries="warning")
    structlog.get_logger("p2p").debug("ours")
    logging.getLogger("p2p").info("a library's")
    logging.getLogger("p2p").warning("a library's warning")
    assert [json.loads(event)["event"] for event in stream.getvalue().splitlines()] == ["ours", "a library's warning"]


def test_a_traceback_stands_in_the_line_of_a_program() -> None:
    stream = io.StringIO()
    set_up_logging(to_stream(stream, json_lines=True))
    try:
        raise ValueError("odd")
    except ValueError:
        structlog.get_logger("node").exception("it failed")
    (event,) = (json.loads(event) for event in stream.getvalue().splitlines())
    assert "ValueError: odd" in event["exception"]


def test_a_file_is_bounded(tmp_path: Path) -> None:
    set_up_logging(to_file(tmp_path / FILE, 1000))
    for number in range(100):
        structlog.get_logger("node").info("a line", number=number, padding="x" * 100)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == logs.FILES
    assert max(sizes) <= 1000
