"""Soft landings: groups outside the bounds, of a kind of device that is not known in the run yet.

Rules
1. A kind of device is what its node says of itself: engine class and name of the device. It is known once the nodes
   that say so have more than `KNOWN_AFTER` accepted groups together.
2. A group that its comparison with the scorer's pass would refuse, by E or by the bound on a token, lands softly while
   its kind is not known: it is refused as `unknown-device`. It is neither learned from nor paid, and no strike; node
   and operator get a sentence. The evidence against its key moves on as it would.
3. A kind is a node's word, and costs nothing. So within `LANDING_MEMORY_MS` at most `LANDINGS_OF_PARTY` groups of a
   party land, and `LANDINGS_OF_ROUNDING` of all, and none with a margin above `LANDING_MARGIN` times the bound: no
   rounding does that. Any other group is judged as those of known kinds are.
4. At most `TOKENS_MOST` tokens of such a group are kept, spread over it, and of a rounding the newest
   `LANDINGS_STORED` groups. The operator may widen the bounds by a kind (`echo2-coord calibrate --device`) once
   `PARTIES_LEAST` parties or more have landed `TOKENS_LEAST` tokens of it each: each party is fitted by itself, and in
   each bin the median party's value counts, the lower one of two. It never widens them by itself: parties are cheap
   to one who has addresses.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from echo2.coordinator.database.database import Database
from echo2.coordinator.verification.calibration import TOKENS_LEAST, fit
from echo2.coordinator.verification.evidence import BOUND, Tables
from echo2.coordinator.verification.token_evidence import TOKEN, TokenArray
from echo2.engines.registry import rounding_of
from echo2.runtime.units import DAY

KNOWN_AFTER: Final = 8
LANDING_MEMORY_MS: Final = 30 * DAY
LANDINGS_OF_PARTY: Final = 4
LANDINGS_OF_ROUNDING: Final = 64
LANDINGS_STORED: Final = 256
LANDING_MARGIN: Final = 4
PARTIES_LEAST: Final = 3
TOKENS_MOST: Final = 4_096
KIND_LENGTH: Final = 200
"""Characters of a kind, as the type of names on the wire has them."""


class LandedKind(NamedTuple):
    """A kind of device with landed groups. `parties`: parties with `TOKENS_LEAST` tokens or more each."""

    kind: str
    groups: int
    parties: int

    @property
    def suffices(self) -> bool:
        """Whether the bounds may be widened by it (rule 4)."""
        return self.parties >= PARTIES_LEAST


class DeviceLandings:
    """The table `landings`. A node is its public key, 32 bytes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(self, node: bytes, lease: bytes, party: str, rounding: str, tables: Tables, now: int) -> str | None:
        """Let a group land whose tokens were compared, in the caller's transaction; return its kind. None: it is judged
        as any other (rules 2 and 3). `rounding`, `tables`: those of the lease's Calibration. `now`: ms."""
        since = now - LANDING_MEMORY_MS
        count = "SELECT count(*) FROM landings WHERE rounding = ? AND at > ?"
        if self._database.value(count, (rounding, since)) >= LANDINGS_OF_ROUNDING:
            return None
        if self._database.value(f"{count} AND party = ?", (rounding, since, party)) >= LANDINGS_OF_PARTY:
            return None
        kind = self._unknown_kind(node, rounding)
        packed = self._database.value("SELECT tokens FROM compared WHERE lease = ?", (lease,))
        if kind is None or packed is None:
            return None
        tokens = np.frombuffer(packed, TOKEN)
        if int(tokens["margin"].max(initial=0)) > LANDING_MARGIN * tables[BOUND][0]:
            return None
        kept = tokens[np.arange(TOKENS_MOST) * len(tokens) // TOKENS_MOST] if len(tokens) > TOKENS_MOST else tokens
        self._database.do(
            "INSERT INTO landings VALUES (?, ?, ?, ?, ?, ?)", (lease, rounding, kind, party, now, kept.tobytes())
        )
        self._database.do(
            "DELETE FROM landings WHERE lease IN"
            " (SELECT lease FROM landings WHERE rounding = ? ORDER BY at DESC, lease LIMIT -1 OFFSET ?)",
            (rounding, LANDINGS_STORED),
        )
        return kind

    def _unknown_kind(self, node: bytes, rounding: str) -> str | None:
        """Return the kind of a node's device; None: it is known, or of another rounding than the group."""
        said = self._database.one("SELECT engine, device FROM nodes WHERE key = ?", (node,))
        if said is None or rounding_of(said[0]) != rounding:
            return None
        worked = (
            "SELECT coalesce(sum(s.groups), 0) FROM nodes n JOIN sums s ON s.node = n.key"
            " WHERE n.engine = ? AND n.device = ? AND s.verdict = 'accepted'"
        )
        return None if self._database.value(worked, said) > KNOWN_AFTER else f"{said[0]}, {said[1]}"[:KIND_LENGTH]


def landed_kinds(database: Database, rounding: str) -> list[LandedKind]:
    """Return the kinds of device with landed groups of a rounding, in alphabetical order."""
    tokens: dict[str, defaultdict[str, int]] = {}
    groups = defaultdict[str, int](int)
    query = "SELECT kind, party, length(tokens) FROM landings WHERE rounding = ? ORDER BY kind"
    for kind, party, nbytes in database.all(query, (rounding,)):
        tokens.setdefault(kind, defaultdict(int))[party] += nbytes // TOKEN.itemsize
        groups[kind] += 1
    return [
        LandedKind(kind, groups[kind], sum(count >= TOKENS_LEAST for count in by_party.values()))
        for kind, by_party in tokens.items()
    ]


def landed_tables(database: Database, rounding: str, kind: str) -> dict[str, list[int]] | None:
    """Return the tables of the median party of a kind of device; None: too few parties have enough tokens (rule 4)."""
    parts: defaultdict[str, list[TokenArray]] = defaultdict(list)
    query = "SELECT party, tokens FROM landings WHERE rounding = ? AND kind = ? ORDER BY at, lease"
    for party, packed in database.all(query, (rounding, kind)):
        parts[party].append(np.frombuffer(packed, TOKEN))
    fitted = [fit({party: np.concatenate(of)}) for party, of in parts.items() if sum(map(len, of)) >= TOKENS_LEAST]
    return median_of(fitted) if len(fitted) >= PARTIES_LEAST else None


def median_of(fitted: Sequence[dict[str, list[int]]]) -> dict[str, list[int]]:
    """Return the median of each value of several fits, the lower one of two."""
    return {
        name: [sorted(bins)[(len(fitted) - 1) // 2] for bins in zip(*(one[name] for one in fitted), strict=True)]
        for name in fitted[0]
    }
