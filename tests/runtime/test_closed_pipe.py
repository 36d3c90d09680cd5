"""The behaviour of a process after the reader of its output has gone."""

import subprocess
import sys

import pytest

from tests.support.children import child, into_a_closed_pipe

PROGRAM = """
import os, sys
from echo2.runtime.closed_pipe import exit_on_closed_pipe
with exit_on_closed_pipe(141):
    {body}
"""


def program(body: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM.format(body=body)]


def test_output_reaches_its_reader_and_the_exit_code_is_the_programs() -> None:
    body = "print('ä' * 100_000); print('warned', file=sys.stderr); raise SystemExit(3)"
    with child(program(body), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (3, "ä" * 100_000 + "\n", "warned\n")


@pytest.mark.parametrize("environment", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    ("body", "code"),
    {
        "a line": ("print('one')", 141),
        "more than a buffer": ("print('x' * 1_000_000)", 141),
        "a line, and an end of its own": ("print('one'); raise SystemExit(3)", 141),
        "nothing": ("pass", 0),
        "a line on standard error": ("print('one', file=sys.stderr); print('two', file=sys.stderr)", 0),
    }.values(),
)
def test_into_a_closed_pipe(body: str, code: int, environment: dict[str, str]) -> None:
    assert into_a_closed_pipe(program(body), errors_too="stderr" in body, env=environment) == (code, "")


def test_another_pipe_that_breaks_is_a_fault_as_before() -> None:
    body = "reader, writer = os.pipe(); os.close(reader); os.write(writer, b'x')"
    code, error = into_a_closed_pipe(program(body))
    assert code == 1
    assert "BrokenPipeError" in error


def test_a_program_without_standard_output_runs() -> None:
    closed = f"import sys; sys.stdout = None\n{PROGRAM.format(body='print(1)')}"
    assert into_a_closed_pipe([sys.executable, "-c", closed]) == (0, "")
