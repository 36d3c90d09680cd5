"""The nodes that this coordinator knows: what they said in their hello, and when they were seen. How far a key is
trusted, and whether it is suspended or banned: coordinator/accounts/.

Rules
1. A key costs nothing, so its row does not stay for ever: a node without any accepted or refused group that was not
   seen for `KEPT` goes (`forget`), and of more than `MOST_WITHOUT_GROUPS` such nodes the one seen longest ago goes with
   each that comes: one connection says hello under fifty new keys a second. Their ledger entries stay, as all do.
2. Of the nodes that a newcomer is told (`records`), at least half have accepted work where there are such, and at most
   `PER_SUBNET` are dialled in one public subnet. A node that is reached through a relay alone counts in no subnet: what
   it names is the relay's.
3. Memory is bounded (coordinator/accounts/sightings.py). Nothing here reads all nodes.
"""

import contextlib
from collections import Counter
from functools import lru_cache

from coordinator.accounts.sightings import Sightings
from coordinator.accounts.standing import SERVED
from coordinator.database import Database
from p2p.discovery.peer_records import VerifiedRecord, decode_own, expired
from p2p.errors import P2PError
from p2p.limits.origin import SubnetOf
from p2p.limits.subnets import subnet_of
from p2p.multiaddr import address_of
from protocol.requests import Hello
from runtime.units import DAY

AWAY = 60_000
"""Milliseconds without a sign of life after which a node that says hello has been away."""
KEPT = 7 * DAY
"""Milliseconds for which the row of a node without groups is kept (rule 1)."""
MOST_WITHOUT_GROUPS = 100_000
"""Some 100 MB of run.sqlite."""
FORGOTTEN_AT_ONCE = 32
TOLD = 64
PER_SUBNET = 2
LOOKED_AT = 4
"""Nodes that are looked at for each one that is told: a crowd in one subnet hides others only beyond that."""

SAVE = 10_000
SAVED_AT_ONCE = 1_000
"""Nodes whose signs of life are written in one call of `save`."""


