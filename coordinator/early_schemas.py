"""Define the first eight schemas of run.sqlite; coordinator/schema.py has the later ones, and the rules."""

from typing import NamedTuple


class Part(NamedTuple):
    """A step of a migration. `what`: the data that it is about, for the log. `script`: SQL statements that neither
    begin nor commit a transaction."""

    what: str
    script: str


_ON_THEIR_WAY = """
CREATE TRIGGER a_lease_goes_out AFTER INSERT ON leases
BEGIN
    INSERT INTO on_their_way VALUES (NEW.era, NEW.version, NEW.state = 'open', NEW.state = 'received')
        ON CONFLICT DO UPDATE SET open = open + excluded.open, received = received + excluded.received;
END;
CREATE TRIGGER a_lease_moves_on AFTER UPDATE OF state ON leases WHEN NEW.state != OLD.state
BEGIN
    UPDATE on_their_way SET
        open = open + (NEW.state = 'open') - (OLD.state = 'open'),
        received = received + (NEW.state = 'received') - (OLD.state = 'received')
        WHERE era = NEW.era AND version = NEW.version;
    DELETE FROM on_their_way WHERE era = NEW.era AND version = NEW.version AND open = 0 AND received = 0;
END;
"""
"""Triggers that keep the table `on_their_way` up to date. They are dropped with the old table `leases`, which schema 3
replaces, and created again."""

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
        "groups on their way, by version",
        """
DROP INDEX leases_by_state;
CREATE INDEX leases_open_of_node ON leases (node, expires) WHERE state = 'open';
CREATE INDEX leases_due ON leases (expires, era, version) WHERE state = 'open';
CREATE INDEX leases_received ON leases (era, version) WHERE state = 'received';
CREATE TABLE on_their_way (
    era INTEGER NOT NULL, version INTEGER NOT NULL, open INTEGER NOT NULL, received INTEGER NOT NULL,
    PRIMARY KEY (era, version)
) STRICT, WITHOUT ROWID;
INSERT INTO on_their_way SELECT era, version, sum(state = 'open'), sum(state = 'received') FROM leases
    WHERE state IN ('open', 'received') GROUP BY era, version;
"""
        + _ON_THEIR_WAY,
    ),
    Part(
        "sums of the ends of leases",
        """
DROP INDEX verdicts_by_node;
CREATE INDEX verdicts_accepted ON verdicts (entry) WHERE verdict = 'accepted';
CREATE TABLE sums (
    node BLOB NOT NULL, verdict TEXT NOT NULL, code TEXT NOT NULL, groups INTEGER NOT NULL, trainable INTEGER NOT NULL,
    rollouts INTEGER NOT NULL, tokens INTEGER NOT NULL, weight INTEGER NOT NULL, PRIMARY KEY (node, verdict, code)
) STRICT, WITHOUT ROWID;
INSERT INTO sums SELECT node, verdict, code, count(*), sum(trainable), sum(rollouts), sum(tokens), sum(weight)
    FROM verdicts GROUP BY node, verdict, code;
INSERT INTO sums SELECT node, 'expired', 'expired', count(*), 0, 0, 0, 0
    FROM leases WHERE state = 'expired' GROUP BY node;
INSERT INTO sums SELECT x'', verdict, code, sum(groups), sum(trainable), sum(rollouts), sum(tokens), sum(weight)
    FROM sums GROUP BY verdict, code;
CREATE TRIGGER a_verdict_is_summed AFTER INSERT ON verdicts
BEGIN
    INSERT INTO sums VALUES
        (NEW.node, NEW.verdict, NEW.code, 1, NEW.trainable, NEW.rollouts, NEW.tokens, NEW.weight),
        (x'', NEW.verdict, NEW.code, 1, NEW.trainable, NEW.rollouts, NEW.tokens, NEW.weight)
        ON CONFLICT DO UPDATE SET groups = groups + 1, trainable = trainable + excluded.trainable,
            rollouts = rollouts + excluded.rollouts, tokens = tokens + excluded.tokens,
            weight = weight + excluded.weight;
END;
CREATE TRIGGER an_expiry_is_summed AFTER UPDATE OF state ON leases WHEN NEW.state = 'expired'
BEGIN
    INSERT INTO sums VALUES (NEW.node, 'expired', 'expired', 1, 0, 0, 0, 0), (x'', 'expired', 'expired', 1, 0, 0, 0, 0)
        ON CONFLICT DO UPDATE SET groups = groups + 1;
END;
""",
    ),
    Part(
        "groups whose tokens may go",
        """
CREATE TABLE spent (at INTEGER NOT NULL, lease BLOB NOT NULL, PRIMARY KEY (at, lease)) STRICT, WITHOUT ROWID;
INSERT INTO spent SELECT s.at, s.lease FROM submissions s JOIN verdicts v ON v.lease = s.lease
    WHERE s.payload IS NOT NULL AND v.confirmed = 1;
CREATE TRIGGER a_receipt_is_confirmed AFTER UPDATE OF confirmed ON verdicts WHEN NEW.confirmed = 1 AND OLD.confirmed = 0
BEGIN
    INSERT OR IGNORE INTO spent SELECT at, lease FROM submissions WHERE lease = NEW.lease AND payload IS NOT NULL;
END;
""",
    ),
    Part(
        "nodes seen last",
        """
CREATE INDEX nodes_seen_last ON nodes (last_seen) WHERE banned IS NULL;
""",
    ),
    Part(
        "groups set aside",
        """
CREATE TABLE set_aside (
    lease BLOB PRIMARY KEY REFERENCES leases, reason TEXT NOT NULL, at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
""",
    ),
)

