"""The teams that nodes state: the table `teams`, and the entries `team.set`.

Rules
1. A node states a team's name in its signed hello. Anybody may state any name, as nobody owns one. Names that look
   alike are one team (coordinator/nodes/node_names.py, rule 2), which is shown as it was stated first.
2. An entry follows once the node has accepted work, so free keys make no team and no entry; and again when it states
   another team, at most once per `TEAM_CHANGE_MS`. Work counts from the entry on (team_work.py, rule 2).
3. The work of teams is updated by each entry of work, in its transaction.
4. A name that is blotted out is deleted with its salt, and from the nodes that state it; the commitment and the work
   stay. A later statement of the name makes a new team.
"""

import hashlib
from collections.abc import Callable
from typing import Final

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.nodes import node_names
from echo2.ledger.ledger_entries import Entry
from echo2.ledger.team_work import TeamSet, TeamWork, work_of
from echo2.p2p.identity import peer_id, public_key
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import DAY

TEAM_CHANGE_MS: Final = DAY
SALT: Final = 32
TEAM_OF: Final = "nodes.team_id"
"""Under which a node's team is remembered (coordinator/database/written_rows.py)."""
AT_ONCE: Final = 32
"""Entries that one call of `settle` writes."""


class Teams:
    """The teams of one run. `entropy`: returns so many random bytes."""

    def __init__(self, database: Database, ledger: Ledger, entropy: Callable[[int], bytes]) -> None:
        self._database, self._ledger, self._entropy = database, ledger, entropy

    def settle(self, now: int) -> int:
        """Write the entries that are due (rule 2); return how many. Call every second or so."""
        query = (
            "SELECT key, team FROM nodes INDEXED BY nodes_between_teams WHERE weight > 0 AND team != team_written"
            " AND (team_at <= ? OR team_at > ?) LIMIT ?"
        )
        rows = self._database.all(query, (now - TEAM_CHANGE_MS, now, AT_ONCE))
        for node, name in rows:
            with self._database.transaction():
                team = self._team_named(name) if name else b""
                peer = peer_id(node)
                key = f"team:{peer}:{self._ledger.tip().entries + 1}"
                self._ledger.append(now, "team.set", key, TeamSet(node=peer, team=team))
                query = "UPDATE nodes SET team_written = team, team_id = ?, team_at = ? WHERE key = ?"
                self._database.do(query, (team or None, now, node))
                self._database.written.put(TEAM_OF, node, team)
        return len(rows)

    def _team_named(self, name: str) -> bytes:
        """Return the commitment of the team with this name, or of a new one (rule 1)."""
        skeleton = node_names.skeleton(name)
        known: bytes | None = self._database.value("SELECT id FROM teams WHERE skeleton = ?", (skeleton,))
        if known is not None:
            return known
        salt = self._entropy(SALT)
        team = hashlib.sha256(salt + name.encode()).digest()
        self._database.do("INSERT INTO teams VALUES (?, ?, ?, ?, 0, 0, 0, 0)", (team, name, skeleton, salt))
        return team

    def take(self, entry: Entry) -> None:
        """Count an entry of work that was just appended, in its transaction (rule 3)."""
        if (work := work_of(entry)) is None:
            return
        if not (team := self._team_of(public_key(work.node))):
            return
        written = self._database.written
        so_far: TeamWork | None = written.get("teams", team)
        if so_far is None:
            row = self._database.one("SELECT groups, weight, score, aged FROM teams WHERE id = ?", (team,))
            so_far = TeamWork(*row or ())
        done = so_far.with_work(1, work.weight, entry.at)
        self._database.later("UPDATE teams SET groups = ?, weight = ?, score = ?, aged = ? WHERE id = ?", (*done, team))
        written.put("teams", team, done)

    def _team_of(self, node: bytes) -> bytes:
        """Return the commitment of a node's team for an entry; empty: it has none."""
        team: bytes | None = self._database.written.get(TEAM_OF, node)
        if team is None:
            team = self._database.value("SELECT team_id FROM nodes WHERE key = ?", (node,)) or b""
            self._database.written.put(TEAM_OF, node, team)
        return team


def blot_out(database: Database, name: str) -> str:
    """Delete a team's name (rule 4); return what became of it, a sentence. Raises `LocalFault`."""
    skeleton = node_names.skeleton(node_names.display_name(name))
    row = database.one("SELECT id FROM teams WHERE skeleton = ? AND skeleton != ''", (skeleton,))
    if row is None:
        raise LocalFault(f"no team of this run is named {name!r}: the page lists them")
    with database.transaction():
        database.do("UPDATE teams SET name = '', skeleton = '', salt = x'' WHERE id = ?", row)
        database.do("UPDATE nodes SET team = '', team_written = '' WHERE team_id = ?", row)
    return f"the name of team {row[0].hex()[:16]} is deleted, its work stays; who states it again makes a new team"
