"""Measure the ledger: entries with their tree against without, proofs, and the verification of an export.

    python -m benchmarks.ledger [--quick]

Entries are those of accepted groups, 64 per commit, without fsync on both sides. The anchor of the verification unpacks
the same files, and hashes each entry once: no less work shows that an export is what it was.
"""

import argparse
import hashlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import zstandard

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim, Measured
from coordinator.accounts.ledger import ESCROW, Ledger, accrued, canonical, transfer
from coordinator.accounts.ledger_audit import LedgerWalk
from coordinator.accounts.ledger_export import PER_FILE
from coordinator.accounts.ledger_tree import LedgerTree
from coordinator.database import Database
from coordinator.rollouts.lease_outcomes import LeaseOutcome
from p2p.identity import peer_id

PER_COMMIT: Final = 64
PROOFS: Final = 1_000


class WithoutTree(LedgerTree):
    """The anchor: a tree to which nothing is added."""

    def append(self, index: int, entry: bytes, missing: object) -> None:
        """Add nothing."""


def outcome(number: int) -> LeaseOutcome:
    """Return the facts of an accepted group."""
    return LeaseOutcome(
        node=peer_id(number.to_bytes(32)), lease=number.to_bytes(16), era=1, version=number // 16, sent=number,
        expires=number + 60_000, received=number + 900, code="ok", rollouts=8, tokens_in=300, tokens_out=700,
        weight=1_000, trainable=True, submission_hash=number.to_bytes(32),
    )  # fmt: skip


def grow(ledger: Ledger, database: Database, first: int, count: int) -> None:
    """Append entries, `PER_COMMIT` per transaction."""
    for start in range(first, first + count, PER_COMMIT):
        with database.transaction():
            ledger.issue_points(start, 1_000 * PER_COMMIT)
            for number in range(start, min(start + PER_COMMIT, first + count)):
                end = outcome(number)
                postings = transfer(ESCROW, accrued(peer_id((number % 50).to_bytes(32))), end.weight)
                ledger.append(number, "lease.accepted", f"lease:{number:032x}", end, postings)


class Growing:
    """A ledger that grows by `count` entries with each call."""

    def __init__(self, database: Database, count: int, tree: bool) -> None:
        database.do("PRAGMA synchronous = OFF")
        self._database, self._count, self._first = database, count, 0
        self._ledger = Ledger(database)
        if not tree:
            self._ledger.tree = WithoutTree(database)

    def __call__(self) -> float:
        grow(self._ledger, self._database, self._first, self._count)
        self._first += self._count
        return self._count


def prove(path: Path) -> float:
    """Make inclusion and consistency proofs all over a ledger; return how many of each."""
    with Database.open(path) as database:
        tree = Ledger(database).tree
        size = tree.size
        for number in range(PROOFS):
            tree.inclusion(1 + number * 7_919 % size, size)
            tree.consistency(1 + number * 104_729 % size, size)
    return PROOFS


def packed(path: Path) -> list[bytes]:
    """Return the entries of a ledger as the files of an export."""
    with Database.open(path) as database:
        rows = [(canonical(*entry[:6]), entry.hash) for entry in Ledger(database).entries()]
    parts = (rows[first : first + PER_FILE] for first in range(0, len(rows), PER_FILE))
    return [zstandard.compress(msgspec.msgpack.encode(part), 9) for part in parts]


def bare_reading(files: list[bytes]) -> float:
    """Unpack the files and hash each entry once; return how many."""
    decoder, entries = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]), 0
    for data in files:
        for written, _ in decoder.decode(zstandard.decompress(data)):
            hashlib.sha256(written).digest()
            entries += 1
    return entries


def verification(folder: Path, files: list[bytes]) -> float:
    """Verify the files as `ledger verify` does: chain, tree, keys, balances. Return the number of entries."""
    walk = LedgerWalk([])
    for number, data in enumerate(files):
        path = folder / f"{number * PER_FILE + 1:010d}"
        path.write_bytes(data)
        walk.take_file(path)
    walk.end()
    return walk.seq


def reopened(path: Path) -> int:
    """Open a file as after a kill, up to the ledger's end and its tree; return 1."""
    with Database.open(path) as database:
        ledger = Ledger(database)
        ledger.tree.root(ledger.tip().entries)
        database.set_fact("in_use", 1)
        database.checked = False  # so `close` leaves the file as a kill does
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="24,000 entries instead of 1,000,000")
    rounds, count = (5, 4_000) if parser.parse_args().quick else (5, 166_666)
    bench.header("ledger")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Database.open(folder / "with.sqlite") as one, Database.open(folder / "without.sqlite") as other:
            candidates = {"with": Growing(one, count, tree=True), "without": Growing(other, count, tree=False)}
            growth = bench.take_turns({name: bench.timed(work) for name, work in candidates.items()}, rounds)
        proofs = bench.take_turns({"proofs": bench.timed(lambda: prove(folder / "with.sqlite"))}, 3)["proofs"]
        opening = bench.take_turns({"open": bench.timed(lambda: reopened(folder / "with.sqlite"))}, 3)["open"]
        files, entries = packed(folder / "with.sqlite"), (rounds + 1) * count
        reading = {
            "verify": bench.timed(lambda: verification(folder, files)), "bare": bench.timed(lambda: bare_reading(files))
        }  # fmt: skip
        read = bench.take_turns(reading, 3)
    each = statistics.median(1000 / one.rate for one in proofs)
    opened = statistics.median(one.wall for one in opening)
    print(f"opened after a kill in {opened:.3f} s by the clock")
    rows = [
        ("entries appended, with the tree", _rate(growth["with"])),
        ("entries appended, without it", _rate(growth["without"])),
        ("entries of an export verified", _rate(read["verify"])),
        ("entries unpacked and hashed once", _rate(read["bare"])),
    ]
    bench.table(("work", "per CPU second"), rows)
    print(f"{entries} entries; {sum(map(len, files)) / entries:.1f} bytes each in an export")
    return bench.close([
        Claim("append", bench.ratio(growth["with"], growth["without"]), "the same without the tree", 0.7),
        Claim("proof", each, "1 ms of CPU for one of inclusion and one of consistency", 1.0, at_most=True),
        Claim("open", opened, "10 s by the clock, after a kill", 10.0, at_most=True),
        Claim("verify", bench.ratio(read["verify"], read["bare"]), "unpacking and hashing alone", 0.1),
    ])  # fmt: skip


def _rate(rounds: Sequence[Measured]) -> float:
    return statistics.median(one.rate for one in rounds)


if __name__ == "__main__":
    sys.exit(main())
