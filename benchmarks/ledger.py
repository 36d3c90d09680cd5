"""Measure the ledger: acceptances, entries with their tree against without, proofs, opening, verification and replay.

    python -m benchmarks.ledger [--quick]

Entries are those of accepted groups, 64 per commit, without fsync on both sides. The anchor of the verification unpacks
the same files, and hashes each entry once: no less work shows that an export is what it was. That of the replay also
reads what an entry says, and hashes it as chain and tree are made, so it computes the root that the head signs.
Acceptances: benchmarks/ledger_acceptances.py.
"""

import argparse
import gzip
import hashlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks import ledger_acceptances
from benchmarks.harness import bench
from benchmarks.harness.bench import Claim, Measured
from echo2.coordinator.accounts.accounting import Accounting
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.accounts.ledger_tree import LedgerTree
from echo2.coordinator.database.database import Database
from echo2.coordinator.ledger_files.ledger_export import LEVEL
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.ledger.export_files import PER_FILE
from echo2.ledger.ledger_audit import LedgerWalk
from echo2.ledger.ledger_entries import ESCROW, accrued_account, canonical, transfer
from echo2.ledger.ledger_facts import VERDICT_RULES
from echo2.ledger.ledger_replay import LedgerReplay
from echo2.p2p.identity import generate_key, peer_id, public_bytes
from echo2.protocol.group_weights import GroupLengths, group_weight

PER_COMMIT: Final = 64
PROOFS: Final = 1_000


class WithoutTree(LedgerTree):
    """The anchor: a tree to which nothing is added."""

    def append(self, index: int, entry: bytes) -> None:
        """Add nothing."""


NODES: Final = [peer_id(public_bytes(generate_key())) for _ in range(50)]
PROMPT: Final = 300
TURNS: Final = [[80 + sample] for sample in range(8)]
WEIGHT: Final = group_weight(None, GroupLengths(PROMPT, TURNS))


def outcome(number: int) -> LeaseOutcome:
    """Return the facts of an accepted group."""
    return LeaseOutcome(
        node=NODES[number % len(NODES)], lease=number.to_bytes(16), era=1, version=number // 16, sent=number * 900,
        expires=number * 900 + 60_000, received=number * 900 + 900, code="ok", rollouts=8, tokens_in=2_400,
        tokens_out=668, weight=WEIGHT, trainable=True, submission_hash=number.to_bytes(32), rules=VERDICT_RULES,
        audited="exact", prompt=PROMPT, turns=TURNS,
    )  # fmt: skip


def grow(ledger: Ledger, database: Database, first: int, count: int) -> None:
    """Append entries, `PER_COMMIT` per transaction."""
    for start in range(first, first + count, PER_COMMIT):
        with database.transaction():
            ledger.issue_points(start, WEIGHT * PER_COMMIT)
            for number in range(start, min(start + PER_COMMIT, first + count)):
                end = outcome(number)
                postings = transfer(ESCROW, accrued_account(end.node), end.weight)
                ledger.append(number * 900, "lease.accepted", f"lease:{end.lease.hex()}", end, postings)


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
    return [gzip.compress(msgspec.msgpack.encode(part), LEVEL, mtime=0) for part in parts]


def bare_reading(files: list[bytes]) -> float:
    """Unpack the files and hash each entry once; return how many."""
    decoder, entries = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]), 0
    for data in files:
        for written, _ in decoder.decode(gzip.decompress(data)):
            hashlib.sha256(written).digest()
            entries += 1
    return entries


class Read(msgspec.Struct):
    """The facts of an accepted group that a replay needs."""

    node: str
    weight: int
    prompt: int = 0
    turns: list[list[int]] = []


def whole_reading(files: list[bytes]) -> float:
    """Unpack the files, decode each entry with its facts, and hash it for the chain and the tree; return how many."""
    rows = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])
    entry = msgspec.msgpack.Decoder(tuple[int, int, str, str, list[tuple[str, int]], bytes])
    facts, sha256, tip = msgspec.msgpack.Decoder(Read | None), hashlib.sha256, bytes(32)
    whole: list[bytes] = []
    count = 0
    for packed_entries in files:
        for written, _ in rows.decode(gzip.decompress(packed_entries)):
            _, _, kind, _, _, data = entry.decode(written)
            if kind == "lease.accepted":
                facts.decode(data)
            tip, digest = sha256(tip + written).digest(), sha256(b"\0" + written).digest()
            level = count
            while level & 1:
                digest = sha256(b"\1" + whole.pop() + digest).digest()
                level >>= 1
            whole.append(digest)
            count += 1
    return count


