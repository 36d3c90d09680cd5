"""The registry of nodes: the statements of each node's last hello, and when the node was last seen.

Rules
1. Keys are free, so the row of a node without any accepted group is deleted once the node was not seen for
   `UNPROVEN_ROW_MS` (`forget`), and with it all rows of its leases, its Receipts too. Beyond `MOST_WITHOUT_GROUPS`
   nodes without any group, each new one replaces the one seen longest ago: one connection can say hello under fifty new
   keys per second. The ledger's entries and the key's account stay in any case.
2. The answer to a hello contains peer records of other nodes (`records`). Up to half of them are of the nodes that
   `keep` named, proven ones as a rule (trusted_parties.py), taken in turn. At least half of these nodes have accepted
   work, if there are enough of them. At most `PER_SUBNET` of them are dialled in one public subnet. A node that is
   reached only through a relay counts in no subnet: its addresses are the relay's.
3. Memory is bounded (coordinator/nodes/sightings.py). No method reads all nodes.
4. The texts of a hello are stored with "?" for each character that cannot be printed: page, files and terminals show
   them, and an escape, a new line or a mark that turns the direction of writing would change what stands beside it.
   The name is stored as coordinator/nodes/node_names.py shows it. Names are compared at each hello, and when a node
   becomes proven (`compare_again`): from then on `MOST_RENAMED_NODES` other nodes, which took its name before, are
   shown with the ends of their peer ids; or the node itself is, where another node of that name was proven before it.
"""

import contextlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from functools import lru_cache

from echo2.coordinator.accounts.key_accounts import SERVED_CONDITION, account_of
from echo2.coordinator.database.database import Database
from echo2.coordinator.nodes import node_names
from echo2.coordinator.nodes.sightings import Sightings
from echo2.ledger.standing import rank
from echo2.p2p.discovery.peer_records import RECORD_LIFE_MS, VerifiedRecord, decode_own, has_expired
from echo2.p2p.errors import P2PError
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.party import SubnetOf, subnet_of
from echo2.p2p.multiaddr import address_of
from echo2.protocol.requests import Hello, RankResponse
from echo2.runtime.printable import printable
from echo2.runtime.units import DAY

NEW_ARRIVAL_MS = 60_000
"""Milliseconds without a request after which a node that says hello counts as newly arrived."""
UNPROVEN_ROW_MS = 7 * DAY
"""Milliseconds for which the row of a node without accepted groups is kept (rule 1)."""
MOST_WITHOUT_GROUPS = 100_000
"""Rows of nodes without groups: some 100 MB of run.sqlite."""
FORGOTTEN_AT_ONCE = 32
MOST_NAMED_PEERS = 64
"""Most peer records in the answer to a hello."""
PER_SUBNET = 2
LOOKED_AT = 4
"""Rows that are read per record that is returned: the newest. More new rows of one subnet than that hide all others."""
MOST_NAMESAKES = 16
"""Nodes with accepted work that are looked at for a name: those with the most work."""
MOST_RENAMED_NODES = 64
MOST_RANK = 10_000
"""Nodes that are counted for a place: the count takes less than a millisecond."""
SAVE_CONTACTS_MS = 10_000
"""Milliseconds between two writes of the times of last contact."""
SAVED_AT_ONCE = 1_000
"""Most nodes whose time of last contact is written in one call of `save`."""


