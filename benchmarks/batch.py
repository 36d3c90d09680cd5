"""Measure the cost of a large batch for main process and learner: `python -m benchmarks.batch [--quick]`.

A run.sqlite holds one batch: 128 groups of 16 rollouts of 8,192 tokens (--quick: 512). Two ways to pass the batch from
the main process to the learner are measured in the same run:

    ours      main draws ids and packs them into a frame; the learner's process reads the tokens as arrays
    anchor    main decodes every group into lists and packs these into a frame

Bars for ours: main is blocked for at most 50 ms, and its frame has at most 20 bytes per group plus 200 bytes.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.messages import Batch
from echo2.coordinator.verdicts.replay_buffer import ReplayBuffer
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.leases import Lease, Rollout, Segment, Submission
from echo2.tasks.task import Score

GROUPS: Final = 128
SAMPLES: Final = 16
MOST_HELD: Final = 0.050
"""Most seconds for which the main process may be blocked."""

# Prints: tokens, seconds, growth of the peak of resident bytes.
READ: Final = """
import resource, sys, time
from pathlib import Path
from echo2.coordinator.learner.batches.batch_groups import read
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
groups = read(Path(sys.argv[1]), [bytes.fromhex(line) for line in sys.stdin.read().split()])
tokens = sum(len(sample.tokens) for group in groups for sample in group.samples)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(tokens, time.perf_counter() - began, (after - before) * (1 if sys.platform == "darwin" else 1024))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    tokens = 512 if parser.parse_args().quick else 8192
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.sqlite"
        with Database.open(path) as database:
            fill(database, tokens)
            buffer = ReplayBuffer(database, 4)
            buffer.rebuild([], 0, 1)
            began = time.perf_counter()
            drawn = buffer.draw(0, 1, GROUPS)
            assert drawn is not None
            frame = msgspec.msgpack.encode(Batch(step=1, groups=[group.id for group in drawn]))
            decode_seconds = time.perf_counter() - began
            read = learner(path, [group.id for group in drawn])
            theirs = anchor(database, [group.id for group in drawn])
    report(tokens, decode_seconds, len(frame), read, theirs)
    short = decode_seconds > MOST_HELD or len(frame) > 200 + 20 * GROUPS
    print("short of the bar" if short else "good")
    return int(short)


def fill(
    database: Database, tokens: int, *, groups: int = GROUPS, samples: int = SAMPLES, words: int = 150_000
) -> None:
    """Fill the buffer with accepted groups of version 0. `tokens`: of each rollout. `words`: of the vocabulary."""
    chance = np.random.default_rng(0)
    with database.transaction():
        for place in range(groups):
            name = place.to_bytes(16, "big")
            database.do(
                "INSERT INTO leases (id, node, nonce, position, era, version, sent, expires, state, document, sealed)"
                " VALUES (?, x'01', ?, ?, 1, 0, 0, 0, 'decided', ?, x'')",
                (name, name, place, encode(lease(name, tokens, samples))),
            )
            rollouts = [rollout(chance, tokens, words) for _ in range(samples)]
            scores = [Score(reward=float(n % 2), success=bool(n % 2)) for n in range(samples)]
            group = Submission(lease=name, era=1, version=0, root=bytes(32), rollouts=rollouts)
            database.do(
                "INSERT INTO submissions (lease, hash, at, payload, scores) VALUES (?, x'', 0, ?, ?)",
                (name, encode(group), msgspec.msgpack.encode(scores)),
            )
            behaviour = msgspec.msgpack.encode([one.logprobs for one in rollouts])
            database.do(
                "INSERT INTO buffer (lease, era, version, at, varied, behaviour) VALUES (?, 1, 0, 0, 1, ?)",
                (name, behaviour),
            )


def lease(name: bytes, tokens: int, samples: int) -> Lease:
    return Lease(
        id=name, node=bytes(32), nonce=name, task="reverse", task_version=1, index=0, prompt=[1] * 64,
        seeds=[bytes(16)] * samples, limit=tokens, era=1, version=0, root=bytes(32), sent=0, expires=0,
    )  # fmt: skip


def rollout(chance: np.random.Generator, tokens: int, words: int) -> Rollout:
    logprobs = chance.uniform(-4, 0, tokens).astype("<f4").tobytes()
    segments = [Segment(version=0, root=bytes(32), first=0)]
    return Rollout(
        tokens=chance.integers(0, words, tokens).tolist(), turns=[tokens], logprobs=logprobs, segments=segments
    )


def learner(path: Path, names: list[bytes]) -> tuple[int, float, int]:
    """Read the batch in a new process; return (tokens, seconds, growth of the peak of memory in bytes)."""
    command = [sys.executable, "-c", READ, str(path)]
    given = "\n".join(name.hex() for name in names)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    count, seconds, memory = done.stdout.split()
    return int(count), float(seconds), int(memory)


def anchor(database: Database, names: list[bytes]) -> tuple[int, float, int]:
    """Pack the tokens into a frame; return (its bytes, seconds, growth of the peak of memory in bytes)."""
    before = resident()
    began, groups = time.perf_counter(), list[Any]()
    for name in names:
        query = "SELECT s.payload, b.behaviour FROM submissions s JOIN buffer b ON b.lease = s.lease WHERE s.lease = ?"
        payload, behaviour = database.one(query, (name,)) or (b"", b"")
        values = [np.frombuffer(one, "<f4").tolist() for one in msgspec.msgpack.decode(behaviour)]
        rollouts = decode(payload, Submission).rollouts
        groups.append([(one.tokens, one.turns, value) for one, value in zip(rollouts, values, strict=True)])
    frame = len(msgspec.msgpack.encode(groups))
    return frame, time.perf_counter() - began, resident() - before


def resident() -> int:
    """Return the peak resident bytes of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def report(
    tokens: int, decode_seconds: float, frame: int, read: tuple[int, float, int], theirs: tuple[int, float, int]
) -> None:
    count, seconds, memory = read
    print(f"{GROUPS} groups of {SAMPLES} rollouts of {tokens:,} tokens: {count:,} tokens\n")
    print("| | main is held, s | frame, bytes | memory, MiB |\n|---|---|---|---|")
    print(f"| ids alone, main | {decode_seconds:.4f} | {frame:,} | |")
    print(f"| ids alone, learner reads | ({seconds:.2f} in its process) | | {memory / 2**20:.0f} |")
    print(f"| tokens through the pipe, main | {theirs[1]:.2f} | {theirs[0]:,} | {theirs[2] / 2**20:.0f} |\n")
    print(f"a frame is {theirs[0] / frame:,.0f} times smaller; 256 MiB is the most that one may have")


if __name__ == "__main__":
    sys.exit(main())
