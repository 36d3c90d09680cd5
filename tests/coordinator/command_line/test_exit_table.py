"""Every error of a command becomes an exit code and one line."""

import importlib

import pytest

from echo2.coordinator.command_line.exit_table import CODE_OF_CLASS, own_code
from echo2.p2p.errors import BadSignature, Unreachable
from echo2.runtime.child import ChildError
from echo2.runtime.cli_errors import run_command
from echo2.runtime.errors import DiskFull, LocalFault


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (LocalFault("do this"), 78, "do this"),
        (DiskFull("no room"), 75, "no room"),
        (OSError(28, "No space left on device"), 75, "no space is left for a file: make room there"),
        (Unreachable("nobody"), 69, "nobody"),
        (BadSignature("not ours"), 81, "not ours"),
        (ChildError("CheckpointError", "put one back"), 78, "CheckpointError: put one back"),
        (ChildError("NoDevice", "cuda:1 does not exist"), 78, "NoDevice: cuda:1 does not exist"),
        (ChildError("TooLittleMemory", "it does not fit"), 78, "TooLittleMemory: it does not fit"),
        (ChildError("NoMemory", "no memory left"), 78, "NoMemory: no memory left"),
        (ChildError("DeviceLost", "the device failed"), 75, "DeviceLost: the device failed"),
        (ChildError("ValueError", "x"), 70, "internal fault: ChildError: ValueError: x"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("odd\nthing"), 70, "internal fault: ZeroDivisionError: odd thing (set ECHO2_DEBUG=1"),
        (ExceptionGroup("g", [ValueError("x"), ExceptionGroup("h", [LocalFault("do this")])]), 78, "do this"),
    ],
)
def test_every_error_becomes_a_code_and_a_line(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    assert run_command(command, "echo2-coord", own_code) == code
    assert capsys.readouterr().err.startswith(f"echo2-coord: {message}")


@pytest.mark.parametrize("name", CODE_OF_CLASS)
def test_every_name_is_that_of_a_class_of_errors_and_gives_its_code(name: str) -> None:
    module, _, kind = name.rpartition(".")
    found = getattr(importlib.import_module(module), kind)
    assert f"{found.__module__}.{found.__qualname__}" == name
    assert own_code(found.__new__(found)) is CODE_OF_CLASS[name]
