"""Run verdicts by evidence again, to the bit, from a run folder: `echo2-coord recheck`.

Rules
1. The verdicts are taken in the ledger's order. Of a group whose tokens are still stored the bet is made again: hashes
   of tokens, evidence before and evidence after, and the code, must be those of its entry.
2. Whether tokens are stored or not, the evidence before a group must be that after the key's group before: its
   entries are a chain from its first accepted group on. After `IDLE` days a chain may begin anew.
3. A group that was refused without an entry of its own belongs to a key without stored evidence: its row of `ends` is
   run again alone.
4. Nothing is written: a running coordinator is not disturbed.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import msgspec

from coordinator.database import Database
from coordinator.verification.evidence import IDLE, NodeEvidence, Tables
from coordinator.verification.evidence_table import EvidenceTable, evidence_hash
from runtime.units import DAY

FRESH = evidence_hash(b"")
"""Hash of the evidence against a key that has none."""


class ReplayedVerdicts(NamedTuple):
    """`again`: verdicts that came out the same. `linked`: those whose tokens are gone, and whose place in the chain is
    right. `faults`: one sentence per verdict that is not what its entry says. `evidence`: by peer id, after the key's
    last group that was run again."""

    again: int
    linked: int
    faults: list[str]
    evidence: dict[str, NodeEvidence]


class _Stated(msgspec.Struct, frozen=True):
    """The fields of an EvidencedOutcome (coordinator/rollouts/verdicts.py) that a verdict is run again by. `tokens`,
    `before`, `after`: hashes."""

    node: str
    lease: bytes
    code: str
    calibration: bytes = b""
    tokens: bytes = b""
    before: bytes = b""
    after: bytes = b""


class _Last(NamedTuple):
    """The newest link of a key's chain. `day`: of its verdict."""

    after: bytes
    day: int


def replay_verdicts(database: Database, tables: Callable[[bytes], Tables | None]) -> ReplayedVerdicts:
    """Run the verdicts of a run again. `tables`: of the Calibration with this hash; None: it is not at hand."""
    replay = _Replay(EvidenceTable(database), tables)
    with database.reading():
        for end, at, chained in _ends(database):
            replay.take(end, at, chained)
    return ReplayedVerdicts(replay.again, replay.linked, replay.faults, replay.evidence)


def _ends(database: Database) -> Iterator[tuple[_Stated, int, bool]]:
    """Yield (end, ms of its verdict, whether it is a link of its key's chain): those of the ledger, then the others."""
    entries = "SELECT facts, at FROM entries WHERE kind IN ('lease.accepted', 'lease.refused') ORDER BY seq"
    others = "SELECT e.document, v.at FROM ends e JOIN verdicts v ON v.lease = e.lease ORDER BY v.at"
    for query, chained in ((entries, True), (others, False)):
        with closing(database.each(query)) as rows:
            for document, at in rows:
                end = msgspec.msgpack.decode(document, type=_Stated)
                if end.calibration and end.tokens:
                    yield end, at, chained


class _Replay:
    """The verdicts so far. `again`, `linked`, `faults`, `evidence`: as in `ReplayedVerdicts`."""

    def __init__(self, table: EvidenceTable, tables: Callable[[bytes], Tables | None]) -> None:
        self._table = table
        self._tables = tables
        self._chains: dict[str, _Last] = {}
        self.again = self.linked = 0
        self.faults: list[str] = []
        self.evidence: dict[str, NodeEvidence] = {}

    def take(self, end: _Stated, at: int, chained: bool) -> None:
        """Run one verdict again (rules 1 and 2)."""
        fault = self._link(end, at // DAY) if chained else None
        tables = self._tables(end.calibration)
        again = None if tables is None else self._table.run_again(end.lease, tables, at)
        if again is not None and again.hashes != (end.tokens, end.before, end.after):
            fault = fault or "the bet made again gives other hashes than its entry states"
        elif again is not None and not again.agrees(end.code):
            fault = fault or f"the bet made again does not lead to {end.code}"
        if again is not None and chained:
            self.evidence[end.node] = again.after
        if fault is not None:
            self.faults.append(f"lease {end.lease.hex()} of {end.node}: {fault}")
        elif again is None:
            self.linked += 1
        else:
            self.again += 1

    def _link(self, end: _Stated, day: int) -> str | None:
        """Add a link to its key's chain, and return its fault."""
        last = self._chains.get(end.node)
        self._chains[end.node] = _Last(end.after, day)
        known = end.before == (FRESH if last is None else last.after)
        if known or (last is not None and end.before == FRESH and day - last.day >= IDLE):
            return None
        return "the evidence before it is not that after the key's group before"