class NodeRegistry:
    """The table `nodes`, and the memory of those seen by this process. A node is its public key, 32 bytes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.sightings = Sightings()
        self._saving: list[tuple[bytes, int]] = []
        """Nodes that are next to be saved, and when they were seen."""
        self._saved = 0
        self._kept: deque[bytes] = deque()
        """Nodes that have a share of each list of records, the next one first (rule 2)."""

    def register(
        self, node: bytes, hello: Hello, record: VerifiedRecord | None, now: int, instance: bytes = b""
    ) -> str:
        """Store a node's hello, its first or a later one; return the name under which the node is shown. `record`: the
        node's own, verified; None: the hello's record had expired, or was issued in the future. Of two records the one
        issued later is kept. `instance`: instance of the daemon that works with the key from now on."""
        name, skeleton = self._shown_name(node, hello.name)
        known = self._record(node)
        newest = record if known is None or (record is not None and record.issued > known.issued) else known
        self._database.do(
            "INSERT INTO nodes"
            " (key, name, skeleton, team, instance, software, engine, device, addresses, first_seen, last_seen)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET name = excluded.name, skeleton = excluded.skeleton,"
            " software = excluded.software, engine = excluded.engine, device = excluded.device,"
            " addresses = excluded.addresses, last_seen = excluded.last_seen, instance = excluded.instance,"
            " team = excluded.team",
            (
                node,
                name,
                skeleton,
                node_names.display_name(hello.team),
                instance,
                *map(printable, (hello.software, hello.engine, hello.device)),
                newest.sealed if newest is not None else b"",
                now,
                now,
            ),
        )
        self._make_room(node)
        sighting = self.sightings.meet(node, now, worked=self.is_admitted(node))
        if sighting.since is None or now - sighting.seen > NEW_ARRIVAL_MS:
            sighting.since = now
        sighting.seen, sighting.instance = now, instance
        return name

    def place_of(self, node: bytes) -> RankResponse:
        """Return the place of a node in the order of the page (coordinator/web/node_rows.py)."""
        weight = self._database.value("SELECT weight FROM nodes WHERE key = ?", (node,))
        known = int(self._database.value("SELECT value FROM tallies WHERE name = 'nodes'"))
        if not weight:
            return RankResponse(rank=None, nodes=known)
        query = "SELECT count(*) FROM (SELECT 1 FROM nodes WHERE (weight, key) > (?, ?) LIMIT ?)"
        before = int(self._database.value(query, (weight, node, MOST_RANK)))
        return RankResponse(rank=before + 1 if before < MOST_RANK else None, nodes=known)

    def _shown_name(self, node: bytes, name: str) -> tuple[str, str]:
        """Return the name under which a node is shown that calls itself `name` (rule 4), and the skeleton that it
        occupies: a name with the end of its peer id occupies its own alone."""
        name = node_names.display_name(name)
        skeleton = node_names.skeleton(name)
        if node_names.is_reserved(name) or self._has_proven_namesake(node, skeleton):
            return (full := node_names.qualify_name(name, peer_id(node))), full
        if self._is_proven(node):
            self._rename_others(node, skeleton)
        return name, skeleton

    def compare_again(self, node: bytes) -> None:
        """Compare the name of a node that has become proven (rule 4), in the caller's transaction."""
        row = self._database.one("SELECT name, skeleton FROM nodes WHERE key = ?", (node,))
        if row is None:
            return
        name, skeleton = row
        if self._has_proven_namesake(node, skeleton):
            self._rename(node, name)
        else:
            self._rename_others(node, skeleton)

    def _has_proven_namesake(self, node: bytes, skeleton: str) -> bool:
        query = "SELECT key FROM nodes WHERE skeleton = ? AND key != ? AND weight > 0 ORDER BY weight DESC LIMIT ?"
        namesakes = self._database.all(query, (skeleton, node, MOST_NAMESAKES))
        return any(self._is_proven(other) for (other,) in namesakes)

    def _rename_others(self, node: bytes, skeleton: str) -> None:
        query = "SELECT key, name FROM nodes WHERE skeleton = ? AND key != ? ORDER BY weight DESC LIMIT ?"
        for other, name in self._database.all(query, (skeleton, node, MOST_RENAMED_NODES)):
            self._rename(other, name)

    def _rename(self, node: bytes, name: str) -> None:
        full = node_names.qualify_name(name, peer_id(node))
        self._database.do("UPDATE nodes SET name = ?, skeleton = ? WHERE key = ?", (full, full, node))

    def _is_proven(self, node: bytes) -> bool:
        return rank(account_of(self._database, node)) == "proven"

    def is_introduced(self, node: bytes) -> bool:
        """Tell whether a hello of this node was ever accepted."""
        return bool(self._database.value("SELECT EXISTS (SELECT 1 FROM nodes WHERE key = ? AND engine != '')", (node,)))

    def here_since(self, node: bytes) -> int | None:
        """Return since when a node has been in contact with this process, short breaks aside; None: no hello yet."""
        sighting = self.sightings.find(node)
        return None if sighting is None else sighting.since

    def is_admitted(self, node: bytes) -> bool:
        """Tell whether work of this node was ever accepted."""
        query = "SELECT EXISTS (SELECT 1 FROM sums WHERE node = ? AND verdict = 'accepted')"
        return bool(self._database.value(query, (node,)))

    def on_contact(self, node: bytes, now: int, version: int | None = None) -> None:
        """Note a contact with a known node, and the version that it has. Only a changed version is written at once; the
        time is written by `save`."""
        worked = self._database.value("SELECT weight > 0 FROM nodes WHERE key = ?", (node,))
        if worked is None:
            return
        sighting = self.sightings.meet(node, now, worked=bool(worked))
        sighting.seen = now
        self.sightings.mark_unsaved(node)
        if version is not None and sighting.version != version:
            sighting.version = version
            self._database.do("UPDATE nodes SET last_seen = ?, version = ? WHERE key = ?", (now, version, node))

    def save(self, now: int) -> None:
        """Write when nodes were last seen: once per node and `SAVE_CONTACTS_MS` milliseconds, at most `SAVED_AT_ONCE`
        per call. Call every second or so."""
        if not self._saving and not 0 <= now - self._saved < SAVE_CONTACTS_MS:  # also if the clock was set back
            self._saved = now
            self._saving = self.sightings.to_save()
        if not self._saving:
            return
        part, self._saving = self._saving[:SAVED_AT_ONCE], self._saving[SAVED_AT_ONCE:]
        with self._database.transaction():
            for node, seen in part:
                self._database.do("UPDATE nodes SET last_seen = ? WHERE key = ?", (seen, node))

    def forget(self, now: int) -> int:
        """Delete at most `FORGOTTEN_AT_ONCE` nodes by age (rule 1); return how many."""
        query = "SELECT key FROM nodes WHERE (weight > 0) = 0 AND last_seen < ? ORDER BY last_seen LIMIT ?"
        gone = self._database.all(query, (now - UNPROVEN_ROW_MS, FORGOTTEN_AT_ONCE))
        if gone:
            with self._database.transaction():
                for (node,) in gone:
                    self._drop(node)
        return len(gone)

    def _make_room(self, newest: bytes) -> None:
        """Delete one node without groups if there are too many of them (rule 1)."""
        count = self._database.value("SELECT value FROM tallies WHERE name = 'nodes without groups'")
        if count > MOST_WITHOUT_GROUPS:
            query = "SELECT key FROM nodes WHERE groups = 0 AND key != ? ORDER BY last_seen LIMIT 1"
            with self._database.transaction():
                self._drop(self._database.value(query, (newest,)))

    def _drop(self, node: bytes) -> None:
        self._database.do("DELETE FROM nodes WHERE key = ?", (node,))
        self._database.do("DELETE FROM sums WHERE node = ?", (node,))
        bare = "SELECT id FROM leases WHERE node = ? AND sealed = x''"  # whose content was deleted before
        for table in ("evidence", "verdicts", "submissions"):
            self._database.do(f"DELETE FROM {table} WHERE lease IN ({bare})", (node,))
        self._database.do("DELETE FROM leases WHERE node = ? AND sealed = x''", (node,))

    def record(self, node: bytes, now: int) -> VerifiedRecord | None:
        """Return the record of a node's addresses, unless it expired."""
        known = self._record(node)
        return None if known is None or has_expired(known, now) else known

    def keep(self, nodes: Iterable[bytes]) -> None:
        """Name the nodes that have a share of each list of records (rule 2); replaces those named before."""
        self._kept = deque(dict.fromkeys(nodes))

    def records(self, now: int, subnet_of: SubnetOf = subnet_of) -> list[VerifiedRecord]:
        """Return the peer records that hellos are answered with, and that are dialled after a restart (rule 2): at most
        `MOST_NAMED_PEERS`, of the nodes seen last, nodes with accepted work first."""
        told = _Told(now, subnet_of)
        told.take(self._rows_of_kept(now), MOST_NAMED_PEERS // 2)
        told.take(self._rows(True, MOST_NAMED_PEERS, now), MOST_NAMED_PEERS)
        worked = len(told.records)
        told.take(self._rows(False, MOST_NAMED_PEERS, now), min(MOST_NAMED_PEERS, 2 * worked or MOST_NAMED_PEERS))
        return told.records

    def _rows(self, worked: bool, most: int, now: int) -> Iterator[tuple[bytes, bool]]:
        """Yield (record, served) of the nodes seen last, all with or all without accepted work."""
        query = (
            f"SELECT addresses, {SERVED_CONDITION} FROM nodes WHERE (weight > 0) = ? ORDER BY last_seen DESC LIMIT ?"
        )
        with contextlib.closing(self._database.each(query, (now, worked, LOOKED_AT * most))) as rows:
            yield from rows

    def _rows_of_kept(self, now: int) -> Iterator[tuple[bytes, bool]]:
        """Yield (record, served) of the nodes that have a share, each once, the next one first."""
        query = f"SELECT addresses, {SERVED_CONDITION} FROM nodes WHERE key = ? AND last_seen > ?"
        for _ in range(len(self._kept)):
            node = self._kept[0]
            self._kept.rotate(-1)
            if (row := self._database.one(query, (now, node, now - RECORD_LIFE_MS))) is not None:
                yield row

    def _record(self, node: bytes) -> VerifiedRecord | None:
        sealed: bytes | None = self._database.value("SELECT addresses FROM nodes WHERE key = ?", (node,))
        return None if sealed is None else _read(sealed)


class _Told:
    """A list of records under way."""

    def __init__(self, now: int, subnet_of: SubnetOf) -> None:
        self._now, self._subnet_of = now, subnet_of
        self._places: Counter[str] = Counter()
        self.records: list[VerifiedRecord] = []

    def take(self, rows: Iterator[tuple[bytes, bool]], most: int) -> None:
        """Add records until there are `most` (rule 2). `rows`: (record, whether its node is served)."""
        while len(self.records) < most and (row := next(rows, None)) is not None:
            known = _read(row[0]) if row[1] else None
            if known is None or known in self.records or not known.addresses or has_expired(known, self._now):
                continue
            subnets = {subnet for ip in _dialled_at(row[0]) if (subnet := self._subnet_of(ip)) is not None}
            if all(self._places[subnet] < PER_SUBNET for subnet in subnets):
                self._places.update(subnets)
                self.records.append(known)


@lru_cache(maxsize=4096)
def _dialled_at(sealed: bytes) -> tuple[str, ...]:
    """Return the IP addresses at which a node is dialled directly (rule 2)."""
    known = _read(sealed)
    direct = [sighting for sighting in map(address_of, known.addresses) if sighting.route != "relay"] if known else []
    return tuple({sighting.host for sighting in direct if sighting.ip is not None})


@lru_cache(maxsize=4096)
def _read(sealed: bytes) -> VerifiedRecord | None:
    """Decode a record from the table `nodes`; None if the node has none."""
    try:
        return decode_own(sealed)
    except P2PError:
        return None
