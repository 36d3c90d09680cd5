"""A check of the tables of sums against the tables whose rows they add up."""

from echo2.coordinator.database.database import Database

ON_THEIR_WAY = """
SELECT era, version, sum(state = 'open'), sum(state = 'received'), sum(state = 'open' AND NOT counts),
    sum(state = 'received' AND NOT counts) FROM leases
    WHERE state IN ('open', 'received') GROUP BY era, version ORDER BY era, version
"""
ENDS = """
WITH ends AS (
    SELECT node, verdict, code, trainable, rollouts, tokens, weight FROM verdicts
)
SELECT node, verdict, code, count(*), sum(trainable), sum(rollouts), sum(tokens), sum(weight) FROM ends
    GROUP BY node, verdict, code ORDER BY node, verdict, code
"""
ALL_ENDS = "SELECT verdict, code, count(*) FROM verdicts GROUP BY verdict, code"
WITHOUT_GROUP = """
SELECT node, state, count(*) FROM leases WHERE state IN ('expired', 'returned') GROUP BY node, state
    UNION ALL SELECT x'', state, count(*) FROM leases WHERE state IN ('expired', 'returned') GROUP BY state
"""
REFUSED_TOKENS = """
SELECT party, sum(nbytes) FROM (
    SELECT l.party, length(s.payload) AS nbytes FROM submissions s JOIN verdicts v ON v.lease = s.lease
        JOIN leases l ON l.id = s.lease WHERE v.verdict = 'refused' AND s.payload IS NOT NULL
    UNION ALL SELECT l.party, length(e.payload) FROM evidence e JOIN leases l ON l.id = e.lease
) GROUP BY party HAVING sum(nbytes) > 0 ORDER BY party
"""
STORED_BYTES = """
SELECT (SELECT coalesce(sum(length(payload)), 0) FROM submissions)
    + (SELECT coalesce(sum(length(payload)), 0) FROM evidence)
    + (SELECT coalesce(sum(length(behaviour)), 0) FROM buffer)
    + (SELECT coalesce(sum(length(tokens)), 0) FROM compared)
"""
NODES = """
SELECT n.key, coalesce(sum(v.weight), 0), count(v.lease)
    FROM nodes n LEFT JOIN verdicts v ON v.node = n.key GROUP BY n.key ORDER BY n.key
"""
LENT = """
SELECT o.share, o.era, o.version, count(*) FROM lent o JOIN leases l ON l.id = o.lease WHERE l.twin != 'canary'
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
LENT_OVER = """
SELECT connection, count(*) FROM lent WHERE share = 'new' AND connection != '' GROUP BY connection ORDER BY connection
"""
SETS = """
SELECT position, attempt FROM (
    SELECT position, attempt, counts, state IN ('open', 'received') AS live, id IN (SELECT lease FROM buffer) AS learned
    FROM leases WHERE twin != 'canary'
) GROUP BY position, attempt HAVING (sum(live) OR sum(learned)) AND sum(counts) != 1
    OR sum(learned AND NOT counts) OR (sum(counts AND NOT live AND NOT learned) AND sum(live))
"""
SPARE = """
SELECT count(*) FROM verdicts v JOIN leases l ON l.id = v.lease JOIN buffer b ON b.position = l.position
    WHERE b.lease != l.id AND v.code = 'ok'
"""
UNVESTED = """
SELECT node, sum(weight) FROM unvested GROUP BY node HAVING sum(weight) != (
    SELECT sum(v.weight) FROM verdicts v WHERE v.node = unvested.node AND v.code = 'canary'
        AND v.lease IN (SELECT lease FROM unvested))
"""
KEPT = (
    ("SELECT lease FROM lent ORDER BY lease", "SELECT id FROM leases WHERE state IN ('open', 'received') ORDER BY id"),
    ("SELECT * FROM shares ORDER BY share, era, version", LENT),
    ("SELECT * FROM lent_over ORDER BY connection", LENT_OVER),
    ("SELECT * FROM on_their_way", ON_THEIR_WAY),
    ("SELECT position, attempt FROM leases WHERE 0", SETS),
    ("SELECT coalesce(sum(value), 0) FROM tallies WHERE name = 'spare twins'", SPARE),
    ("SELECT id FROM leases WHERE 0", "SELECT id FROM leases WHERE twin = 'canary' AND counts"),
    ("SELECT account, amount FROM balances WHERE account LIKE '%:unvested' AND amount > 0 AND 0", UNVESTED),
    ("SELECT * FROM sums WHERE verdict NOT IN ('expired', 'returned') AND node != x''", ENDS),
    ("SELECT * FROM refused_tokens WHERE nbytes > 0", REFUSED_TOKENS),
    ("SELECT key, weight, groups FROM nodes ORDER BY key", NODES),
    ("SELECT value FROM tallies WHERE name = 'nodes'", "SELECT count(*) FROM nodes"),
    ("SELECT value FROM tallies WHERE name = 'nodes without groups'", "SELECT count(*) FROM nodes WHERE groups = 0"),
    ("SELECT value FROM tallies WHERE name = 'bytes of groups'", STORED_BYTES),
)


def check_sums(database: Database) -> None:
    """Check that every table of sums equals a new addition of all rows."""
    for kept, recomputed in KEPT:
        assert database.all(kept) == database.all(recomputed), kept
    ended = {(node, state): groups for node, state, groups in database.all("SELECT node, verdict, groups FROM sums")}
    for node, state, groups in database.all(WITHOUT_GROUP):  # such a lease is deleted, and stays counted
        assert ended.get((node, state), 0) >= groups
    total = "SELECT groups FROM sums WHERE node = x'' AND verdict = ? AND code = ?"
    for verdict, code, groups in database.all(ALL_ENDS):  # refused groups of free keys are deleted, and stay counted
        counted = database.value(total, (verdict, code))
        assert counted == groups if verdict == "accepted" else counted >= groups
