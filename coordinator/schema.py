"""Define the tables of run.sqlite as the migrations that create them.

Rules
1. A file's schema is its `user_version`: the number of migrations applied to it. A new file gets all of them, an older
   one those that it lacks, so both have the same tables by construction.
2. All migrations of one `open` are one transaction: a kill in the middle leaves the file as it was.
3. A released migration is never changed. Schema 1 is that of version 0.1; the later ones are not released yet. An
   addition is a `Part` of a new migration, since runs have files of every schema. Its columns go to
   docs/protocol/disk.md.
4. A part also works on a file that has rows already: a new table of sums, for example, is filled from them.
5. Foreign keys are not enforced during a migration, so that a table may be replaced under its name.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator

from echo2.coordinator.early_schemas import (
    SCHEMA_1,
    SCHEMA_2,
    SCHEMA_3,
    SCHEMA_4,
    SCHEMA_5,
    SCHEMA_6,
    SCHEMA_7,
    SCHEMA_8,
    Part,
)

PATIENCE = 10.0
"""Seconds of one part's work between two reports of its progress."""
_OPCODES = 2_000_000
"""SQLite's instructions between two reads of the clock: some 10 ms."""

SCHEMA_9 = (
    Part(
        "scores that environments gave",
        """
CREATE TABLE episode_scores (lease BLOB PRIMARY KEY REFERENCES leases, scores BLOB NOT NULL) STRICT, WITHOUT ROWID;
""",
    ),
)

SCHEMA_10 = (
    Part(
        "turns of served episodes",
        """
CREATE TABLE steps (
    lease BLOB NOT NULL REFERENCES leases, sample INTEGER NOT NULL, turn_number INTEGER NOT NULL,
    sampled BLOB NOT NULL, state TEXT NOT NULL CHECK (state IN ('asked', 'given', 'over', 'failed')), given BLOB,
    reward REAL, success INTEGER, PRIMARY KEY (lease, sample, turn_number)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER steps_end_with_their_lease AFTER UPDATE OF state ON leases
WHEN OLD.state = 'open' AND NEW.state != 'open'
BEGIN
    DELETE FROM steps WHERE lease = OLD.id;
END;
""",
    ),
)

SCHEMA_11 = (
    Part(
        "rewards of each task's groups",
        """
CREATE TABLE task_results (
    task TEXT NOT NULL, task_version INTEGER NOT NULL, span TEXT NOT NULL CHECK (span IN ('all', 'before', 'last')),
    groups INTEGER NOT NULL, unscored INTEGER NOT NULL, rollouts INTEGER NOT NULL, reward REAL NOT NULL,
    success INTEGER NOT NULL, varied INTEGER NOT NULL, cut INTEGER NOT NULL, PRIMARY KEY (task, task_version, span)
) STRICT, WITHOUT ROWID;
""",
    ),
)

