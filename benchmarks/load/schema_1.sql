-- run.sqlite as schema 1 had it (commit 439044d): what older run folders hold.
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
