"""Rows of nodes for people: those with the most accepted work first, some at a time.

Rules
1. A call reads the nodes that it returns and no others, whatever number the run knows.
2. A place in the order is the work and the key of the last node shown (`Cursor`): what comes after it is found by an
   index. Where work is accepted between two pages a node may show twice or not at all.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Self

from coordinator.accounts.ledger import accrued
from coordinator.accounts.standing import account_of, at
from coordinator.database import Database
from coordinator.metrics.views import NodeRow
from p2p.discovery.peer_records import decode_own
from p2p.errors import Malformed, P2PError
from p2p.identity import peer_id, public_key
from p2p.multiaddr import Route, route_of

_COLUMNS = "key, name, engine, device, version, last_seen, addresses, weight"
_AT_ONCE = 500

_peer_id = lru_cache(maxsize=4096)(peer_id)
_public_key = lru_cache(maxsize=16384)(public_key)


class Cursor(NamedTuple):
    """The last node of a page. `rank`: how many nodes came up to it."""

    rank: int
    weight: int
    key: bytes

    @classmethod
    def read(cls, text: str) -> Self:
        """The cursor that `str` wrote. Raises `Malformed`."""
        match text.split("-"):
            case [rank, weight, key] if rank.isdecimal() and weight.isdecimal() and len(rank) < 12 and len(weight) < 19:
                try:
                    return cls(int(rank), int(weight), bytes.fromhex(key))
                except ValueError:
                    pass
        raise Malformed(f"no place in the list of nodes: {text[:80]!r}")

    def __str__(self) -> str:
        return f"{self.rank}-{self.weight}-{self.key.hex()}"


class Page(NamedTuple):
    """`first`: rank of the first row. `after`: where the next page begins; None: this is the last."""

    rows: list[NodeRow]
    first: int
    after: Cursor | None


def page(
    database: Database, after: Cursor | None, most: int, connected: Collection[str], ways: Mapping[bytes, Route]
) -> Page:
    """At most `most` nodes behind `after`. `connected`: peer ids with a connection now. `ways`: by which way each
    node's last request came, as far as it is known."""
    where, values = ("", ()) if after is None else (" WHERE (weight, key) < (?, ?)", (after.weight, after.key))
    query = f"SELECT {_COLUMNS} FROM nodes{where} ORDER BY weight DESC, key DESC LIMIT ?"
    rows = database.all(query, (*values, most))
    rank = 0 if after is None else after.rank
    last = Cursor(rank + len(rows), rows[-1][-1], rows[-1][0]) if len(rows) == most else None
    return Page([_row(database, row, connected, ways) for row in rows], rank + 1, last)


def rows_of(
    database: Database, nodes: Iterable[str], connected: Collection[str], ways: Mapping[bytes, Route]
) -> list[NodeRow]:
    """The rows of these nodes, by peer id, as far as the run knows them."""
    query = f"SELECT {_COLUMNS} FROM nodes WHERE key = ?"
    rows = (database.one(query, (key,)) for key in _keys(nodes))
    return [_row(database, row, connected, ways) for row in rows if row is not None]


def known(database: Database, peers: Iterable[str]) -> int:
    """How many of these peers are nodes of the run."""
    keys, count = list(_keys(peers)), 0
    for start in range(0, len(keys), _AT_ONCE):
        some = tuple(keys[start : start + _AT_ONCE])
        count += database.value(f"SELECT count(*) FROM nodes WHERE key IN ({', '.join('?' * len(some))})", some)
    return count


def _keys(peers: Iterable[str]) -> Iterator[bytes]:
    for peer in peers:
        try:
            yield _public_key(peer)
        except Malformed:  # a peer that has another kind of key is no node
            continue


def _row(
    database: Database, columns: tuple[Any, ...], connected: Collection[str], ways: Mapping[bytes, Route]
) -> NodeRow:
    key, name, engine, device, version, last_seen, sealed, weight = columns
    node = _peer_id(key)
    accepted = rollouts = tokens = 0
    refusals: dict[str, int] = {}
    query = "SELECT verdict, code, groups, rollouts, tokens FROM sums WHERE node = ? AND verdict != 'expired'"
    for verdict, code, *sums in database.all(query, (key,)):
        if verdict == "refused":
            refusals[code] = sums[0]
        else:
            accepted, rollouts, tokens = accepted + sums[0], rollouts + sums[1], tokens + sums[2]
    standing = at(account_of(database, key), 0)  # with its last suspension, also one that is over
    return NodeRow(
        id=node,
        name=name,
        engine=engine,
        device=device,
        connected=node in connected,
        version=version,
        accepted=accepted,
        refused=sum(refusals.values()),
        refusals=refusals,
        rollouts=rollouts,
        tokens=tokens,
        weight=weight,
        points=database.value("SELECT amount FROM balances WHERE account = ?", (accrued(node),)) or 0,
        last_seen=last_seen,
        route=ways.get(key),
        reached=_reached(sealed),
        rank=standing.rank,
        suspended_until=standing.suspended_until,
        suspended_for=standing.code,
    )


@lru_cache(maxsize=4096)
def _reached(sealed: bytes) -> Route | None:
    """By which way others reach a node, by the first address of its record."""
    try:
        return next(map(route_of, decode_own(sealed).addresses), None)
    except P2PError:
        return None