SCHEMA_12 = (
    Part(
        "held-out groups, which are on their way beside those of training",
        """
ALTER TABLE on_their_way ADD COLUMN heldout_open INTEGER NOT NULL DEFAULT 0;
ALTER TABLE on_their_way ADD COLUMN heldout_received INTEGER NOT NULL DEFAULT 0;
DROP TRIGGER a_lease_goes_out;
DROP TRIGGER a_lease_moves_on;
CREATE TRIGGER a_lease_goes_out AFTER INSERT ON leases
BEGIN
    INSERT INTO on_their_way VALUES (
        NEW.era, NEW.version, NEW.state = 'open', NEW.state = 'received',
        NEW.state = 'open' AND NEW.position < 0, NEW.state = 'received' AND NEW.position < 0
    ) ON CONFLICT DO UPDATE SET open = open + excluded.open, received = received + excluded.received,
        heldout_open = heldout_open + excluded.heldout_open,
        heldout_received = heldout_received + excluded.heldout_received;
END;
CREATE TRIGGER a_lease_moves_on AFTER UPDATE OF state ON leases WHEN NEW.state != OLD.state
BEGIN
    UPDATE on_their_way SET
        open = open + (NEW.state = 'open') - (OLD.state = 'open'),
        received = received + (NEW.state = 'received') - (OLD.state = 'received'),
        heldout_open = heldout_open + (NEW.position < 0) * ((NEW.state = 'open') - (OLD.state = 'open')),
        heldout_received = heldout_received
            + (NEW.position < 0) * ((NEW.state = 'received') - (OLD.state = 'received'))
        WHERE era = NEW.era AND version = NEW.version;
    DELETE FROM on_their_way WHERE era = NEW.era AND version = NEW.version AND open = 0 AND received = 0;
END;
CREATE TRIGGER a_heldout_group_is_never_learned BEFORE INSERT ON buffer
WHEN (SELECT position < 0 FROM leases WHERE id = NEW.lease)
BEGIN SELECT RAISE(ABORT, 'a held-out group has no place in the buffer'); END;
CREATE TABLE heldout_plans (
    era INTEGER NOT NULL, version INTEGER NOT NULL, root BLOB NOT NULL, at INTEGER NOT NULL, closed INTEGER,
    pass_1 REAL, PRIMARY KEY (era, version)
) STRICT, WITHOUT ROWID;
CREATE INDEX heldout_plans_open ON heldout_plans (era, version) WHERE closed IS NULL;
CREATE TABLE heldout_groups (
    id INTEGER PRIMARY KEY, era INTEGER NOT NULL, version INTEGER NOT NULL, task TEXT NOT NULL,
    prompt INTEGER NOT NULL, state TEXT NOT NULL CHECK (state IN ('waiting', 'leased', 'scorer', 'answered', 'lost')),
    leases INTEGER NOT NULL DEFAULT 0, node BLOB, answers INTEGER NOT NULL DEFAULT 0,
    solved INTEGER NOT NULL DEFAULT 0, by_operator INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX heldout_groups_by_state ON heldout_groups (era, version, state, id);
""",
    ),
)

SCHEMA_13 = (
    Part(
        "twins of leases, of which one counts and one is learned from",
        """
ALTER TABLE leases ADD COLUMN twin TEXT NOT NULL DEFAULT '';
ALTER TABLE leases ADD COLUMN counts INTEGER NOT NULL DEFAULT 1;
ALTER TABLE leases ADD COLUMN overdue INTEGER;
DROP INDEX leases_by_position;
CREATE UNIQUE INDEX leases_by_position ON leases (position, attempt, twin);
CREATE INDEX leases_overdue ON leases (era, version, overdue) WHERE state = 'open' AND overdue IS NOT NULL;
ALTER TABLE on_their_way ADD COLUMN twin_open INTEGER NOT NULL DEFAULT 0;
ALTER TABLE on_their_way ADD COLUMN twin_received INTEGER NOT NULL DEFAULT 0;
DROP TRIGGER a_lease_goes_out;
DROP TRIGGER a_lease_moves_on;
CREATE TRIGGER a_lease_goes_out AFTER INSERT ON leases
BEGIN
    INSERT INTO on_their_way VALUES (
        NEW.era, NEW.version, NEW.state = 'open', NEW.state = 'received',
        NEW.state = 'open' AND NEW.position < 0, NEW.state = 'received' AND NEW.position < 0,
        NEW.state = 'open' AND NOT NEW.counts, NEW.state = 'received' AND NOT NEW.counts
    ) ON CONFLICT DO UPDATE SET open = open + excluded.open, received = received + excluded.received,
        heldout_open = heldout_open + excluded.heldout_open,
        heldout_received = heldout_received + excluded.heldout_received,
        twin_open = twin_open + excluded.twin_open, twin_received = twin_received + excluded.twin_received;
END;
CREATE TRIGGER a_lease_moves_on AFTER UPDATE OF state, counts ON leases
WHEN NEW.state != OLD.state OR NEW.counts != OLD.counts
BEGIN
    UPDATE on_their_way SET
        open = open + (NEW.state = 'open') - (OLD.state = 'open'),
        received = received + (NEW.state = 'received') - (OLD.state = 'received'),
        heldout_open = heldout_open + (NEW.position < 0) * ((NEW.state = 'open') - (OLD.state = 'open')),
        heldout_received = heldout_received
            + (NEW.position < 0) * ((NEW.state = 'received') - (OLD.state = 'received')),
        twin_open = twin_open
            + (NEW.state = 'open' AND NOT NEW.counts) - (OLD.state = 'open' AND NOT OLD.counts),
        twin_received = twin_received
            + (NEW.state = 'received' AND NOT NEW.counts) - (OLD.state = 'received' AND NOT OLD.counts)
        WHERE era = NEW.era AND version = NEW.version;
    DELETE FROM on_their_way WHERE era = NEW.era AND version = NEW.version AND open = 0 AND received = 0;
END;
ALTER TABLE buffer ADD COLUMN position INTEGER;
CREATE UNIQUE INDEX buffer_has_a_position_once ON buffer (position) WHERE position IS NOT NULL;
""",
    ),
)

