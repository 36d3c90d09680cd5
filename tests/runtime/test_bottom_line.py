"""The lowest line of a terminal."""

import io
import logging

import pytest

from echo2.runtime import logs
from echo2.runtime.bottom_line import BottomLine
from tests.support.text_terminal import TextTerminal


@pytest.fixture
def bottom(monkeypatch: pytest.MonkeyPatch) -> BottomLine:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    return BottomLine(TextTerminal())


def text(bottom: BottomLine) -> str:
    assert isinstance(bottom._out, io.StringIO)
    return bottom._out.getvalue()


def test_a_text_is_written_over_and_cut_to_the_width(bottom: BottomLine) -> None:
    bottom.show("first")
    bottom.show("a text that is longer than the terminal is wide")
    bottom.clear()
    bottom.clear()
    assert text(bottom) == "\r\x1b[Kfirst\r\x1b[Ka text that is lon\r\x1b[K".replace("lon\r", "long\r")


def test_a_line_of_the_log_takes_its_place(bottom: BottomLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "BOTTOM", bottom)
    handler = logs.to_stream(bottom._out)
    handler.setFormatter(logging.Formatter("%(message)s"))
    bottom.show("half")
    handler.emit(logging.makeLogRecord({"msg": "joined"}))
    bottom.show("more")
    assert text(bottom) == "\r\x1b[Khalf\r\x1b[Kjoined\n\r\x1b[Kmore"


@pytest.mark.parametrize("term", ["dumb", None])
def test_nothing_is_written_where_it_cannot_be_taken_back(
    bottom: BottomLine, term: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if term is None:
        monkeypatch.delenv("TERM")
    else:
        monkeypatch.setenv("TERM", term)
    bottom.show("first")
    assert text(bottom) == ""


def test_a_file_and_a_closed_terminal_stop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    file = io.StringIO()
    BottomLine(file).show("first")
    assert file.getvalue() == ""

    class Closed(TextTerminal):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    BottomLine(Closed()).show("first")
