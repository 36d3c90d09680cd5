"""Measure chunks of 1 MiB from one process to another: `.venv-stock/bin/python -m benchmarks.transport [--quick]`.

`make stock` makes that environment.

Throughput and CPU of our transport over the loopback are compared with raw TCP, aiohttp over TLS and stock py-libp2p.

1. `stream`, a libp2p stream of ours, is compared with transports that move bytes and do no more. `fetch`, the path of a
   payload between two nodes, is compared with aiohttp and stock py-libp2p doing the same work
   (`benchmarks.transport.anchors.Store`).
2. All candidates run throughout and alternate; a ratio is the median over rounds of the ratio within a round.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.transport import anchors, ours
from benchmarks.transport.ends import CHUNK, TAKEN, Ends, TransferTurn, running, write_chunks

TCP = "raw TCP"
HTTPS = "aiohttp over TLS"
HTTPS_STORED = "aiohttp over TLS, hashed and stored"
STOCK = "stock py-libp2p"
STOCK_STORED = "stock py-libp2p, hashed and stored"
STREAM = "stream"
FETCH = "fetch"
CANDIDATES: dict[str, Ends] = {
    TCP: anchors.TCP,
    HTTPS: anchors.HTTPS,
    STOCK: anchors.STOCK,
    STREAM: ours.STREAM,
    HTTPS_STORED: anchors.HTTPS_STORED,
    STOCK_STORED: anchors.STOCK_STORED,
    FETCH: ours.FETCH,
}
Turns = Mapping[str, Sequence[TransferTurn]]


def take_turns(names: Sequence[str], chunks: int, repeats: int) -> dict[str, list[TransferTurn]]:
    """Run each candidate once to warm up, then `repeats` rounds of all candidates.

    The sent file lies on disk and, since it was just written, in the page cache, like a payload that was just made. The
    received file is stored in memory where the system has a file system for that, so that no disk is measured.
    """
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with ExitStack() as stack:
        folder, taken = (Path(stack.enter_context(tempfile.TemporaryDirectory(dir=dir))) for dir in (None, memory))
        (folder / TAKEN).symlink_to(taken)
        write_chunks(folder, chunks)
        turns = {name: stack.enter_context(running(CANDIDATES[name], folder, chunks)) for name in names}
        for run_once in turns.values():
            run_once()
        measured: dict[str, list[TransferTurn]] = {name: [] for name in names}
        for _ in range(repeats):
            for name, run_once in turns.items():
                measured[name].append(run_once())
    return measured


def ratio(turns: Turns, subject: str, anchor: str, what: Callable[[TransferTurn], float]) -> float:
    """Return the median over rounds of `what` of the subject divided by `what` of the anchor."""
    pairs = zip(turns[subject], turns[anchor], strict=True)
    return statistics.median(what(one) / what(other) for one, other in pairs)


def claims(turns: Turns) -> list[Claim]:
    """Return the claims with their bars."""
    claims_made = []
    for subject, https in ((STREAM, HTTPS), (FETCH, HTTPS_STORED)):
        claims_made.append(Claim(f"{subject} throughput", ratio(turns, subject, https, TransferTurn.speed), https, 0.9))
        claims_made.append(
            Claim(f"{subject} CPU", ratio(turns, subject, https, TransferTurn.cost), https, 1.2, at_most=True)
        )
    claims_made.append(Claim(f"{STREAM} throughput", ratio(turns, STREAM, STOCK, TransferTurn.speed), STOCK, 3.5))
    return claims_made


def rows(turns: Turns) -> list[list[object]]:
    """Return the table's rows: medians over the rounds, and the best throughput."""
    return [
        [
            name,
            statistics.median(map(TransferTurn.speed, taken)),
            max(map(TransferTurn.speed, taken)),
            statistics.median(measured_turn.holder_cpu / measured_turn.nbytes * 1e9 for measured_turn in taken),
            statistics.median(measured_turn.taker_cpu / measured_turn.nbytes * 1e9 for measured_turn in taken),
            statistics.median(map(TransferTurn.cost, taken)),
        ]
        for name, taken in turns.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="64 MiB per round instead of 256, 5 rounds instead of 9")
    chunks, repeats = (64, 5) if (quick := parser.parse_args().quick) else (256, 9)
    bench.header("Chunks of 1 MiB between two processes", ["libp2p", "aiohttp", "cryptography", "trio"])
    turns = take_turns(list(CANDIDATES), chunks, repeats)
    print(f"{repeats} rounds of {chunks * CHUNK >> 20} MiB{' (quick)' if quick else ''}; medians\n")
    bench.table(["candidate", "MB/s", "best", "sender CPU s/GB", "receiver", "both"], rows(turns))
    gained = ratio(turns, FETCH, STOCK_STORED, TransferTurn.speed)
    print(f"{FETCH} throughput: ratio {gained:.2f} against {STOCK_STORED}, reported, no bar")
    return bench.close(claims(turns))


if __name__ == "__main__":
    sys.exit(main())
