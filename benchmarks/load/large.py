"""Make the run folder of a long run: `python -m benchmarks.load.large FOLDER [--groups 1000000] [--quick]`.

    run.sqlite      groups, nodes, open leases (benchmarks/load/rows.py)
    store/          documents of all versions, files of the last ones (benchmarks/load/published.py)
    history.jsonl   per version a line of its step and one of the version; every 8 versions one of an evaluation

The triggers of run.sqlite come last: its sums are computed at once from all rows (benchmarks/load/sums.py).
"""

import argparse
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks.load.folder import make_run
from benchmarks.load.published import VersionHistory, write_store
from benchmarks.load.rows import Rows, Shape
from benchmarks.load.stub_learner import DRAWN
from benchmarks.load.sums import SUMS
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.schema import SCRIPT, TABLES, TRIGGERS
from echo2.coordinator.metrics.views import Evaluation, StepPoint, VersionRow
from echo2.coordinator.prompts.prompts import TaskPrompts
from echo2.coordinator.run import model_folder
from echo2.coordinator.run.setup import Run
from echo2.coordinator.training.run_services import pure_tasks_of
from echo2.ledger.ledger_entries import canonical
from echo2.p2p.discovery.messages import PeerRecord
from echo2.p2p.envelope import Envelope, Signature
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.wire_types import encode
from echo2.runtime import sqlite_form

_AT_ONCE: Final = 20_000
_COLUMNS: Final = {
    "nodes": "key, name, software, engine, device, addresses, first_seen, last_seen, version",
    "versions": "era, version, root, at",
    "leases": "id, node, nonce, position, era, version, sent, expires, state, document, sealed",
    "submissions": "lease, hash, at, payload, scores, received, conflicts",
    "verdicts": ("lease, node, verdict, code, trainable, weight, rollouts, tokens, entry, at, receipt, confirmed"),
    "entries": "seq, at, kind, key, postings, facts, hash",
    "buffer": "lease, era, version, at, varied, behaviour",
    "balances": "account, amount",
    "facts": "name, value",
}


def make_large(folder: Path, shape: Shape, **sections: Any) -> Run:
    """Make the run folder. `sections`: settings of the run, by section. The run ends at `shape.now`, so a program that
    opens it needs a clock that is not behind that."""
    sections.setdefault("run", {}).update(group_size=shape.group_size)
    run = make_run(folder, now=shape.now, **sections)
    history = VersionHistory.of(run, shape)
    write_store(run, shape, history)
    write_history(folder / "history.jsonl", shape)
    write_database(run, shape, history.roots)
    write_drawn(run, shape)
    write_tree(run)
    Database.open(run.folder.database).close()
    return run


def write_database(run: Run, shape: Shape, roots: list[bytes]) -> None:
    """Write run.sqlite."""
    connection = sqlite3.connect(run.folder.database, isolation_level=None)
    try:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -1000000", "locking_mode = EXCLUSIVE"):
            connection.execute(f"PRAGMA {pragma}")
        parts = sqlite_form.statements(TABLES)
        indexes = [part for part in parts if "INDEX" in part.split(" (")[0]]
        for statement in parts:
            if statement not in indexes:
                connection.execute(statement)
        connection.execute("BEGIN")
        _fill(connection, run, shape, roots)
        for statement in indexes:  # made at the end they take a third of the time
            connection.execute(statement)
        connection.execute("COMMIT")
        connection.executescript(SUMS + TRIGGERS)
        sqlite_form.mark(connection, SCRIPT)
    finally:
        connection.close()