def verification(folder: Path, files: list[bytes], replays: bool = False) -> float:
    """Verify the files as `ledger verify` does: chain, tree, keys, balances. `replays`: and replay them in the same
    pass, as `ledger replay` does: weights, postings, standing, ranking. Return the number of entries."""
    replay = LedgerReplay([]) if replays else None
    walk = LedgerWalk([], replay.take if replay else None)
    for number, data in enumerate(files):
        path = folder / f"{number * PER_FILE + 1:010d}"
        path.write_bytes(data)
        walk.take_file(path)
    walk.end()
    if replay:
        replay.state().as_bytes()
    return walk.seq


def stored(path: Path) -> float:
    """Verify a file as the coordinator does beside its run; return the number of entries."""
    with Database.read(path) as database:
        return Ledger(database).verify().entries


def reopened(path: Path) -> int:
    """Open a file as after a kill, up to the ledger's end, its tree, and the tables of its keys; return 1."""
    with Database.open(path) as database:
        ledger = Accounting(database).ledger
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
        taken = ledger_acceptances.acceptances(folder, rounds, 640)
        accepted, bare, together = ([getattr(one, name) for one in taken] for name in ledger_acceptances.Round._fields)
        first = [
            Claim("acceptances", bench.ratio(accepted, bare), "their rows written alone, and a signature each", 0.5)
        ]
        status = bench.close(first)
        print(flush=True)
        path = folder / "with.sqlite"
        with Database.open(path) as one, Database.open(folder / "without.sqlite") as other:
            candidates = {"with": Growing(one, count, tree=True), "without": Growing(other, count, tree=False)}
            growth = bench.take_turns({name: bench.timed(work) for name, work in candidates.items()}, rounds)
        (folder / "without.sqlite").unlink()
        proofs = bench.take_turns({"proofs": bench.timed(lambda: prove(path))}, 3)["proofs"]
        opening = bench.take_turns({"open": bench.timed(lambda: reopened(path))}, 3)["open"]
        beside = bench.timed(lambda: stored(path))()
        files, entries = packed(path), (rounds + 1) * count
        read = bench.take_turns({
            "verify": bench.timed(lambda: verification(folder, files)),
            "bare": bench.timed(lambda: bare_reading(files)),
            "replay": bench.timed(lambda: verification(folder, files, replays=True)),
            "whole": bench.timed(lambda: whole_reading(files)),
        }, 2)  # fmt: skip
    each = statistics.median(1000 / one.rate for one in proofs)
    opened = statistics.median(one.wall for one in opening)
    print(f"opened after a kill in {opened:.3f} s by the clock; verified beside the run in {beside.wall:.1f} s")
    rows = [
        ("acceptances", _rate(accepted), _wall(accepted)),
        ("their rows alone, one signature each", _rate(bare), _wall(bare)),
        ("these rows, those of a statement together", _rate(together), _wall(together)),
        ("entries appended, with the tree", _rate(growth["with"]), _wall(growth["with"])),
        ("entries appended, without it", _rate(growth["without"]), _wall(growth["without"])),
        ("entries of run.sqlite verified", beside.rate, beside.work / beside.wall),
        ("entries of an export verified", _rate(read["verify"]), _wall(read["verify"])),
        ("entries of an export verified and replayed", _rate(read["replay"]), _wall(read["replay"])),
        ("entries unpacked and hashed once", _rate(read["bare"]), _wall(read["bare"])),
        ("entries unpacked, decoded, hashed for chain and tree", _rate(read["whole"]), _wall(read["whole"])),
    ]
    bench.table(("work", "per CPU second", "per second by the clock"), rows)
    print(f"{entries} entries; {sum(map(len, files)) / entries:.1f} bytes each in an export")
    return max(status, bench.close([
        Claim("append", bench.ratio(growth["with"], growth["without"]), "the same without the tree", 0.7),
        Claim("proof", each, "1 ms of CPU for one of inclusion and one of consistency", 1.0, at_most=True),
        Claim("open", opened, "10 s by the clock, after a kill", 10.0, at_most=True),
        Claim("verify", bench.ratio(read["verify"], read["bare"]), "unpacking and hashing alone", 0.1),
        Claim("replay", bench.ratio(read["replay"], read["whole"]), "reading and hashing as chain and tree do", 0.1),
    ]))  # fmt: skip


def _rate(rounds: Sequence[Measured]) -> float:
    return statistics.median(one.rate for one in rounds)


def _wall(rounds: Sequence[Measured]) -> float:
    return statistics.median(one.work / one.wall for one in rounds)


if __name__ == "__main__":
    sys.exit(main())