class NodeRegistry:
    """The node table, and the world's view of it. A node is its public key, 32 bytes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.sightings = Sightings()
        self._saving: list[tuple[bytes, int]] = []
        """Nodes whose turn it is to be saved, and when they were seen."""
        self._saved = 0

    def register(self, node: bytes, hello: Hello, record: VerifiedRecord | None, now: int) -> None:
        """A node has introduced itself, for the first time or again. `record`: its own, opened; None: it is too old, or
        from ahead. Of two the one issued later is kept."""
        known = self._record(node)
        newest = record if known is None or (record is not None and record.issued > known.issued) else known
        self._database.do(
            "INSERT INTO nodes (key, name, software, engine, device, addresses, first_seen, last_seen)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
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
        self._make_room(node)
        sighting = self.sightings.meet(node, now, worked=self.admitted(node))
        if sighting.since is None or now - sighting.seen > AWAY:
            sighting.since = now
        sighting.seen = now

    def introduced(self, node: bytes) -> bool:
        """Whether this node ever said hello, and was welcome."""
        return bool(self._database.value("SELECT EXISTS (SELECT 1 FROM nodes WHERE key = ? AND engine != '')", (node,)))

    def here_since(self, node: bytes) -> int | None:
        """Since when a node is in touch with this process, short breaks aside; None: it has not said hello."""
        sighting = self.sightings.find(node)
        return None if sighting is None else sighting.since

    def admitted(self, node: bytes) -> bool:
        """Whether work of this node was ever accepted."""
        query = "SELECT EXISTS (SELECT 1 FROM sums WHERE node = ? AND verdict = 'accepted')"
        return bool(self._database.value(query, (node,)))

    def seen(self, node: bytes, now: int, version: int | None = None) -> None:
        """Note a sign of life of a known node, and the version that it holds. Only another version is written at once:
        where nothing changed nothing is written (`save`)."""
        worked = self._database.value("SELECT weight > 0 FROM nodes WHERE key = ?", (node,))
        if worked is None:
            return
        sighting = self.sightings.meet(node, now, worked=bool(worked))
        sighting.seen = now
        self.sightings.unsaved(node)
        if version is not None and sighting.version != version:
            sighting.version = version
            self._database.do("UPDATE nodes SET last_seen = ?, version = ? WHERE key = ?", (now, version, node))

    def save(self, now: int) -> None:
        """Write when nodes were seen last, once in `SAVE` milliseconds for each of them, `SAVED_AT_ONCE` in a call.
        Call every second or so."""
        if not self._saving and not 0 <= now - self._saved < SAVE:  # a clock that was set back puts nothing off
            self._saved, self._saving = now, self.sightings.to_save()
        if not self._saving:
            return
        part, self._saving = self._saving[:SAVED_AT_ONCE], self._saving[SAVED_AT_ONCE:]
        with self._database.transaction():
            for node, seen in part:
                self._database.do("UPDATE nodes SET last_seen = ? WHERE key = ?", (seen, node))

    def forget(self, now: int, most: int = FORGOTTEN_AT_ONCE) -> int:
        """Forget at most `most` nodes by rule 1; how many."""
        query = "SELECT key FROM nodes WHERE groups = 0 AND last_seen < ? ORDER BY last_seen LIMIT ?"
        gone = self._database.all(query, (now - KEPT, most))
        if gone:
            with self._database.transaction():
                for (node,) in gone:
                    self._drop(node)
        return len(gone)

    def _make_room(self, newest: bytes) -> None:
        """Forget one node without groups where there are too many of them (rule 1)."""
        count = self._database.value("SELECT value FROM tallies WHERE name = 'nodes without groups'")
        if count > MOST_WITHOUT_GROUPS:
            query = "SELECT key FROM nodes WHERE groups = 0 AND key != ? ORDER BY last_seen LIMIT 1"
            with self._database.transaction():
                self._drop(self._database.value(query, (newest,)))

    def _drop(self, node: bytes) -> None:
        self._database.do("DELETE FROM nodes WHERE key = ?", (node,))
        self._database.do("DELETE FROM sums WHERE node = ? AND verdict = 'expired'", (node,))

    def record(self, node: bytes, now: int) -> VerifiedRecord | None:
        """Where a node said that it can be reached, unless that is over."""
        known = self._record(node)
        return None if known is None or expired(known, now) else known

    def records(self, now: int, most: int = TOLD, subnet_of: SubnetOf = subnet_of) -> list[VerifiedRecord]:
        """Return the nodes that others are told of, and that are dialled after a restart: by rule 2, of those seen
        last, nodes with accepted work first."""
        places: Counter[str] = Counter()
        worked = self._told(True, most, now, places, subnet_of)
        return worked + self._told(False, min(most - len(worked), len(worked) or most), now, places, subnet_of)

    def _told(
        self, worked: bool, most: int, now: int, places: Counter[str], subnet_of: SubnetOf
    ) -> list[VerifiedRecord]:
        """At most `most` nodes with or without accepted work. `places`: how many were taken of each subnet."""
        query = f"SELECT addresses, {SERVED} FROM nodes WHERE (weight > 0) = ? ORDER BY last_seen DESC LIMIT ?"
        told: list[VerifiedRecord] = []
        with contextlib.closing(self._database.each(query, (now, worked, LOOKED_AT * most))) as rows:
            for sealed, served in rows:
                if len(told) == most:
                    break
                known = _read(sealed)
                if known is None or not served or not known.addresses or expired(known, now):
                    continue
                subnets = {subnet for ip in _dialled_at(sealed) if (subnet := subnet_of(ip)) is not None}
                if all(places[subnet] < PER_SUBNET for subnet in subnets):
                    places.update(subnets)
                    told.append(known)
        return told

    def _record(self, node: bytes) -> VerifiedRecord | None:
        sealed: bytes | None = self._database.value("SELECT addresses FROM nodes WHERE key = ?", (node,))
        return None if sealed is None else _read(sealed)


@lru_cache(maxsize=4096)
def _dialled_at(sealed: bytes) -> tuple[str, ...]:
    """The IP addresses at which a node is dialled itself (rule 2)."""
    known = _read(sealed)
    direct = [sighting for sighting in map(address_of, known.addresses) if sighting.route != "relay"] if known else []
    return tuple({sighting.host for sighting in direct if sighting.ip is not None})


@lru_cache(maxsize=4096)
def _read(sealed: bytes) -> VerifiedRecord | None:
    """A record of this coordinator's own table; None where there is none."""
    try:
        return decode_own(sealed)
    except P2PError:
        return None
