"""Child processes of tests."""

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
