"""The loop of a subject of benchmarks.anchors: a batch size per line in, what it took out."""

import json
import sys
import time
from collections.abc import Callable

import psutil


def answer(generate: Callable[[int], int], process: psutil.Process) -> None:
    """Answer each batch size of standard input. `generate`: makes so many rollouts, and returns their tokens.
    `process`: whose CPU time counts, with its descendants'."""
    for text in sys.stdin:
        cpu, wall = _cpu(process), time.perf_counter()
        tokens = generate(int(text))
        told = {"tokens": tokens, "cpu": _cpu(process) - cpu, "wall": time.perf_counter() - wall}
        print("\n" + json.dumps(told), flush=True)


def _cpu(process: psutil.Process) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in (process, *process.children(recursive=True)))
