"""Kill a writer of the ledger with SIGKILL at random points under load, and look for what it acknowledged.

    python -m benchmarks.ledger_kills [--points N] [--seed N]

The writer appends entries under group commit, 16 at a time, signs heads among them, and tells each entry and head once
it is durable. Its successor first appends again what the one before may have lost, under the same keys. After each kill
every acknowledged entry and head must be there once, unchanged; each file is verified whole at its end. A kill of the
process is no power cut: what the disk itself loses is not measured.
"""

import argparse
import asyncio
import hashlib
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.ledger import outcome
from echo2.coordinator.accounts.head_signing import LedgerHeads
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import ESCROW, accrued_account, transfer
from echo2.p2p.envelope import seal
from echo2.p2p.identity import generate_key, peer_id

WRITERS: Final = 16
PER_FILE: Final = 25
"""Kills per file: a later one takes longer to open and to verify."""
LONGEST: Final = 0.08
"""Most seconds from the first acknowledgement of a writer to its end."""
RUN: Final = bytes(32)
KEY: Final = generate_key()


def _sealed(kind: str, payload: bytes) -> bytes:
    return seal(kind, RUN, payload, KEY)


def write(path: Path, told: int, first: int) -> NoReturn:
    """Append and tell until killed. `told`: descriptor of the pipe. `first`: number of the first entry to append."""
    try:
        asyncio.run(_write(path, told, first))
    except BaseException:
        traceback.print_exc()
    os._exit(1)


async def _write(path: Path, told: int, first: int) -> None:
    with Database.open(path) as database, database.group_commits():
        ledger, numbers = Ledger(database), iter(range(first, 1 << 40))
        heads = LedgerHeads(database, ledger, RUN, _sealed, lambda head, text: text, every=1)
        await asyncio.gather(*(_append(database, ledger, heads, numbers, told) for _ in range(WRITERS)))


async def _append(database: Database, ledger: Ledger, heads: LedgerHeads, numbers: Iterator[int], told: int) -> None:
    for number in numbers:
        with database.transaction():
            ledger.issue_points(number, 1_000)
            end = outcome(number)
            postings = transfer(ESCROW, accrued_account(peer_id((number % 50).to_bytes(32))), end.weight)
            entry = ledger.append(number, "lease.accepted", f"lease:{number:032x}", end, postings)
        acknowledged = f"entry {number} {entry.seq} {entry.hash.hex()}\n"
        if number % 64 == 0 and (head := heads.sign(number)) is not None:
            acknowledged += f"head 0 {head.number} {head.root.hex()}\n"
        await database.durable()
        os.write(told, acknowledged.encode())


def killed(path: Path, first: int, seconds: float) -> list[list[str]]:
    """Run a writer, kill it `seconds` after its first acknowledgement, and return what it told."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        write(path, writer, first)
    os.close(writer)
    said = os.read(reader, 1 << 16)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            said += os.read(reader, 1 << 16)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise RuntimeError("the writer failed by itself")
    while more := os.read(reader, 1 << 16):
        said += more
    os.close(reader)
    return [acknowledged.split() for acknowledged in said.decode().split("\n")[:-1]]


def missing(path: Path, told: list[list[str]]) -> int:
    """Return how many acknowledged entries and heads are not in a file as they were told."""
    lost = 0
    with Database.open(path) as database:
        ledger = Ledger(database)
        for word, number, place, digest in told:
            if word == "entry":
                entry = ledger.find(f"lease:{int(number):032x}")
                lost += entry is None or (entry.seq, entry.hash.hex()) != (int(place), digest)
            else:
                size = database.value("SELECT size FROM ledger_heads WHERE number = ?", (int(place),))
                lost += size is None or ledger.tree.root(size).hex() != digest
    return lost


def doubled(path: Path) -> int:
    """Verify a file; return how many entries are there twice, by what they say of their leases."""
    with Database.open(path) as database:
        ledger = Ledger(database)
        ledger.verify()
        leases = [hashlib.sha256(one.facts).digest() for one in ledger.entries() if one.kind == "lease.accepted"]
    return len(leases) - len(set(leases))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=500, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    bench.header("ledger kills")
    chance, lost, twice, acknowledged = random.Random(args.seed), 0, 0, 0
    for begun in range(0, args.points, PER_FILE):
        with tempfile.TemporaryDirectory() as name:
            path, first = Path(name) / "run.sqlite", 0
            for _ in range(min(PER_FILE, args.points - begun)):
                told = killed(path, first, chance.uniform(0.0, LONGEST))
                lost += missing(path, told)
                acknowledged += len(told)
                highest = max((int(number) for word, number, *_ in told if word == "entry"), default=first)
                first = max(0, highest - 2 * WRITERS)
            twice += doubled(path)
    print(f"{args.points} kills; {acknowledged} acknowledgements of entries and heads; {lost} lost, {twice} double")
    return bench.close([
        Claim("lost", lost, "acknowledged entries and heads", 0, at_most=True),
        Claim("double", twice, "entries", 0, at_most=True),
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
