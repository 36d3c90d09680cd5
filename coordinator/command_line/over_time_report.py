"""Read the groups of the challenge window, and report what one node's show beside the others': `echo2-coord nodes
evidence`. It reads at most `MOST_LEASES` leases, those that ended last, whatever the run's length, and writes
nothing."""

from pathlib import Path
from typing import Any, Final

import msgspec

from echo2.coordinator.database.database import Database
from echo2.coordinator.nodes.operator_remarks import key_of
from echo2.coordinator.verification.over_time import Figure, SeenGroup, figures
from echo2.coordinator.verification.submitted_group import decode_stored_group
from echo2.p2p.identity import peer_id
from echo2.p2p.wire_types import decode
from echo2.protocol.leases import Lease
from echo2.tasks.task import Score, sampled_mask

MOST_LEASES: Final = 2_000
_GROUPS: Final = """
SELECT l.document, l.expires, l.position, l.state, s.payload, s.at, coalesce(s.scores, e.scores), n.facts FROM leases l
    LEFT JOIN submissions s ON s.lease = l.id LEFT JOIN episode_scores e ON e.lease = l.id
    LEFT JOIN verdicts v ON v.lease = l.id LEFT JOIN entries n ON n.seq = v.entry
    WHERE l.state NOT IN ('open', 'received') AND l.sealed != x'' AND (v.verdict IS NULL OR v.verdict = 'accepted')
    ORDER BY l.expires DESC LIMIT ?
"""


class _Counts(msgspec.Struct, frozen=True):
    near_ties: int | None = None


def report(path: Path, peer: str) -> list[str]:
    """Return the figures of a node as lines of text. `peer`: its peer id. Raises `LocalFault`, `DatabaseFault`."""
    key_of(peer)
    with Database.read(path) as database:
        groups = [seen_group(*row) for row in stored_rows(database)]
    told = figures(peer, groups)
    if not told:
        return [f"too few groups of {peer} are stored for a comparison: 24 hours, and store.rollout_bytes, bound them"]
    return [
        f"of {len(groups)} leases, the last that ended; evidence, from which nothing follows by itself",
        *map(_sentence, told),
    ]


def stored_rows(database: Database) -> list[tuple[Any, ...]]:
    """Return the leases that ended last, as long as their content is stored. The index of those is read alone."""
    return database.all(_GROUPS, (MOST_LEASES,))


def seen_group(
    document: bytes, expires: int, position: int, state: str, payload: bytes | None, at: int | None,
    scores: bytes | None, facts: bytes | None,
) -> SeenGroup:  # fmt: skip
    """Return a row of `stored_rows` as a group."""
    lease = decode(document, Lease)
    seen = SeenGroup(peer_id(lease.node), lease.task, (lease.task, lease.index), position)
    if state != "decided" or payload is None or at is None:
        return seen
    given = msgspec.msgpack.decode(scores, type=list[Score | None]) if scores else []
    rollouts = decode_stored_group(payload).rollouts
    counts = msgspec.msgpack.decode(facts, type=_Counts) if facts else _Counts()
    return seen._replace(
        rewards=tuple(score.reward for score in given if score is not None),
        rollouts=tuple(_sampled_tokens(rollout) for rollout in rollouts),
        took=max(0, at - lease.sent),
        near_ties=counts.near_ties,
        sent=lease.sent,
        life=expires - lease.sent,
    )


def _sampled_tokens(rollout: Any) -> tuple[int, ...]:
    mask = sampled_mask(rollout.turns)
    return tuple(int(token) for token, own in zip(rollout.tokens, mask, strict=True) if own)


def _sentence(one: Figure) -> str:
    return f"{one.what:<52}{one.own:>12.4g}{one.others:>12.4g}  {one.errors:+.1f} standard errors, {one.counted} values"
