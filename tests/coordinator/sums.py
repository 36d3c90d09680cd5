"""The tables that add up other tables, against what those say."""

from coordinator.database import Database

ON_THEIR_WAY = """
SELECT era, version, sum(state = 'open'), sum(state = 'received') FROM leases
    WHERE state IN ('open', 'received') GROUP BY era, version ORDER BY era, version
"""
ENDS = """
WITH ends AS (
    SELECT node, verdict, code, trainable, rollouts, tokens, weight FROM verdicts
    UNION ALL SELECT node, 'expired', 'expired', 0, 0, 0, 0 FROM leases WHERE state = 'expired'
), both AS (SELECT * FROM ends UNION ALL SELECT x'', verdict, code, trainable, rollouts, tokens, weight FROM ends)
SELECT node, verdict, code, count(*), sum(trainable), sum(rollouts), sum(tokens), sum(weight) FROM both
    GROUP BY node, verdict, code ORDER BY node, verdict, code
"""
SPENT = """
SELECT s.at, s.lease FROM submissions s JOIN verdicts v ON v.lease = s.lease
    WHERE s.payload IS NOT NULL AND v.confirmed = 1 ORDER BY s.at, s.lease
"""


def check_sums(database: Database) -> None:
    """Every table of sums holds what an addition from the beginning gives."""
    for table, recomputed in (("on_their_way", ON_THEIR_WAY), ("sums", ENDS), ("spent", SPENT)):
        assert database.all(f"SELECT * FROM {table}") == database.all(recomputed), table
