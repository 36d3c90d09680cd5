"""A process that forks children; each steps a folder of journaled weights and stores diffs until it is killed.

    journaled_worker.py FOLDER VERSIONS

FOLDER holds 0.safetensors ... and I-J.payload between neighbours. Each line on stdin is the seed of a child: it
prints its pid, tests/weights/test_journaled.py kills it, and "dead" is printed. The first child also prints "stepped"
after its first step, so that the test knows how long one takes here. With a log the weights go forward only, and the
log is folded at times.
"""

import os
import random
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from echo2.runtime.memory_folder import remove_memory_folder
from echo2.weights.diff import encode
from echo2.weights.journaled import Rolling
from echo2.weights.logged_weights import fold_log, has_log, open_weights
from echo2.weights.snapshot import Snapshot
from echo2.weights.store import Store

KEEP = 3


def work(folder: Path, versions: int, seed: int) -> Iterator[None]:
    """Step for ever; yield after each step."""
    rng = random.Random(seed)
    snapshots = [Snapshot(folder / f"{number}.safetensors") for number in range(versions)]
    numbers = {snapshot.root: number for number, snapshot in enumerate(snapshots)}
    rolling = Rolling(folder / "rolling")
    with Store(folder / "store") as store:
        while True:
            at = numbers[rolling.root]
            if rolling.behind() and rng.random() < 0.3:
                rolling.back()
            elif rolling.ahead() and rng.random() < 0.6:
                rolling.redo()
            else:
                to = (at + 1) % versions
                rolling.apply(folder / f"{at}-{to}.payload", snapshots[to].root, keep=KEEP, threads=1)
            payload = encode(snapshots[at], snapshots[(at + 1) % versions], store.scratch("payload"), threads=1)
            store.put_payload(1, at, payload.hash, payload.path)
            store.collect(set(), 200_000)
            yield


def work_by_a_log(folder: Path, versions: int, seed: int) -> Iterator[None]:
    """Step for ever; yield after each step."""
    rng = random.Random(seed)
    snapshots = [Snapshot(folder / f"{number}.safetensors") for number in range(versions)]
    numbers = {snapshot.root: number for number, snapshot in enumerate(snapshots)}
    while True:
        weights = open_weights(folder / "rolling")
        at = numbers[weights.root]
        to = (at + 1) % versions
        weights.apply(folder / f"{at}-{to}.payload", snapshots[to].root, threads=1)
        if rng.random() < 0.3:
            fold_log(folder / "rolling")
        yield


def main(folder: Path, versions: int) -> None:
    for number, order_text in enumerate(sys.stdin):
        child = os.fork()
        if not child:
            print(os.getpid(), flush=True)
            steps = (work_by_a_log if has_log(folder / "rolling") else work)(folder, versions, int(order_text))
            next(steps)
            if number == 0:
                print("stepped", flush=True)
            deque(steps, maxlen=0)
        os.waitpid(child, 0)
        print("dead", flush=True)
    remove_memory_folder(folder / "rolling")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