SCHEMA_14 = (
    Part(
        "prompts that were chosen by the verdicts before them",
        """
CREATE TABLE chosen_prompts (
    position INTEGER PRIMARY KEY, summary BLOB NOT NULL, waiting INTEGER NOT NULL
) STRICT;
CREATE INDEX chosen_prompts_waiting ON chosen_prompts (position) WHERE waiting = 1;
CREATE TABLE prompt_groups (
    task TEXT NOT NULL, task_version INTEGER NOT NULL, prompt INTEGER NOT NULL, groups BLOB NOT NULL,
    PRIMARY KEY (task, task_version, prompt)
) STRICT, WITHOUT ROWID;
CREATE TABLE prompt_means (
    task TEXT NOT NULL, task_version INTEGER NOT NULL, prompts INTEGER NOT NULL, variance INTEGER NOT NULL,
    length INTEGER NOT NULL, PRIMARY KEY (task, task_version)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER a_choice_goes_with_its_lease AFTER UPDATE OF sealed ON leases
WHEN NEW.sealed = x'' AND OLD.sealed != x''
BEGIN
    DELETE FROM chosen_prompts WHERE position = OLD.position
        AND NOT EXISTS (SELECT 1 FROM again WHERE position = OLD.position)
        AND NOT EXISTS (SELECT 1 FROM leases WHERE position = OLD.position AND sealed != x'');
END;
CREATE TRIGGER a_choice_goes_with_its_last_lease AFTER DELETE ON leases
BEGIN
    DELETE FROM chosen_prompts WHERE position = OLD.position
        AND NOT EXISTS (SELECT 1 FROM again WHERE position = OLD.position)
        AND NOT EXISTS (SELECT 1 FROM leases WHERE position = OLD.position AND sealed != x'');
END;
""",
    ),
)

SCHEMA_15 = (
    Part(
        "signal of the groups in the buffer",
        """
ALTER TABLE buffer ADD COLUMN signal INTEGER NOT NULL DEFAULT 0;
UPDATE buffer SET signal = 1 WHERE varied = 1;
""",
    ),
)

