"""The tables of run.sqlite, as the migrations that make them.

Rules
1. A file's schema is its `user_version`: the number of migrations that it has been through. A new file goes through all
   of them, an older one through those that it lacks, so both have the same tables by construction.
2. All migrations of one open are one transaction: a process that is killed in the middle leaves the file as it was.
3. A migration that was released is never changed. Schema 1 is what version 0.1 made; schema 2 is not released yet, and
   whatever it still needs is added to `SCHEMA_2` as a `Part` of its own, with its columns in docs/protocol/disk.md.
4. A part works on a file with history: a table of sums is filled from the rows that are there.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

PATIENCE = 10.0
"""Seconds of one part's work after which its progress is told."""
_OPCODES = 2_000_000
"""SQLite's instructions between two looks at the clock: some 10 ms."""


class Part(NamedTuple):
    """A step of a migration. `what`: it makes, for the log. `script`: SQL statements without a transaction."""

    what: str
    script: str


SCHEMA_1 = (
    Part(
        "the tables of a run",
        """
CREATE TABLE facts (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT;
CREATE TABLE nodes (
    key BLOB PRIMARY KEY, name TEXT NOT NULL, software TEXT NOT NULL, engine TEXT NOT NULL, device TEXT NOT NULL,
    addresses BLOB NOT NULL, first_seen INTEGER NOT NULL, last_seen INTEGER NOT NULL, version INTEGER, banned TEXT
) STRICT;
CREATE TABLE versions (
    era INTEGER NOT NULL, version INTEGER NOT NULL, root BLOB NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (era, version)
) STRICT;
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL UNIQUE,
    postings BLOB NOT NULL, facts BLOB NOT NULL, hash BLOB NOT NULL
) STRICT;
CREATE TRIGGER entries_are_never_changed BEFORE UPDATE ON entries
BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER entries_are_never_removed BEFORE DELETE ON entries
BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TABLE balances (account TEXT PRIMARY KEY, amount INTEGER NOT NULL) STRICT;
CREATE TABLE leases (
    id BLOB PRIMARY KEY, node BLOB NOT NULL, nonce BLOB NOT NULL, position INTEGER NOT NULL UNIQUE,
    era INTEGER NOT NULL, version INTEGER NOT NULL, sent INTEGER NOT NULL, expires INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'received', 'decided', 'expired')),
    document BLOB NOT NULL, sealed BLOB NOT NULL, UNIQUE (node, nonce)
) STRICT;
CREATE INDEX leases_by_state ON leases (state, node);
CREATE INDEX leases_by_node ON leases (node, position);
CREATE TRIGGER a_final_state_is_final BEFORE UPDATE OF state ON leases WHEN OLD.state IN ('decided', 'expired')
BEGIN SELECT RAISE(ABORT, 'this lease has its final state'); END;
CREATE TABLE submissions (
    lease BLOB PRIMARY KEY REFERENCES leases, hash BLOB NOT NULL, at INTEGER NOT NULL, payload BLOB,
    scores BLOB, received BLOB, conflicts INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE evidence (
    lease BLOB PRIMARY KEY REFERENCES leases, hash BLOB NOT NULL, at INTEGER NOT NULL, payload BLOB NOT NULL
) STRICT;
CREATE TABLE verdicts (
    lease BLOB PRIMARY KEY REFERENCES leases, node BLOB NOT NULL, verdict TEXT NOT NULL, code TEXT NOT NULL,
    trainable INTEGER NOT NULL, weight INTEGER NOT NULL, rollouts INTEGER NOT NULL, tokens INTEGER NOT NULL,
    entry INTEGER NOT NULL REFERENCES entries, at INTEGER NOT NULL, receipt BLOB NOT NULL,
    confirmed INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX verdicts_by_node ON verdicts (node, verdict, code);
CREATE TABLE buffer (
    lease BLOB PRIMARY KEY REFERENCES leases, era INTEGER NOT NULL, version INTEGER NOT NULL, at INTEGER NOT NULL,
    varied INTEGER NOT NULL, behaviour BLOB
) STRICT;
CREATE INDEX buffer_oldest_first ON buffer (era, version, at);
""",
    ),
)

SCHEMA_2 = (
    Part(
        "leases on their way, by version",
        """
CREATE INDEX leases_on_their_way ON leases (state, era, version, expires) WHERE state IN ('open', 'received');
""",
    ),
)

MIGRATIONS = (SCHEMA_1, SCHEMA_2)
SCHEMA_VERSION = len(MIGRATIONS)
SCRIPT = "".join(part.script for parts in MIGRATIONS for part in parts)
"""All of it, for a database without history."""


def migrate(connection: sqlite3.Connection, found: int, tell: Callable[[str, int], None]) -> None:
    """Bring a database of schema `found` to `SCHEMA_VERSION`, in one transaction (rule 2). `tell`: called with what a
    part makes and the seconds it has worked, once a part has worked for `PATIENCE` seconds, and again as often."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for part in (part for parts in MIGRATIONS[found:] for part in parts):
            with_progress(connection, part, tell)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def with_progress(connection: sqlite3.Connection, part: Part, tell: Callable[[str, int], None]) -> None:
    """Run the statements of one part."""
    began = told = time.monotonic()

    def look() -> int:
        nonlocal told
        now = time.monotonic()
        if now - told >= PATIENCE:
            told = now
            tell(part.what, round(now - began))
        return 0

    connection.set_progress_handler(look, _OPCODES)
    try:
        for statement in statements(part.script):
            connection.execute(statement)
    finally:
        connection.set_progress_handler(None, 0)


def statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: `executescript` would commit the transaction that is open."""
    begun = ""
    for piece in script.split(";")[:-1]:
        begun += piece + ";"
        if sqlite3.complete_statement(begun):
            yield begun
            begun = ""
    if begun.strip():
        raise ValueError(f"a statement of the schema has no end: {begun.strip()[:80]}")
