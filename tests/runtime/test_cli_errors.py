"""runtime/cli_errors.py: an error becomes one line and an exit code."""

import errno

import pytest

from echo2.runtime.cli_errors import print_error, report_errors, run_command
from echo2.runtime.errors import DiskFull, LocalFault
from echo2.runtime.exit_codes import Exit


class Refused(LocalFault):
    """An error that only the program of the test knows."""


def own_code(error: BaseException) -> Exit | None:
    return Exit.REFUSED if isinstance(error, Refused) else None


def ended(error: BaseException) -> int:
    def command() -> None:
        raise error

    return run_command(command, "echo2-test", own_code)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused("update"), Exit.REFUSED),
        (LocalFault("do this"), Exit.CONFIG),
        (DiskFull("no room"), Exit.TEMPORARY),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (OSError(errno.EADDRINUSE, "taken"), Exit.CONFIG),
        (OSError(errno.ENOENT, "missing"), Exit.INTERNAL),
        (ZeroDivisionError("odd"), Exit.INTERNAL),
        (ExceptionGroup("g", [ValueError("x"), ExceptionGroup("h", [Refused("update")])]), Exit.REFUSED),
    ],
)
def test_an_error_has_the_code_of_its_program_or_of_the_machine(error: BaseException, code: Exit) -> None:
    assert ended(error) == code


def test_a_line_is_one_line_and_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    ended(ZeroDivisionError("odd\nthing"))
    assert capsys.readouterr().err == (
        "echo2-test: internal fault: ZeroDivisionError: odd thing (set ECHO2_DEBUG=1 for the traceback)\n"
    )


def test_the_words_of_another_program_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("echo2-node", "the coordinator refuses this node: \x1b[2J\x1b]0;title\x07 \u202e")
    assert capsys.readouterr().err == "echo2-node: the coordinator refuses this node: ?[2J?]0;title? ?\n"


def test_the_traceback_is_shown_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ECHO2_DEBUG", raising=False)
    ended(LocalFault("do this"))
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("ECHO2_DEBUG", "1")
    assert ended(LocalFault("do this")) == Exit.CONFIG
    assert "Traceback" in capsys.readouterr().err


def test_a_command_ends_with_the_code_that_it_returns() -> None:
    @report_errors("echo2-test", own_code)
    def command(code: int | None) -> int | None:
        return code

    command(None)
    command(0)
    with pytest.raises(SystemExit) as ended:
        command(Exit.TRUST)
    assert ended.value.code == Exit.TRUST


def test_an_error_whose_code_cannot_be_found_is_still_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(error: BaseException) -> Exit | None:
        raise ModuleNotFoundError("No module named 'numpy'")

    def command() -> None:
        raise ModuleNotFoundError("No module named 'msgspec'")

    assert run_command(command, "echo2-test", broken) == Exit.INTERNAL
    written = capsys.readouterr().err
    assert written.startswith("echo2-test: internal fault: ModuleNotFoundError")
    assert written.count("\n") == 1
