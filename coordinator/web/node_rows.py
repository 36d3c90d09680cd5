"""Rows of nodes from run.sqlite, most accepted work first, in pages.

Rules
1. A call reads only the nodes that it returns, however many the run has.
2. A `Cursor` is the work and key of the last node shown; an index finds the next nodes. A node may be shown twice or
   not at all if work is accepted between two pages.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Self

from echo2.coordinator.accounts.key_accounts import account_of
from echo2.coordinator.database.database import Database
from echo2.coordinator.metrics.views import NodeRow
from echo2.ledger.audited_work import ONE, decay_count
from echo2.ledger.ledger_entries import accrued_account
from echo2.ledger.standing import at, rank
from echo2.p2p.discovery.peer_records import decode_own
from echo2.p2p.errors import Malformed, P2PError
from echo2.p2p.identity import peer_id, public_key
from echo2.p2p.multiaddr import Route, route_of

_COLUMNS = "key, name, engine, device, version, last_seen, addresses, weight"
_AT_ONCE = 500

_peer_id = lru_cache(maxsize=4096)(peer_id)
_public_key = lru_cache(maxsize=16384)(public_key)


class Cursor(NamedTuple):
    """The last node of a page. `rank`: the number of nodes up to and including it."""

    rank: int
    weight: int
    key: bytes

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse a cursor written by `str`. Raises `Malformed`."""
        match text.split("-"):
            case [rank, weight, key] if rank.isdecimal() and weight.isdecimal() and len(rank) < 12 and len(weight) < 19:
                try:
                    return cls(int(rank), int(weight), bytes.fromhex(key))
                except ValueError:
                    pass
        raise Malformed(f"malformed cursor of the list of nodes: {text[:80]!r}")

    def __str__(self) -> str:
        return f"{self.rank}-{self.weight}-{self.key.hex()}"


class Page(NamedTuple):
    """A page of nodes. `first`: rank of the first row. `after`: cursor of the next page; None: this is the last."""

    rows: list[NodeRow]
    first: int
    after: Cursor | None


def page(
    database: Database,
    after: Cursor | None,
    most: int,
    connected: Collection[str],
    ways: Mapping[bytes, Route],
    now: int = 0,
) -> Page:
    """Read at most `most` nodes after `after`. `connected`: peer ids with an open connection. `ways`: key -> route of
    the node's last request, where known. `now`: ms, of the scores."""
    where, values = ("", ()) if after is None else (" WHERE (weight, key) < (?, ?)", (after.weight, after.key))
    query = f"SELECT {_COLUMNS} FROM nodes{where} ORDER BY weight DESC, key DESC LIMIT ?"
    rows = database.all(query, (*values, most))
    rank = 0 if after is None else after.rank
    last = Cursor(rank + len(rows), rows[-1][-1], rows[-1][0]) if len(rows) == most else None
    return Page([_row(database, row, connected, ways, now) for row in rows], rank + 1, last)


def rows_of(
    database: Database, nodes: Iterable[str], connected: Collection[str], ways: Mapping[bytes, Route], now: int = 0
) -> list[NodeRow]:
    """Read the rows of these nodes, by peer id, leaving out unknown ones."""
    query = f"SELECT {_COLUMNS} FROM nodes WHERE key = ?"
    rows = (database.one(query, (key,)) for key in _keys(nodes))
    return [_row(database, row, connected, ways, now) for row in rows if row is not None]


def count_known(database: Database, peers: Iterable[str]) -> int:
    """Count the nodes of the run among these peers."""
    keys, count = list(_keys(peers)), 0
    for start in range(0, len(keys), _AT_ONCE):
        some = tuple(keys[start : start + _AT_ONCE])
        count += database.value(f"SELECT count(*) FROM nodes WHERE key IN ({', '.join('?' * len(some))})", some)
    return count


def _keys(peers: Iterable[str]) -> Iterator[bytes]:
    for peer in peers:
        try:
            yield _public_key(peer)
        except Malformed:  # a peer with another kind of key is not a node
            continue


def _row(
    database: Database, columns: tuple[Any, ...], connected: Collection[str], ways: Mapping[bytes, Route], now: int
) -> NodeRow:
    key, name, engine, device, version, last_seen, sealed, weight = columns
    node = _peer_id(key)
    accepted = rollouts = tokens = 0
    refusals: dict[str, int] = {}
    query = (
        "SELECT verdict, code, groups, rollouts, tokens FROM sums WHERE node = ? AND verdict IN ('accepted', 'refused')"
    )
    for verdict, code, *sums in database.all(query, (key,)):
        if verdict == "refused":
            refusals[code] = sums[0]
        else:
            accepted, rollouts, tokens = accepted + sums[0], rollouts + sums[1], tokens + sums[2]
    account = account_of(database, key)
    standing = at(account, 0)  # with its last suspension, also an expired one
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
        points=database.value("SELECT amount FROM balances WHERE account = ?", (accrued_account(node),)) or 0,
        last_seen=last_seen,
        route=ways.get(key),
        reached=_route_to_node(sealed),
        rank=rank(account, now),
        suspended_until=standing.suspended_until,
        suspended_for=standing.code,
        score=1000 * decay_count(account.audited, account.aged, now)[0] // ONE,
    )


@lru_cache(maxsize=4096)
def _route_to_node(sealed: bytes) -> Route | None:
    """Return the route by which other nodes reach a node, from the first address of its peer record."""
    try:
        return next(map(route_of, decode_own(sealed).addresses), None)
    except P2PError:
        return None
