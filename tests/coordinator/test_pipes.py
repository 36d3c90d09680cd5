"""Commands of `echo2-coord` end without a traceback when the reader of their output is gone, as with `| head`."""

import sys
from pathlib import Path

import pytest

from tests.support.children import into_a_closed_pipe

COMMAND = [sys.executable, "-m", "echo2.coordinator.cli"]


@pytest.mark.slow
@pytest.mark.parametrize("word", ["--help", "version", "demo"])
def test_a_command_whose_reader_has_closed_ends_in_silence(
    word: str, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert into_a_closed_pipe([*COMMAND, word], cwd=repository) == (141, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_error_without_a_reader_keeps_its_exit_code(tmp_path: Path, repository: Path) -> None:
    argv = [*COMMAND, "status", "--home", str(tmp_path)]
    assert into_a_closed_pipe(argv, errors_too=True, cwd=repository)[0] == 78