SCHEMA_16 = (
    Part(
        "the tree over the ledger's entries, and its signed heads",
        """
CREATE TABLE tree (leaf INTEGER PRIMARY KEY, digests BLOB NOT NULL) STRICT;
CREATE TABLE ledger_heads (
    number INTEGER PRIMARY KEY, size INTEGER NOT NULL, issued INTEGER NOT NULL, sealed BLOB NOT NULL, note TEXT NOT NULL
) STRICT;
CREATE TRIGGER ledger_heads_are_never_changed BEFORE UPDATE ON ledger_heads
    BEGIN SELECT RAISE(ABORT, 'a signed head of the ledger is never changed'); END;
CREATE TRIGGER ledger_heads_are_never_removed BEFORE DELETE ON ledger_heads
    BEGIN SELECT RAISE(ABORT, 'a signed head of the ledger is never removed'); END;
""",
    ),
    Part(
        "canaries: leases whose answer is known, which count in no share",
        """
CREATE TABLE canary_answers (
    id INTEGER PRIMARY KEY, era INTEGER NOT NULL, version INTEGER NOT NULL, position INTEGER NOT NULL,
    attempt INTEGER NOT NULL, lease BLOB UNIQUE, answer BLOB NOT NULL, at INTEGER NOT NULL, UNIQUE (position, attempt)
) STRICT;
CREATE TABLE unvested (
    lease BLOB PRIMARY KEY REFERENCES leases, node BLOB NOT NULL, weight INTEGER NOT NULL, due INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX unvested_by_node ON unvested (node, due);
CREATE INDEX buffer_by_lease ON buffer (era, version, lease);
CREATE TRIGGER a_canary_is_never_learned BEFORE INSERT ON buffer
WHEN (SELECT twin = 'canary' FROM leases WHERE id = NEW.lease)
BEGIN SELECT RAISE(ABORT, 'a canary has no place in the buffer'); END;
CREATE TRIGGER a_canary_never_counts BEFORE UPDATE OF counts ON leases WHEN NEW.twin = 'canary' AND NEW.counts
BEGIN SELECT RAISE(ABORT, 'a canary does not count'); END;
DROP TRIGGER a_lease_is_lent;
DROP TRIGGER a_lent_lease_ends;
CREATE TRIGGER a_lease_is_lent AFTER INSERT ON lent
BEGIN
    INSERT INTO shares SELECT NEW.share, NEW.era, NEW.version, 1
        WHERE NOT EXISTS (SELECT 1 FROM leases WHERE id = NEW.lease AND twin = 'canary')
        ON CONFLICT DO UPDATE SET groups = groups + 1;
    INSERT INTO lent_over SELECT NEW.connection, 1 WHERE NEW.share = 'new' AND NEW.connection != ''
        ON CONFLICT DO UPDATE SET groups = groups + 1;
END;
CREATE TRIGGER a_lent_lease_ends AFTER DELETE ON lent
BEGIN
    UPDATE shares SET groups = groups - 1 WHERE share = OLD.share AND era = OLD.era AND version = OLD.version
        AND NOT EXISTS (SELECT 1 FROM leases WHERE id = OLD.lease AND twin = 'canary');
    DELETE FROM shares WHERE share = OLD.share AND era = OLD.era AND version = OLD.version AND groups = 0;
    UPDATE lent_over SET groups = groups - 1 WHERE OLD.share = 'new' AND connection = OLD.connection;
    DELETE FROM lent_over WHERE connection = OLD.connection AND groups = 0;
END;
""",
    ),
    Part(
        "tokens so far of groups under way, and groups that another node finishes",
        """
CREATE TABLE begun_groups (
    lease BLOB PRIMARY KEY, at INTEGER NOT NULL, samples BLOB NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('reported', 'unverified', 'waiting', 'over')),
    position INTEGER, attempt INTEGER, reasons TEXT, era INTEGER, version INTEGER, since INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX begun_groups_moved ON begun_groups (state, era, version, since) WHERE state IN ('unverified', 'waiting');
CREATE TABLE begun_tokens (
    lease BLOB NOT NULL, number INTEGER NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (lease, number)
) STRICT;
CREATE TRIGGER reports_end_with_their_group AFTER UPDATE OF state ON leases
WHEN OLD.state = 'open' AND NEW.state = 'received'
BEGIN
    DELETE FROM begun_groups WHERE lease = OLD.id;
    DELETE FROM begun_tokens WHERE lease = OLD.id;
END;
CREATE TRIGGER begun_tokens_go_with_their_lease AFTER DELETE ON leases
BEGIN
    DELETE FROM begun_groups WHERE lease = OLD.id;
    DELETE FROM begun_tokens WHERE lease = OLD.id;
END;
""",
    ),
    Part(
        "names that look alike",
        """
ALTER TABLE nodes ADD COLUMN skeleton TEXT NOT NULL DEFAULT '';
CREATE INDEX nodes_by_skeleton ON nodes (skeleton, weight);
""",
    ),
    Part(
        "audited work of keys",
        """
ALTER TABLE accounts ADD COLUMN audited INTEGER NOT NULL DEFAULT 0;
ALTER TABLE accounts ADD COLUMN aged INTEGER NOT NULL DEFAULT 0;
UPDATE accounts SET audited = accepted << 32;
""",
    ),
    Part(
        "further checks of verdicts",
        """
CREATE TABLE excerpts (
    lease BLOB PRIMARY KEY, sample INTEGER NOT NULL, position INTEGER, at INTEGER NOT NULL, tokens BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX excerpts_oldest_first ON excerpts (at);
CREATE TABLE reviews (
    lease BLOB NOT NULL, by TEXT NOT NULL, node BLOB NOT NULL, asked INTEGER NOT NULL, state TEXT NOT NULL,
    code TEXT NOT NULL, reason TEXT NOT NULL, answered INTEGER NOT NULL, PRIMARY KEY (lease, by)
) STRICT, WITHOUT ROWID;
CREATE INDEX reviews_waiting ON reviews (asked) WHERE state = 'waiting';
CREATE INDEX reviews_of_node ON reviews (node) WHERE state = 'waiting';
CREATE INDEX reviews_answered ON reviews (answered) WHERE state != 'waiting';
""",
    ),
)

