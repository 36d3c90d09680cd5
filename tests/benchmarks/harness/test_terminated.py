"""A benchmark that is told to end ends the processes that it started."""

import signal
import subprocess
import sys

BENCHMARK = """
import subprocess, sys
from contextlib import ExitStack
from benchmarks.harness import bench

bench.header("waits")
with ExitStack() as stack:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    stack.callback(lambda: (child.kill(), print("ended", child.wait(), flush=True)))
    print("ready", flush=True)
    child.wait()
"""


def test_sigterm_ends_a_benchmark_in_order() -> None:
    with subprocess.Popen([sys.executable, "-c", BENCHMARK], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(text_line == "ready\n" for text_line in process.stdout)
        process.terminate()
        assert process.stdout.read() == "ended -9\n"
    assert process.returncode == 128 + signal.SIGTERM
