"""Define the tables of run.sqlite.

Rules
1. There is one schema. Until echo2 is published it changes in place, and a file of another form is refused
   (runtime/sqlite_form.py); from then on a change is a migration. Columns stand in docs/protocol/disk.md.
2. Triggers keep sums and open work beside the rows that they come from, so that no page reads a whole history.
3. The tables of `SESSION` are in the memory of the process that writes, and take part in its transactions: the durable
   set of drawn groups is in the learner's checkpoint and nowhere else.
"""

from typing import Final

STORED_BYTES: Final = "bytes of groups"
"""The tally of the bytes in `_STORED_COLUMNS`."""

TABLES: Final = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT;
CREATE TABLE nodes (
    key BLOB PRIMARY KEY, name TEXT NOT NULL, software TEXT NOT NULL, engine TEXT NOT NULL, device TEXT NOT NULL,
    addresses BLOB NOT NULL, first_seen INTEGER NOT NULL, last_seen INTEGER NOT NULL, version INTEGER,
    weight INTEGER NOT NULL DEFAULT 0, groups INTEGER NOT NULL DEFAULT 0, skeleton TEXT NOT NULL DEFAULT '',
    instance BLOB, team TEXT NOT NULL DEFAULT '', team_written TEXT NOT NULL DEFAULT '', team_id BLOB,
    team_at INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX nodes_by_work ON nodes (weight, key);
CREATE INDEX nodes_seen_last ON nodes (weight > 0, last_seen);
CREATE INDEX nodes_without_groups ON nodes (last_seen) WHERE groups = 0;
CREATE INDEX nodes_by_skeleton ON nodes (skeleton, weight);
CREATE INDEX nodes_between_teams ON nodes (key) WHERE weight > 0 AND team != team_written;
CREATE INDEX nodes_by_team ON nodes (team_id) WHERE team_id IS NOT NULL;
CREATE TABLE versions (
    era INTEGER NOT NULL, version INTEGER NOT NULL, root BLOB NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (era, version)
) STRICT;
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL UNIQUE,
    postings BLOB NOT NULL, facts BLOB NOT NULL, hash BLOB NOT NULL
) STRICT;
CREATE TABLE balances (account TEXT PRIMARY KEY, amount INTEGER NOT NULL) STRICT;
CREATE TABLE submissions (
    lease BLOB PRIMARY KEY REFERENCES leases, hash BLOB NOT NULL, at INTEGER NOT NULL, payload BLOB,
    scores BLOB, received BLOB, conflicts INTEGER NOT NULL DEFAULT 0, waited INTEGER, took INTEGER
) STRICT;
CREATE TABLE evidence (
    lease BLOB PRIMARY KEY REFERENCES leases, hash BLOB NOT NULL, at INTEGER NOT NULL, payload BLOB NOT NULL
) STRICT;
CREATE TABLE buffer (
    lease BLOB PRIMARY KEY REFERENCES leases, era INTEGER NOT NULL, version INTEGER NOT NULL, at INTEGER NOT NULL,
    varied INTEGER NOT NULL, behaviour BLOB, position INTEGER, signal INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX buffer_oldest_first ON buffer (era, version, at);
CREATE UNIQUE INDEX buffer_has_a_position_once ON buffer (position) WHERE position IS NOT NULL;
CREATE INDEX buffer_by_lease ON buffer (era, version, lease);
CREATE TABLE draws (
    lease BLOB PRIMARY KEY REFERENCES leases, step INTEGER NOT NULL, at INTEGER NOT NULL, loaded INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX draws_by_step ON draws (step);
CREATE TABLE learned (
    node BLOB NOT NULL, step INTEGER NOT NULL, groups INTEGER NOT NULL, PRIMARY KEY (node, step)
) STRICT, WITHOUT ROWID;
CREATE INDEX learned_by_step ON learned (step);
CREATE TABLE on_their_way (
    era INTEGER NOT NULL, version INTEGER NOT NULL, open INTEGER NOT NULL, received INTEGER NOT NULL,
    twin_open INTEGER NOT NULL DEFAULT 0, twin_received INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (era, version)
) STRICT, WITHOUT ROWID;
CREATE TABLE sums (
    node BLOB NOT NULL, verdict TEXT NOT NULL, code TEXT NOT NULL, groups INTEGER NOT NULL, trainable INTEGER NOT NULL,
    rollouts INTEGER NOT NULL, tokens INTEGER NOT NULL, weight INTEGER NOT NULL, PRIMARY KEY (node, verdict, code)
) STRICT, WITHOUT ROWID;
CREATE TABLE set_aside (
    lease BLOB PRIMARY KEY REFERENCES leases, reason TEXT NOT NULL, at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE leases (
    id BLOB PRIMARY KEY, node BLOB NOT NULL, nonce BLOB NOT NULL, position INTEGER NOT NULL, era INTEGER NOT NULL,
    version INTEGER NOT NULL, sent INTEGER NOT NULL, expires INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'received', 'decided', 'expired', 'returned')),
    document BLOB NOT NULL,
    sealed BLOB NOT NULL, attempt INTEGER NOT NULL DEFAULT 0, connection TEXT NOT NULL DEFAULT '',
    party TEXT NOT NULL DEFAULT '', twin TEXT NOT NULL DEFAULT '', counts INTEGER NOT NULL DEFAULT 1,
    ahead INTEGER, late_after INTEGER, stood INTEGER NOT NULL DEFAULT 0, UNIQUE (node, nonce)
) STRICT;
CREATE INDEX leases_late ON leases (sent + late_after) WHERE state = 'open' AND late_after IS NOT NULL;
CREATE INDEX leases_by_node ON leases (node, sent);
CREATE INDEX leases_open_of_node ON leases (node, expires) WHERE state = 'open';
CREATE INDEX leases_due ON leases (expires, era, version) WHERE state = 'open';
CREATE INDEX leases_received ON leases (era, version) WHERE state = 'received';
CREATE INDEX leases_ended ON leases (expires) WHERE state NOT IN ('open', 'received') AND sealed != x'';
CREATE UNIQUE INDEX leases_by_position ON leases (position, attempt, twin);
CREATE TABLE accounts (
    node BLOB PRIMARY KEY, accepted INTEGER NOT NULL, groups INTEGER NOT NULL, wrong INTEGER NOT NULL,
    vouched INTEGER NOT NULL, banned TEXT, code TEXT NOT NULL, since INTEGER NOT NULL, until INTEGER NOT NULL,
    doubted INTEGER NOT NULL DEFAULT 0, audited INTEGER NOT NULL DEFAULT 0, aged INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TABLE strikes (
    id INTEGER PRIMARY KEY, node BLOB NOT NULL, number INTEGER NOT NULL, code TEXT NOT NULL, evidence BLOB NOT NULL,
    at INTEGER NOT NULL, worked INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX strikes_by_node ON strikes (node, number);
CREATE INDEX strikes_of_free_keys ON strikes (id) WHERE worked = 0;
CREATE TABLE undecided (
    era INTEGER NOT NULL, version INTEGER NOT NULL, party TEXT NOT NULL, at INTEGER NOT NULL, lease BLOB NOT NULL,
    tokens INTEGER NOT NULL, PRIMARY KEY (era, version, party, at, lease)
) STRICT, WITHOUT ROWID;
CREATE INDEX undecided_longest ON undecided (era, version, at, lease);
CREATE TABLE ends (
    lease BLOB PRIMARY KEY, at INTEGER NOT NULL, document BLOB NOT NULL, entry INTEGER REFERENCES entries
) STRICT, WITHOUT ROWID;
CREATE INDEX ends_that_wait ON ends (at) WHERE entry IS NULL;
CREATE INDEX ends_of_an_entry ON ends (entry) WHERE entry IS NOT NULL;
CREATE TABLE verdicts (
    lease BLOB PRIMARY KEY REFERENCES leases, node BLOB NOT NULL, verdict TEXT NOT NULL, code TEXT NOT NULL,
    trainable INTEGER NOT NULL, weight INTEGER NOT NULL, rollouts INTEGER NOT NULL, tokens INTEGER NOT NULL,
    entry INTEGER REFERENCES entries, at INTEGER NOT NULL, receipt BLOB NOT NULL,
    confirmed INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX verdicts_accepted ON verdicts (entry) WHERE verdict = 'accepted';
CREATE TABLE setting_changes (
    id INTEGER PRIMARY KEY, at INTEGER NOT NULL, step INTEGER, key TEXT NOT NULL, old TEXT NOT NULL, new TEXT NOT NULL
) STRICT;
CREATE TABLE tallies (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE refused_tokens (party TEXT PRIMARY KEY, nbytes INTEGER NOT NULL) STRICT, WITHOUT ROWID;
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
CREATE TABLE again (
    position INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, reasons TEXT NOT NULL, at INTEGER NOT NULL
) STRICT;
CREATE TABLE skipped (reasons TEXT PRIMARY KEY, positions INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE budgets (
    holder BLOB PRIMARY KEY, since INTEGER NOT NULL, expired INTEGER NOT NULL, forgiven INTEGER NOT NULL,
    until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX budgets_by_age ON budgets (since);
CREATE TABLE paces (node BLOB PRIMARY KEY, p90 INTEGER NOT NULL, at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE bets (node BLOB PRIMARY KEY, state BLOB NOT NULL, day INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE INDEX bets_by_day ON bets (day);
CREATE TABLE compared (
    lease BLOB PRIMARY KEY REFERENCES leases, tokens BLOB NOT NULL, before BLOB NOT NULL
) STRICT;
CREATE TABLE landings (
    lease BLOB PRIMARY KEY, rounding TEXT NOT NULL, kind TEXT NOT NULL, party TEXT NOT NULL, at INTEGER NOT NULL,
    tokens BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX landings_by_kind ON landings (rounding, kind, party);
CREATE TABLE quarantine (
    lease BLOB PRIMARY KEY REFERENCES leases, node BLOB NOT NULL, day INTEGER NOT NULL, weight INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX quarantine_by_day ON quarantine (day, node);
CREATE TABLE near_ties (holder TEXT PRIMARY KEY, state BLOB NOT NULL, day INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX near_ties_by_day ON near_ties (day);
CREATE TABLE version_pairs (node BLOB PRIMARY KEY, state BLOB NOT NULL, day INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX version_pairs_by_day ON version_pairs (day);
CREATE TABLE superseded (lease BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;
CREATE TABLE episode_scores (lease BLOB PRIMARY KEY REFERENCES leases, scores BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE steps (
    lease BLOB NOT NULL REFERENCES leases, sample INTEGER NOT NULL, turn_number INTEGER NOT NULL,
    sampled BLOB NOT NULL, state TEXT NOT NULL CHECK (state IN ('asked', 'given', 'over', 'failed')), given BLOB,
    reward REAL, success INTEGER, PRIMARY KEY (lease, sample, turn_number)
) STRICT, WITHOUT ROWID;
CREATE TABLE task_results (
    task TEXT NOT NULL, task_version INTEGER NOT NULL, span TEXT NOT NULL CHECK (span IN ('all', 'before', 'last')),
    groups INTEGER NOT NULL, unscored INTEGER NOT NULL, rollouts INTEGER NOT NULL, reward REAL NOT NULL,
    success INTEGER NOT NULL, varied INTEGER NOT NULL, cut INTEGER NOT NULL, missing INTEGER NOT NULL,
    longer INTEGER NOT NULL, shorter INTEGER NOT NULL, PRIMARY KEY (task, task_version, span)
) STRICT, WITHOUT ROWID;
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
    PRIMARY KEY (task, task_version)
) STRICT, WITHOUT ROWID;
CREATE TABLE tree (leaf INTEGER PRIMARY KEY, digests BLOB NOT NULL) STRICT;
CREATE TABLE ledger_heads (
    number INTEGER PRIMARY KEY, size INTEGER NOT NULL, issued INTEGER NOT NULL, sealed BLOB NOT NULL,
    note TEXT NOT NULL
) STRICT;
CREATE TABLE canary_answers (
    id INTEGER PRIMARY KEY, era INTEGER NOT NULL, version INTEGER NOT NULL, position INTEGER NOT NULL,
    attempt INTEGER NOT NULL, lease BLOB UNIQUE, answer BLOB NOT NULL, at INTEGER NOT NULL, UNIQUE (position, attempt)
) STRICT;
CREATE TABLE unvested (
    lease BLOB PRIMARY KEY REFERENCES leases, node BLOB NOT NULL, weight INTEGER NOT NULL, due INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX unvested_by_node ON unvested (node, due);
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
CREATE TABLE teams (
    id BLOB PRIMARY KEY, name TEXT NOT NULL, skeleton TEXT NOT NULL, salt BLOB NOT NULL, groups INTEGER NOT NULL,
    weight INTEGER NOT NULL, score INTEGER NOT NULL, aged INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX teams_by_skeleton ON teams (skeleton) WHERE skeleton != '';
CREATE INDEX teams_by_weight ON teams (weight);
INSERT INTO tallies VALUES ('nodes', 0), ('nodes without groups', 0), ('bytes of groups', 0);
"""

TRIGGERS: Final = """
CREATE TRIGGER entries_are_never_changed BEFORE UPDATE ON entries
BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER entries_are_never_removed BEFORE DELETE ON entries
BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END;
CREATE TRIGGER a_final_state_is_final BEFORE UPDATE OF state ON leases WHEN OLD.state NOT IN ('open', 'received')
BEGIN SELECT RAISE(ABORT, 'this lease has its final state'); END;
CREATE TRIGGER an_end_without_a_group_is_summed AFTER UPDATE OF state ON leases
    WHEN NEW.state IN ('expired', 'returned')
BEGIN
    INSERT INTO sums VALUES (NEW.node, NEW.state, NEW.state, 1, 0, 0, 0, 0), (x'', NEW.state, NEW.state, 1, 0, 0, 0, 0)
        ON CONFLICT DO UPDATE SET groups = groups + 1;
END;
CREATE TRIGGER a_group_waits_no_longer AFTER UPDATE OF state ON leases
    WHEN OLD.state = 'received' AND NEW.state != 'received'
BEGIN
    DELETE FROM undecided WHERE era = OLD.era AND version = OLD.version AND party = OLD.party
        AND at = (SELECT at FROM submissions WHERE lease = OLD.id) AND lease = OLD.id;
END;
CREATE TRIGGER a_verdict_is_summed AFTER INSERT ON verdicts
BEGIN
    INSERT INTO sums VALUES
        (NEW.node, NEW.verdict, NEW.code, 1, NEW.trainable, NEW.rollouts, NEW.tokens, NEW.weight),
        (x'', NEW.verdict, NEW.code, 1, NEW.trainable, NEW.rollouts, NEW.tokens, NEW.weight)
        ON CONFLICT DO UPDATE SET groups = groups + 1, trainable = trainable + excluded.trainable,
            rollouts = rollouts + excluded.rollouts, tokens = tokens + excluded.tokens,
            weight = weight + excluded.weight;
END;
CREATE TRIGGER a_node_comes_with_its_work AFTER INSERT ON nodes
BEGIN
    UPDATE tallies SET value = value + 1 WHERE name = 'nodes';
    UPDATE nodes SET (weight, groups) = (
        SELECT coalesce(sum(s.weight), 0), coalesce(sum(s.groups), 0) FROM sums s
        WHERE s.node = NEW.key AND s.verdict NOT IN ('expired', 'returned')
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
CREATE TRIGGER a_lease_is_over AFTER UPDATE OF state ON leases WHEN NEW.state NOT IN ('open', 'received')
BEGIN
    DELETE FROM lent WHERE lease = NEW.id;
END;
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
CREATE TRIGGER a_superseded_lease_is_forgotten AFTER DELETE ON leases
BEGIN
    DELETE FROM superseded WHERE lease = OLD.id;
END;
CREATE TRIGGER steps_end_with_their_lease AFTER UPDATE OF state ON leases
WHEN OLD.state = 'open' AND NEW.state != 'open'
BEGIN
    DELETE FROM steps WHERE lease = OLD.id;
END;
CREATE TRIGGER a_lease_goes_out AFTER INSERT ON leases
BEGIN
    INSERT INTO on_their_way VALUES (
        NEW.era, NEW.version, NEW.state = 'open', NEW.state = 'received',
        NEW.state = 'open' AND NOT NEW.counts, NEW.state = 'received' AND NOT NEW.counts
    ) ON CONFLICT DO UPDATE SET open = open + excluded.open, received = received + excluded.received,
        twin_open = twin_open + excluded.twin_open, twin_received = twin_received + excluded.twin_received;
END;
CREATE TRIGGER a_lease_moves_on AFTER UPDATE OF state, counts ON leases
WHEN NEW.state != OLD.state OR NEW.counts != OLD.counts
BEGIN
    UPDATE on_their_way SET
        open = open + (NEW.state = 'open') - (OLD.state = 'open'),
        received = received + (NEW.state = 'received') - (OLD.state = 'received'),
        twin_open = twin_open
            + (NEW.state = 'open' AND NOT NEW.counts) - (OLD.state = 'open' AND NOT OLD.counts),
        twin_received = twin_received
            + (NEW.state = 'received' AND NOT NEW.counts) - (OLD.state = 'received' AND NOT OLD.counts)
        WHERE era = NEW.era AND version = NEW.version;
    DELETE FROM on_their_way WHERE era = NEW.era AND version = NEW.version AND open = 0 AND received = 0;
END;
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
CREATE TRIGGER ledger_heads_are_never_changed BEFORE UPDATE ON ledger_heads
    BEGIN SELECT RAISE(ABORT, 'a signed head of the ledger is never changed'); END;
CREATE TRIGGER ledger_heads_are_never_removed BEFORE DELETE ON ledger_heads
    BEGIN SELECT RAISE(ABORT, 'a signed head of the ledger is never removed'); END;
CREATE TRIGGER a_canary_is_never_learned BEFORE INSERT ON buffer
WHEN (SELECT twin = 'canary' FROM leases WHERE id = NEW.lease)
BEGIN SELECT RAISE(ABORT, 'a canary has no place in the buffer'); END;
CREATE TRIGGER a_canary_never_counts BEFORE UPDATE OF counts ON leases WHEN NEW.twin = 'canary' AND NEW.counts
BEGIN SELECT RAISE(ABORT, 'a canary does not count'); END;
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
"""

_STORED_COLUMNS: Final = {"submissions": "payload", "evidence": "payload", "buffer": "behaviour", "compared": "tokens"}
"""By table, the column that takes the room of a group: rollouts, and log-probabilities of the scorer."""


def _sum_bytes(table: str, column: str) -> str:
    """Return the triggers that add up the bytes of a column."""
    add = f"UPDATE tallies SET value = value + {{}} WHERE name = '{STORED_BYTES}'"
    new, old = (f"coalesce(length({row}.{column}), 0)" for row in ("NEW", "OLD"))
    return f"""
CREATE TRIGGER bytes_come_to_{table} AFTER INSERT ON {table} WHEN {new} > 0
BEGIN {add.format(new)}; END;
CREATE TRIGGER bytes_change_in_{table} AFTER UPDATE OF {column} ON {table} WHEN {new} != {old}
BEGIN {add.format(f"{new} - {old}")}; END;
CREATE TRIGGER bytes_go_from_{table} AFTER DELETE ON {table} WHEN {old} > 0
BEGIN {add.format(f"-{old}")}; END;
"""


SCRIPT: Final = TABLES + TRIGGERS + "".join(_sum_bytes(*column) for column in _STORED_COLUMNS.items())
"""All statements that make a file."""


def _count(change: str, row: str) -> str:
    """Return the body of a trigger that changes the count of a group's version. `row`: the row that names its lease."""
    place = f"(SELECT era, version, varied FROM buffer WHERE lease = {row}.lease)"
    return f"BEGIN UPDATE drawable SET groups = groups {change} WHERE (era, version, varied) = {place}; END;"


SESSION: Final = f"""
CREATE TEMP TABLE drawn (lease BLOB PRIMARY KEY, version INTEGER NOT NULL);
CREATE TEMP TABLE drawable (
    era INTEGER NOT NULL, version INTEGER NOT NULL, varied INTEGER NOT NULL, groups INTEGER NOT NULL,
    PRIMARY KEY (era, version, varied)
) WITHOUT ROWID;
CREATE TEMP TRIGGER a_group_comes_to_the_buffer AFTER INSERT ON main.buffer
BEGIN
    INSERT INTO drawable VALUES (NEW.era, NEW.version, NEW.varied, 1) ON CONFLICT DO UPDATE SET groups = groups + 1;
END;
CREATE TEMP TRIGGER a_group_is_drawn AFTER INSERT ON temp.drawn
WHEN NEW.lease NOT IN (SELECT lease FROM set_aside)
{_count("- 1", "NEW")}
CREATE TEMP TRIGGER a_drawn_group_is_left_again AFTER DELETE ON temp.drawn
WHEN OLD.lease NOT IN (SELECT lease FROM set_aside)
{_count("+ 1", "OLD")}
CREATE TEMP TRIGGER a_group_is_set_aside AFTER INSERT ON main.set_aside
WHEN NEW.lease NOT IN (SELECT lease FROM drawn)
{_count("- 1", "NEW")}
"""
"""The tables of a session (coordinator/verdicts/replay_buffer.py)."""
