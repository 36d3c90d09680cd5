"""torchrun behind a pipe: it ends with its parent, also where its ranks never meet."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import time
from echo2.coordinator.learner.ranks import torchrun
torchrun.GRACE_SECONDS = 0.1
torchrun.end_with_the_pipe()
print("watches", flush=True)
time.sleep(60)
"""


def test_it_ends_once_its_pipe_is_closed_and_not_before(repository: Path) -> None:
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=repository) as process:
        assert process.stdin is not None
        assert process.stdout.readline() == b"watches\n"
        process.stdin.write(b"a call that rank 0 will read")
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.stdin.close()
        assert process.wait(20) == 0