def _fill(connection: sqlite3.Connection, run: Run, shape: Shape, roots: list[bytes]) -> None:
    role, nodes = public_bytes(run.keys.channel), node_keys(shape.nodes)
    prompts = TaskPrompts(pure_tasks_of(run)[0], model_folder.tokenizer(run.folder.model, run.runspec.ends), seed=7)
    rows = Rows(shape, run.id, role, nodes, roots, prompts)
    _insert(connection, "nodes", (_node(run.id, key, shape) for key in nodes))
    at = (shape.sent(version * shape.groups // shape.versions) for version in range(shape.versions))
    _insert(connection, "versions", ((1, v, root, when) for v, (root, when) in enumerate(zip(roots, at, strict=True))))
    _insert(connection, "entries", [rows.issued()])
    for start in range(0, shape.groups, _AT_ONCE):
        groups = list(rows.groups(start, min(start + _AT_ONCE, shape.groups)))
        for table, column in (
            ("leases", 0), ("submissions", 1), ("entries", 3), ("verdicts", 2), ("buffer", 4),
        ):  # fmt: skip
            _insert(connection, table, [group[column] for group in groups if group[column] is not None])
    _insert(connection, "leases", rows.still_out())
    _insert(connection, "balances", rows.balances.items())
    _insert(connection, "facts", [("alive_at", shape.now)])


def _insert(connection: sqlite3.Connection, table: str, rows: Iterable[Any]) -> None:
    columns = _COLUMNS[table]
    marks = ", ".join("?" * len(columns.split(",")))
    connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)


def write_drawn(run: Run, shape: Shape) -> None:
    """Write the lease ids that the stub learner has drawn: the last 1,000 accepted, except for the last
    `shape.undrawn`."""
    with closing(sqlite3.connect(run.folder.database)) as connection:
        newest = "SELECT lease FROM buffer ORDER BY rowid DESC LIMIT 1000 OFFSET ?"
        drawn = [lease for (lease,) in connection.execute(newest, (shape.undrawn,))]
    run.folder.learner.mkdir(exist_ok=True)
    (run.folder.learner / DRAWN).write_bytes(msgspec.msgpack.encode(drawn))


def write_tree(run: Run) -> None:
    """Write the tree over the ledger's entries."""
    with Database.open(run.folder.database) as database, database.transaction():
        ledger = Ledger(database)
        for entry in ledger.entries():
            ledger.tree.append(entry.seq - 1, canonical(*entry[:6]))


def node_keys(count: int) -> list[bytes]:
    """Return the public keys of the history's nodes; their private keys do not exist."""
    random = np.random.default_rng(11).bytes(32 * count)
    return [random[at : at + 32] for at in range(0, len(random), 32)]


def _node(run: bytes, key: bytes, shape: Shape) -> tuple[Any, ...]:
    host = "127.{}.{}.{}".format(*key[:3])  # on this machine, where no node listens
    record = PeerRecord(addresses=[f"/ip4/{host}/tcp/1025/p2p/{peer_id(key)}"], issued=shape.now - 60_000)
    sealed = msgspec.msgpack.encode(Envelope("peer", run, encode(record), [Signature(key, bytes(64))]))
    said = (f"node-{key[:3].hex()}", "echo2 0.1", "stub/float32/cpu", "a CPU")
    return (key, *said, sealed, shape.sent(0), shape.now - key[0] * 1000, shape.versions - 1 - key[1] % 3)


def write_history(path: Path, shape: Shape) -> None:
    """Write history.jsonl: steps, versions and evaluations, with a reward that rises."""
    metrics = {name: 0.0123 for name in ("loss", "grad_norm", "kl", "ess", "clipped", "truncated", "tokens")}
    with path.open("wb") as file:
        for version in range(shape.versions):
            at = shape.sent(version * shape.groups // shape.versions)
            row = VersionRow(version=version, era=1, at=at, diff_bytes=900, full_bytes=8300, first_node_seconds=0.3)
            _write_record(file, "version", row)
            if version:
                reward = 0.5 + 0.4 * version / shape.versions
                point = StepPoint(
                    step=version, at=at, reward=reward, success=reward, staleness=1.0, seconds=0.5, metrics=metrics
                )
                _write_record(file, "step", point)
            if version % 8 == 0:
                _write_record(
                    file, "evaluation", Evaluation(version=version, at=at, prompts=4, sampled=0.5, greedy=0.6)
                )


def _write_record(file: Any, kind: str, record: msgspec.Struct) -> None:
    file.write(msgspec.json.encode({"kind": kind, "record": record}) + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--groups", type=int, default=1_000_000, help="nodes, versions and open leases follow from it")
    parser.add_argument("--quick", action="store_true", help="100,000 groups")
    options = parser.parse_args()
    groups = 100_000 if options.quick else options.groups
    began = time.monotonic()
    shape = shape_of(groups, now=time.time_ns() // 1_000_000)
    run = make_large(options.folder, shape)
    size = run.folder.database.stat().st_size
    print(f"{shape}\nrun.sqlite has {size / 2**20:,.0f} MiB; made in {time.monotonic() - began:.0f} s")


def shape_of(groups: int, *, now: int) -> Shape:
    """Return a run of `groups` groups: a version for every 10 of them, a node for every 100, three open leases per
    node."""
    nodes = max(10, groups // 100)
    return Shape(now=now, groups=groups, nodes=nodes, versions=max(2, groups // 10), open=3 * nodes)


if __name__ == "__main__":
    main()
