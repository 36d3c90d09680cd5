"""The nodes that this coordinator knows: what they said in their hello, and when they were seen. How far a key is
trusted, and whether it is suspended or banned: coordinator/accounts/."""

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

from coordinator.accounts.standing import SERVED
from coordinator.database import Database
from coordinator.ledger import Ledger, accrued
from coordinator.state import NodeRow
from p2p.addresses import Way, way_of
from p2p.errors import P2PError
from p2p.identity import peer_id
from p2p.messages import Hello
from p2p.records import Known, over, trusted

AWAY = 60_000
"""Milliseconds without a sign of life after which a node that says hello has been away."""


SAVE = 10_000
SAVED_AT_ONCE = 1_000
"""Nodes whose signs of life are written in one call of `save`."""

LATELY = 120_000
"""Milliseconds for which a node that asked over HTTPS counts as connected."""


class Face(NamedTuple):
    """The slow parts of a node's row. `sealed`: the record that `reached` is from."""

    id: str
    sealed: bytes
    reached: Way | None


Faces = dict[bytes, Face]


class Roster:
    """The node table, and the world's view of it. A node is its public key, 32 bytes."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        self._database = database
        self._ledger = ledger
        self._seen: dict[bytes, int] = {}
        self._ways: dict[bytes, tuple[Way, int]] = {}
        self._since: dict[bytes, int] = {}
        self._versions: dict[bytes, int] = {}
        self._unsaved: set[bytes] = set()
        self._saving: list[bytes] = []
        """Nodes whose turn it is to be saved."""
        self._saved = 0

    def hello(self, node: bytes, hello: Hello, record: Known | None, now: int) -> None:
        """A node has introduced itself, for the first time or again. `record`: its own, opened; None: it is too old, or
        from ahead. Of two the one issued later is kept."""
        known = self._record(node)
        newest = record if known is None or (record is not None and record.issued > known.issued) else known
        self._database.do(
            "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)"
            " ON CONFLICT DO UPDATE SET name = excluded.name, software = excluded.software,"
            " engine = excluded.engine, device = excluded.device,"
            " addresses = excluded.addresses, last_seen = excluded.last_seen",
            (
                node,
                hello.name,
                hello.software,
                hello.engine,
                hello.device,
                newest.sealed if newest is not None else b"",
                now,
                now,
            ),
        )
        if node not in self._since or now - self._seen[node] > AWAY:
            self._since[node] = now
        self._seen[node] = now

    def introduced(self, node: bytes) -> bool:
        """Whether this node ever said hello, and was welcome."""
        return bool(self._database.value("SELECT EXISTS (SELECT 1 FROM nodes WHERE key = ? AND engine != '')", (node,)))

    def here_since(self, node: bytes) -> int | None:
        """Since when a node is in touch with this process, short breaks aside; None: it has not said hello."""
        return self._since.get(node)

    def admitted(self, node: bytes) -> bool:
        """Whether work of this node was ever accepted."""
        query = "SELECT EXISTS (SELECT 1 FROM sums WHERE node = ? AND verdict = 'accepted')"
        return bool(self._database.value(query, (node,)))

    def came(self, node: bytes, way: Way, now: int) -> None:
        """A signed request of a node came by a way of p2p.addresses."""
        self._ways[node] = (way, now)

    def over_https(self, now: int) -> set[str]:
        """Peer ids of those who asked over HTTPS lately: they keep no connection by which they could be known."""
        return {peer_id(node) for node, (way, at) in self._ways.items() if way == "https" and now - at < LATELY}

    def saw(self, node: bytes, now: int, version: int | None = None) -> None:
        """Note a sign of life, and the version that the node holds. Only another version is written at once: where
        nothing changed nothing is written (`save`)."""
        self._seen[node] = now
        self._unsaved.add(node)
        if version is not None and self._versions.get(node) != version:
            self._versions[node] = version
            self._database.do("UPDATE nodes SET last_seen = ?, version = ? WHERE key = ?", (now, version, node))

    def save(self, now: int) -> None:
        """Write when nodes were seen last, once in `SAVE` milliseconds for each of them, `SAVED_AT_ONCE` in a call.
        Call every second or so."""
        if not self._saving and not 0 <= now - self._saved < SAVE:  # a clock that was set back puts nothing off
            self._saved, self._saving, self._unsaved = now, list(self._unsaved), set()
        if not self._saving:
            return
        part, self._saving = self._saving[:SAVED_AT_ONCE], self._saving[SAVED_AT_ONCE:]
        with self._database.transaction():
            for node in part:
                self._database.do("UPDATE nodes SET last_seen = ? WHERE key = ?", (self._seen[node], node))

    def record(self, node: bytes, now: int) -> Known | None:
        """Where a node said that it can be reached, unless that is over."""
        known = self._record(node)
        return None if known is None or over(known, now) else known

    def records(self, now: int, most: int = 64) -> list[Known]:
        """Of the nodes seen last that are served, the last one first: to redial after a restart, and to tell others."""
        query = f"SELECT addresses FROM nodes WHERE {SERVED} ORDER BY last_seen DESC LIMIT ?"
        found = [_read(sealed) for (sealed,) in self._database.all(query, (now, most))]
        return [known for known in found if known is not None and known.addresses and not over(known, now)]

    def _record(self, node: bytes) -> Known | None:
        sealed: bytes | None = self._database.value("SELECT addresses FROM nodes WHERE key = ?", (node,))
        return None if sealed is None else _read(sealed)

    def ways(self) -> dict[bytes, Way]:
        """By which way each node's last request came."""
        return {node: way for node, (way, _) in self._ways.items()}

    def rows(
        self, connected: Collection[str], ways: Mapping[bytes, Way] | None = None, faces: Faces | None = None
    ) -> list[NodeRow]:
        """One row a node, most accepted work first. `connected`: peer ids with a connection now. `ways`: None: those
        that are known here. `faces`: of the call before, kept here."""
        ways, faces = self.ways() if ways is None else ways, {} if faces is None else faces
        query = "SELECT account, amount FROM balances WHERE account BETWEEN 'node:' AND 'node;'"
        points: dict[str, int] = dict(self._database.all(query))
        refusals: dict[bytes, dict[str, int]] = {}
        totals: dict[bytes, list[int]] = {}
        for key, verdict, code, *sums in self._database.each(
            "SELECT node, verdict, code, groups, rollouts, tokens, weight FROM sums"
            " WHERE node != x'' AND verdict != 'expired'"
        ):
            if verdict == "refused":
                refusals.setdefault(key, {})[code] = sums[0]
            else:
                totals[key] = [a + b for a, b in zip(totals.get(key, (0, 0, 0, 0)), sums, strict=True)]
        columns = "key, name, engine, device, version, last_seen, addresses"
        rows, before = [], faces.copy()
        faces.clear()
        for key, name, engine, device, version, last_seen, sealed in self._database.all(f"SELECT {columns} FROM nodes"):
            accepted, rollouts, tokens, weight = totals.get(key, (0, 0, 0, 0))
            face = before.get(key)
            faces[key] = face = face if face is not None and face.sealed == sealed else _face(key, sealed)
            node = face.id
            rows.append(
                NodeRow(
                    id=node,
                    name=name,
                    engine=engine,
                    device=device,
                    connected=node in connected,
                    version=version,
                    accepted=accepted,
                    refused=sum(refusals.get(key, {}).values()),
                    refusals=refusals.get(key, {}),
                    rollouts=rollouts,
                    tokens=tokens,
                    weight=weight,
                    points=points.get(accrued(node), 0),
                    last_seen=last_seen,
                    way=ways.get(key),
                    reached=face.reached,
                )
            )
        return sorted(rows, key=lambda row: (-row.weight, row.id))


def _face(key: bytes, sealed: bytes) -> Face:
    known = _read(sealed)
    return Face(peer_id(key), sealed, next(map(way_of, known.addresses if known is not None else ()), None))


@lru_cache(maxsize=4096)
def _read(sealed: bytes) -> Known | None:
    """A record of this coordinator's own table; None where there is none."""
    try:
        return trusted(sealed)
    except P2PError:
        return None