SCHEMA_3 = (
    Part(
        "leases with their origin, more than one for a position",
        """
CREATE TABLE leases_3 (
    id BLOB PRIMARY KEY, node BLOB NOT NULL, nonce BLOB NOT NULL, position INTEGER NOT NULL,
    era INTEGER NOT NULL, version INTEGER NOT NULL, sent INTEGER NOT NULL, expires INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'received', 'decided', 'expired')),
    document BLOB NOT NULL, sealed BLOB NOT NULL, attempt INTEGER NOT NULL DEFAULT 0,
    connection TEXT NOT NULL DEFAULT '', party TEXT NOT NULL DEFAULT '', UNIQUE (node, nonce)
) STRICT;
INSERT INTO leases_3 SELECT id, node, nonce, position, era, version, sent, expires, state, document, sealed, 0, '', ''
    FROM leases ORDER BY rowid;
DROP TABLE leases;
ALTER TABLE leases_3 RENAME TO leases;
CREATE UNIQUE INDEX leases_by_position ON leases (position, attempt);
CREATE INDEX leases_by_node ON leases (node, sent);
CREATE INDEX leases_open_of_node ON leases (node, expires) WHERE state = 'open';
CREATE INDEX leases_due ON leases (expires, era, version) WHERE state = 'open';
CREATE INDEX leases_received ON leases (era, version) WHERE state = 'received';
CREATE TRIGGER a_final_state_is_final BEFORE UPDATE OF state ON leases WHEN OLD.state IN ('decided', 'expired')
BEGIN SELECT RAISE(ABORT, 'this lease has its final state'); END;
"""
        + _ON_THEIR_WAY
        + """
CREATE TRIGGER an_expiry_is_summed AFTER UPDATE OF state ON leases WHEN NEW.state = 'expired'
BEGIN
    INSERT INTO sums VALUES (NEW.node, 'expired', 'expired', 1, 0, 0, 0, 0), (x'', 'expired', 'expired', 1, 0, 0, 0, 0)
        ON CONFLICT DO UPDATE SET groups = groups + 1;
END;
""",
    ),
    Part(
        "accounts of keys",
        """
CREATE TABLE accounts (
    node BLOB PRIMARY KEY, accepted INTEGER NOT NULL, groups INTEGER NOT NULL, wrong INTEGER NOT NULL,
    vouched INTEGER NOT NULL, banned TEXT, code TEXT NOT NULL, since INTEGER NOT NULL, until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO accounts SELECT node, sum(iif(verdict = 'accepted', groups, 0)), sum(groups), 0, 0, NULL, '', 0, 0
    FROM sums WHERE node != x'' AND verdict IN ('accepted', 'refused') AND code != 'late' GROUP BY node;
WITH last AS (
    SELECT node, max(entry) AS entry FROM verdicts
    WHERE code IN ('seeded-choice', 'close-choices', 'drift', 'drift-median') GROUP BY node
), number AS (
    SELECT v.node AS node, count(*) AS wrong FROM verdicts v CROSS JOIN last ON last.node = v.node
    WHERE v.entry <= last.entry AND v.code != 'late' GROUP BY v.node
) UPDATE accounts SET wrong = number.wrong FROM number WHERE number.node = accounts.node;
INSERT INTO accounts SELECT key, 0, 0, 0, 0, banned, '', 0, 0 FROM nodes WHERE banned IS NOT NULL
    ON CONFLICT DO UPDATE SET banned = excluded.banned;
DROP INDEX nodes_seen_last;
ALTER TABLE nodes DROP COLUMN banned;
CREATE INDEX nodes_seen_last ON nodes (last_seen);
CREATE TABLE strikes (
    id INTEGER PRIMARY KEY, node BLOB NOT NULL, number INTEGER NOT NULL, code TEXT NOT NULL, evidence BLOB NOT NULL,
    at INTEGER NOT NULL
) STRICT;
CREATE INDEX strikes_by_node ON strikes (node, number);
""",
    ),
    Part(
        "groups that wait for the scorer",
        """
CREATE TABLE undecided (
    era INTEGER NOT NULL, version INTEGER NOT NULL, party TEXT NOT NULL, at INTEGER NOT NULL, lease BLOB NOT NULL,
    tokens INTEGER NOT NULL, PRIMARY KEY (era, version, party, at, lease)
) STRICT, WITHOUT ROWID;
CREATE INDEX undecided_longest ON undecided (era, version, at, lease);
INSERT INTO undecided SELECT l.era, l.version, l.party, s.at, l.id, 1 + length(s.payload) / 8
    FROM leases l JOIN submissions s ON s.lease = l.id WHERE l.state = 'received';
CREATE TRIGGER a_group_waits_no_longer AFTER UPDATE OF state ON leases
    WHEN OLD.state = 'received' AND NEW.state != 'received'
BEGIN
    DELETE FROM undecided WHERE era = OLD.era AND version = OLD.version AND party = OLD.party
        AND at = (SELECT at FROM submissions WHERE lease = OLD.id) AND lease = OLD.id;
END;
""",
    ),
    Part(
        "ends of leases that have no entry of their own",
        """
CREATE TABLE ends (
    lease BLOB PRIMARY KEY, at INTEGER NOT NULL, document BLOB NOT NULL, entry INTEGER REFERENCES entries
) STRICT, WITHOUT ROWID;
CREATE INDEX ends_that_wait ON ends (at) WHERE entry IS NULL;
CREATE INDEX ends_of_an_entry ON ends (entry) WHERE entry IS NOT NULL;
CREATE TABLE verdicts_3 (
    lease BLOB PRIMARY KEY REFERENCES leases, node BLOB NOT NULL, verdict TEXT NOT NULL, code TEXT NOT NULL,
    trainable INTEGER NOT NULL, weight INTEGER NOT NULL, rollouts INTEGER NOT NULL, tokens INTEGER NOT NULL,
    entry INTEGER REFERENCES entries, at INTEGER NOT NULL, receipt BLOB NOT NULL,
    confirmed INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO verdicts_3
    SELECT lease, node, verdict, code, trainable, weight, rollouts, tokens, entry, at, receipt, confirmed FROM verdicts
    ORDER BY rowid;
DROP TABLE verdicts;
ALTER TABLE verdicts_3 RENAME TO verdicts;
CREATE INDEX verdicts_accepted ON verdicts (entry) WHERE verdict = 'accepted';
CREATE TRIGGER a_verdict_is_summed AFTER INSERT ON verdicts
BEGIN
    INSERT INTO sums VALUES
        (NEW.node, NEW.verdict, NEW.code, 1, NEW.trainable, NEW.rollouts, NEW.tokens, NEW.weight),
        (x'', NEW.verdict, NEW.code, 1, NEW.trainable, NEW.rollouts, NEW.tokens, NEW.weight)
        ON CONFLICT DO UPDATE SET groups = groups + 1, trainable = trainable + excluded.trainable,
            rollouts = rollouts + excluded.rollouts, tokens = tokens + excluded.tokens,
            weight = weight + excluded.weight;
END;
CREATE TRIGGER a_receipt_is_confirmed AFTER UPDATE OF confirmed ON verdicts WHEN NEW.confirmed = 1 AND OLD.confirmed = 0
BEGIN
    INSERT OR IGNORE INTO spent SELECT at, lease FROM submissions WHERE lease = NEW.lease AND payload IS NOT NULL;
END;
""",
    ),
    Part(
        "nodes by their work",
        """
ALTER TABLE nodes ADD COLUMN weight INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN groups INTEGER NOT NULL DEFAULT 0;
UPDATE nodes SET (weight, groups) = (
    SELECT coalesce(sum(s.weight), 0), coalesce(sum(s.groups), 0) FROM sums s
    WHERE s.node = nodes.key AND s.verdict != 'expired'
);
DROP INDEX nodes_seen_last;
CREATE INDEX nodes_by_work ON nodes (weight, key);
CREATE INDEX nodes_seen_last ON nodes (weight > 0, last_seen);
CREATE INDEX nodes_without_groups ON nodes (last_seen) WHERE groups = 0;
CREATE TABLE tallies (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO tallies SELECT 'nodes', count(*) FROM nodes;
CREATE TRIGGER a_node_comes_with_its_work AFTER INSERT ON nodes
BEGIN
    UPDATE tallies SET value = value + 1 WHERE name = 'nodes';
    UPDATE nodes SET (weight, groups) = (
        SELECT coalesce(sum(s.weight), 0), coalesce(sum(s.groups), 0) FROM sums s
        WHERE s.node = NEW.key AND s.verdict != 'expired'
    ) WHERE key = NEW.key;
END;
CREATE TRIGGER a_node_goes AFTER DELETE ON nodes
BEGIN
    UPDATE tallies SET value = value - 1 WHERE name = 'nodes';
END;
CREATE TRIGGER a_node_has_worked AFTER INSERT ON verdicts
BEGIN
    UPDATE nodes SET weight = weight + NEW.weight, groups = groups + 1 WHERE key = NEW.node;
END;
""",
    ),
    Part(
        "leases whose tokens are kept",
        """
DROP TRIGGER a_receipt_is_confirmed;
DROP TABLE spent;
CREATE INDEX leases_ended ON leases (expires) WHERE state IN ('decided', 'expired') AND sealed != x'';
CREATE TABLE refused_tokens (party TEXT PRIMARY KEY, nbytes INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO refused_tokens SELECT party, sum(nbytes) FROM (
    SELECT l.party, length(s.payload) AS nbytes FROM submissions s JOIN verdicts v ON v.lease = s.lease
        JOIN leases l ON l.id = s.lease WHERE s.payload IS NOT NULL AND v.verdict = 'refused'
    UNION ALL SELECT l.party, length(e.payload) FROM evidence e JOIN leases l ON l.id = e.lease
) GROUP BY party;
""",
    ),
    Part(
        "shares of open leases, and positions to be leased again",
        """
CREATE TABLE lent (
    lease BLOB PRIMARY KEY, share TEXT NOT NULL CHECK (share IN ('new', 'known', 'slow')), node BLOB NOT NULL,
    connection TEXT NOT NULL, era INTEGER NOT NULL, version INTEGER NOT NULL, reasons TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX lent_to_node ON lent (node);
CREATE TABLE shares (
    share TEXT NOT NULL, era INTEGER NOT NULL, version INTEGER NOT NULL, groups INTEGER NOT NULL,
    PRIMARY KEY (share, era, version)
) STRICT, WITHOUT ROWID;
CREATE TABLE lent_over (connection TEXT PRIMARY KEY, groups INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TRIGGER a_lease_is_lent AFTER INSERT ON lent
BEGIN
    INSERT INTO shares VALUES (NEW.share, NEW.era, NEW.version, 1) ON CONFLICT DO UPDATE SET groups = groups + 1;
    INSERT INTO lent_over SELECT NEW.connection, 1 WHERE NEW.share = 'new' AND NEW.connection != ''
        ON CONFLICT DO UPDATE SET groups = groups + 1;
END;
CREATE TRIGGER a_lent_lease_ends AFTER DELETE ON lent
BEGIN
    UPDATE shares SET groups = groups - 1 WHERE share = OLD.share AND era = OLD.era AND version = OLD.version;
    DELETE FROM shares WHERE share = OLD.share AND era = OLD.era AND version = OLD.version AND groups = 0;
    UPDATE lent_over SET groups = groups - 1 WHERE OLD.share = 'new' AND connection = OLD.connection;
    DELETE FROM lent_over WHERE connection = OLD.connection AND groups = 0;
END;
CREATE TRIGGER a_lease_is_over AFTER UPDATE OF state ON leases WHEN NEW.state IN ('decided', 'expired')
BEGIN
    DELETE FROM lent WHERE lease = NEW.id;
END;
INSERT INTO lent SELECT id, 'known', node, '', era, version, '' FROM leases WHERE state = 'open';
INSERT INTO lent SELECT id, 'known', node, '', era, version, '' FROM leases WHERE state = 'received';
CREATE TABLE again (
    position INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, reasons TEXT NOT NULL, at INTEGER NOT NULL
) STRICT;
CREATE TABLE skipped (reasons TEXT PRIMARY KEY, positions INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE budgets (
    holder BLOB PRIMARY KEY, hour INTEGER NOT NULL, expired INTEGER NOT NULL, until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX budgets_by_hour ON budgets (hour);
CREATE TABLE paces (node BLOB PRIMARY KEY, p90 INTEGER NOT NULL, at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
""",
    ),
    Part(
        "the number of nodes without groups",
        """
INSERT INTO tallies SELECT 'nodes without groups', count(*) FROM nodes WHERE groups = 0;
CREATE TRIGGER a_node_without_groups_comes AFTER INSERT ON nodes
BEGIN
    UPDATE tallies SET value = value + 1 WHERE name = 'nodes without groups';
END;
CREATE TRIGGER a_node_has_its_first_group AFTER UPDATE OF groups ON nodes WHEN OLD.groups = 0 AND NEW.groups > 0
BEGIN
    UPDATE tallies SET value = value - 1 WHERE name = 'nodes without groups';
END;
CREATE TRIGGER a_node_without_groups_goes AFTER DELETE ON nodes WHEN OLD.groups = 0
BEGIN
    UPDATE tallies SET value = value - 1 WHERE name = 'nodes without groups';
END;
""",
    ),
    Part(
        "strikes of keys without accepted work",
        """
ALTER TABLE strikes ADD COLUMN worked INTEGER NOT NULL DEFAULT 0;
CREATE INDEX strikes_of_free_keys ON strikes (id) WHERE worked = 0;
""",
    ),
)

