"""Child processes for tests: one that ends with its block, and one whose output is closed."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def child(argv: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Start a process as `subprocess.Popen` does, and kill it at the end of the block: a wait for a hanging process
    would block the whole suite, beyond a test's own time limit."""
    with subprocess.Popen(argv, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def into_a_closed_pipe(argv: Sequence[str], *, errors_too: bool = False, **options: Any) -> tuple[int, str]:
    """Return the exit code and standard error of a command whose standard output is a closed pipe, as behind `| true`.
    `errors_too`: standard error is that pipe too."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            argv, stdout=writer, stderr=writer if errors_too else subprocess.PIPE, text=True, timeout=60, check=False,
            **options,
        )  # fmt: skip
    finally:
        os.close(writer)
    return ended.returncode, ended.stderr or ""
