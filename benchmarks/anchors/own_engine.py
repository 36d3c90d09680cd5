"""An engine of ours as a subject of benchmarks.anchors, in a process of its own as a node has it."""

import asyncio
import os
import sys
from pathlib import Path

import psutil

from benchmarks.anchors import batch_loop
from benchmarks.anchors.same_prompt import PROMPT
from echo2.engines.engine import Job
from echo2.engines.process.process import EngineProcess
from echo2.weights.journaled import Rolling
from echo2.weights.snapshot import Snapshot

UNWRITTEN = 2
"""The id of the end of a turn: random weights write it seldom, and a rollout that ends early counts with its tokens."""


def main() -> None:
    engine, model, snapshot, limit = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    loop = asyncio.new_event_loop()
    process = EngineProcess(name=engine, engine=engine)
    loop.run_until_complete(process.__aenter__())
    try:
        loop.run_until_complete(process.probe("cpu", "float32", engine=engine))
        weights = model / f"weights-{engine}"
        Rolling.create(weights, Snapshot(snapshot))
        loop.run_until_complete(process.load(model, weights))

        def generate(batch: int) -> int:
            job = Job(
                prompt=list(PROMPT), seeds=[os.urandom(16) for _ in range(batch)], limit=limit, eos=UNWRITTEN,
                task="none", task_version=1, split="train", index=0, single_turn=True,
            )  # fmt: skip
            samples = loop.run_until_complete(process.generate(job))
            return sum(len(sample.logprobs) for sample in samples)

        batch_loop.answer(generate, psutil.Process(process.pid))
    finally:
        loop.run_until_complete(process.__aexit__(None, None, None))


if __name__ == "__main__":
    main()