SCHEMA_17 = (
    Part(
        "the daemon that works with a key",
        """
ALTER TABLE nodes ADD COLUMN instance BLOB;
""",
    ),
)

SCHEMA_18 = (
    Part(
        "teams that nodes state",
        """
ALTER TABLE nodes ADD COLUMN team TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN team_written TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN team_id BLOB;
ALTER TABLE nodes ADD COLUMN team_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX nodes_between_teams ON nodes (key) WHERE weight > 0 AND team != team_written;
CREATE INDEX nodes_by_team ON nodes (team_id) WHERE team_id IS NOT NULL;
CREATE TABLE teams (
    id BLOB PRIMARY KEY, name TEXT NOT NULL, skeleton TEXT NOT NULL, salt BLOB NOT NULL, groups INTEGER NOT NULL,
    weight INTEGER NOT NULL, score INTEGER NOT NULL, aged INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX teams_by_skeleton ON teams (skeleton) WHERE skeleton != '';
CREATE INDEX teams_by_weight ON teams (weight);
""",
    ),
)

MIGRATIONS = (
    SCHEMA_1, SCHEMA_2, SCHEMA_3, SCHEMA_4, SCHEMA_5, SCHEMA_6, SCHEMA_7, SCHEMA_8, SCHEMA_9, SCHEMA_10, SCHEMA_11,
    SCHEMA_12, SCHEMA_13, SCHEMA_14, SCHEMA_15, SCHEMA_16, SCHEMA_17,
    SCHEMA_18,
)  # fmt: skip
SCHEMA_VERSION = len(MIGRATIONS)
SCRIPT = "".join(part.script for parts in MIGRATIONS for part in parts)
"""All statements of all migrations, in order: those of a new file. docs/protocol/disk.md is tested against them."""


def migrate(connection: sqlite3.Connection, version: int, tell: Callable[[str, int], None]) -> None:
    """Migrate a database from schema `version` to `SCHEMA_VERSION`, in one transaction (rule 2). `tell`: called with a
    part's `what` and the seconds it has taken, once per `PATIENCE` seconds of its work."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for part in (part for parts in MIGRATIONS[version:] for part in parts):
            with_progress(connection, part, tell)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def with_progress(connection: sqlite3.Connection, part: Part, tell: Callable[[str, int], None]) -> None:
    """Execute the statements of one part, and report its progress."""
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
    """Yield the statements of a script one by one: `executescript` would commit the open transaction."""
    begun = ""
    for piece in script.split(";")[:-1]:
        begun += piece + ";"
        if sqlite3.complete_statement(begun):
            yield begun
            begun = ""
    if begun.strip():
        raise ValueError(f"a statement of the schema lacks its semicolon: {begun.strip()[:80]}")
