"""Child processes of tests."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def child(argv: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """As `subprocess.Popen`, but killed where the block fails: waiting for one that hangs would hang the whole suite,
    beyond the reach of a test's own time limit."""
    with subprocess.Popen(argv, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def into_a_closed_pipe(argv: Sequence[str], *, errors_too: bool = False, **options: Any) -> tuple[int, str]:
    """Exit code and standard error of a command whose standard output nobody reads, as behind `| true`. `errors_too`:
    nobody reads standard error either."""
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
