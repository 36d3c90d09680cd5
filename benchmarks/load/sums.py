"""Compute the sums that the triggers of run.sqlite keep, and the open work, from the rows of a history."""

from typing import Final

SUMS: Final = """
INSERT INTO on_their_way (era, version, open, received)
    SELECT era, version, sum(state = 'open'), sum(state = 'received') FROM leases
    WHERE state IN ('open', 'received') GROUP BY era, version;
INSERT INTO sums SELECT node, verdict, code, count(*), sum(trainable), sum(rollouts), sum(tokens), sum(weight)
    FROM verdicts GROUP BY node, verdict, code;
INSERT INTO sums SELECT node, 'expired', 'expired', count(*), 0, 0, 0, 0
    FROM leases WHERE state = 'expired' GROUP BY node;
INSERT INTO sums SELECT x'', verdict, code, sum(groups), sum(trainable), sum(rollouts), sum(tokens), sum(weight)
    FROM sums GROUP BY verdict, code;
INSERT INTO accounts (node, accepted, groups, wrong, vouched, banned, code, since, until, audited)
    SELECT node, sum(iif(verdict = 'accepted', groups, 0)), sum(groups), 0, 0, NULL, '', 0, 0,
        sum(iif(verdict = 'accepted', groups, 0)) << 32
    FROM sums WHERE node != x'' AND verdict IN ('accepted', 'refused') AND code != 'late' GROUP BY node;
WITH last AS (
    SELECT node, max(entry) AS entry FROM verdicts
    WHERE code IN ('seeded-choice', 'close-choices', 'drift', 'drift-median') GROUP BY node
), number AS (
    SELECT v.node AS node, count(*) AS wrong FROM verdicts v CROSS JOIN last ON last.node = v.node
    WHERE v.entry <= last.entry AND v.code != 'late' GROUP BY v.node
) UPDATE accounts SET wrong = number.wrong FROM number WHERE number.node = accounts.node;
INSERT INTO undecided SELECT l.era, l.version, l.party, s.at, l.id, 1 + length(s.payload) / 8
    FROM leases l JOIN submissions s ON s.lease = l.id WHERE l.state = 'received';
UPDATE nodes SET (weight, groups) = (
    SELECT coalesce(sum(s.weight), 0), coalesce(sum(s.groups), 0) FROM sums s
    WHERE s.node = nodes.key AND s.verdict NOT IN ('expired', 'returned')
);
UPDATE tallies SET value = (SELECT count(*) FROM nodes) WHERE name = 'nodes';
UPDATE tallies SET value = (SELECT count(*) FROM nodes WHERE groups = 0) WHERE name = 'nodes without groups';
INSERT INTO refused_tokens SELECT party, sum(nbytes) FROM (
    SELECT l.party, length(s.payload) AS nbytes FROM submissions s JOIN verdicts v ON v.lease = s.lease
        JOIN leases l ON l.id = s.lease WHERE s.payload IS NOT NULL AND v.verdict = 'refused'
    UNION ALL SELECT l.party, length(e.payload) FROM evidence e JOIN leases l ON l.id = e.lease
) GROUP BY party;
INSERT INTO lent SELECT id, 'known', node, '', era, version, '' FROM leases WHERE state IN ('open', 'received');
INSERT INTO shares SELECT 'known', era, version, count(*) FROM lent GROUP BY era, version;
UPDATE buffer SET signal = 1 WHERE varied = 1;
"""