SCHEMA_4 = (
    Part(
        "evidence against keys",
        """
CREATE TABLE bets (node BLOB PRIMARY KEY, state BLOB NOT NULL) STRICT;
CREATE TABLE compared (
    lease BLOB PRIMARY KEY REFERENCES leases, tokens BLOB NOT NULL, before BLOB NOT NULL
) STRICT;
CREATE TABLE quarantine (
    lease BLOB PRIMARY KEY REFERENCES leases, node BLOB NOT NULL, day INTEGER NOT NULL, weight INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX quarantine_by_day ON quarantine (day, node);
ALTER TABLE accounts ADD COLUMN doubted INTEGER NOT NULL DEFAULT 0;
""",
    ),
)

SCHEMA_5 = (
    Part(
        "evidence against keys with accepted groups",
        """
DELETE FROM bets WHERE node NOT IN (SELECT node FROM accounts WHERE accepted > 0);
ALTER TABLE bets ADD COLUMN day INTEGER NOT NULL DEFAULT 0;
CREATE INDEX bets_by_day ON bets (day);
""",
    ),
)

SCHEMA_6 = (
    Part(
        "near-ties",
        """
CREATE TABLE near_ties (holder TEXT PRIMARY KEY, state BLOB NOT NULL, day INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX near_ties_by_day ON near_ties (day);
""",
    ),
)

SCHEMA_7 = (
    Part(
        "second passes under the version before",
        """
CREATE TABLE version_pairs (node BLOB PRIMARY KEY, state BLOB NOT NULL, day INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX version_pairs_by_day ON version_pairs (day);
""",
    ),
)

SCHEMA_8 = (
    Part(
        "leases that ended as superseded",
        """
CREATE TABLE superseded (lease BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TRIGGER a_superseded_lease_is_forgotten AFTER DELETE ON leases
BEGIN
    DELETE FROM superseded WHERE lease = OLD.id;
END;
""",
    ),
)
