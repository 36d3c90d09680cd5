"""Run verdicts by evidence and by near-ties again, to the bit, from a run folder: `echo2-coord recheck`.

Rules
1. The verdicts are replayed in their order, which is the ledger's. For a group whose tokens are still stored, the bet
   is made again. The hashes of tokens, evidence before and evidence after, the peak and the code must be those of its
   entry. Whether tokens are stored or not, a key's groups are in quarantine for the rest of a day on which one was.
2. Whether tokens are stored or not, the evidence before a group must be the evidence after the key's previous group. So
   a key's entries are a chain from its first accepted group on. After `IDLE` days a chain may begin anew.
3. A group that was refused without an entry of its own belongs to a key without stored evidence: its row of `ends` is
   run again alone.
4. Near-ties follow from the counts in the entries and from the parties of the leases. Each code, under the rules that
   its entry states, and at the end each row of `near_ties`, must follow from these.
5. The evidence by passes under the version before follows from the counts in the entries, where a key's evidence is
   stored (rule 3). Each `version-lie` by it, and at the end each row of `version_pairs`, must follow from these.
6. A `quarantine.ended` pays the node if the evidence after the node's last group before that entry was honest, and no
   group of the day states a peak of `MOST_PEAK`, and escrow otherwise. If it names a Calibration, it pays the node, and
   the bets on the groups of that day made again against it must end well. If a second check decided it, its answer in
   the ledger, of the day's first group in quarantine, leads to it.
7. Nothing is written: a running coordinator is not disturbed.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import msgspec

from echo2.coordinator.database.database import Database
from echo2.coordinator.verification.evidence import IDLE_DAYS, MOST_PEAK, NodeEvidence, Tables
from echo2.coordinator.verification.evidence_table import EvidenceTable, evidence_hash
from echo2.coordinator.verification.near_tie_table import key_row, party_row
from echo2.coordinator.verification.near_ties import FIRST_TIE_EVIDENCE, NearTieCount, judge_ties
from echo2.coordinator.verification.version_pairs import FIRST_PAIR_EVIDENCE as PAIRS_BEGINNING
from echo2.coordinator.verification.version_pairs import VersionCount, after_pass
from echo2.p2p.identity import peer_id, public_key
from echo2.runtime.units import DAY

FRESH_EVIDENCE_HASH = evidence_hash(b"")
"""Hash of the evidence against a key that has none."""
_VERDICTS = """
SELECT coalesce(e.facts, n.document), v.at, e.seq IS NOT NULL, l.party FROM verdicts v JOIN leases l ON l.id = v.lease
    LEFT JOIN entries e ON e.seq = v.entry LEFT JOIN ends n ON n.lease = v.lease ORDER BY v.rowid
"""


_ENDS_OF_QUARANTINE = """
SELECT kind, facts, at FROM entries WHERE kind IN (
    'lease.accepted', 'lease.refused', 'quarantine.ended', 'appeal.answered'
) ORDER BY seq
"""


class ReplayedVerdicts(NamedTuple):
    """`again`: verdicts by evidence that came out the same. `linked`: those whose tokens are gone, and whose place in
    the chain is right. `counted`: verdicts by near-ties that came out the same. `paired`: those of groups that were
    passed twice. `faults`: one sentence per verdict that is not what its entry says. `evidence`: evidence by peer id,
    after the key's last group that was run again."""

    again: int
    linked: int
    counted: int
    paired: int
    faults: list[str]
    evidence: dict[str, NodeEvidence]


class _Stated(msgspec.Struct, frozen=True):
    """The fields of an EvidencedOutcome or CountedOutcome (coordinator/verdicts/lease_outcomes.py) from which a
    verdict is run again. `tokens`, `before`, `after`: hashes."""

    node: str
    lease: bytes
    code: str
    calibration: bytes = b""
    tokens: bytes = b""
    before: bytes = b""
    after: bytes = b""
    sampled: int | None = None
    near_ties: int = 0
    newer: int | None = None
    older: int = 0
    rollouts: int = 0
    peak: int = 0
    rules: int = 1

    @property
    def stored(self) -> bool:
        """Whether the key's evidence after this group was stored (evidence_table.py, rule 1). Groups that are refused
        count no rollouts."""
        return self.before != FRESH_EVIDENCE_HASH or self.rollouts > 0


class _QuarantineEnded(msgspec.Struct, frozen=True):
    """The fields of a QuarantineEnded (ledger/ledger_facts.py) that follow from the evidence."""

    node: str
    day: int
    released: bool
    calibration: bytes = b""
    rules: int = 1
    decided: str = ""


class _Answered(msgspec.Struct, frozen=True):
    """The fields of an AppealAnswered that may decide a day in quarantine."""

    lease: bytes
    again: str


class _Decided(NamedTuple):
    """A verdict. `at`: ms. `chained`: whether it has an entry of its own. `party`: party of its lease."""

    end: _Stated
    at: int
    chained: bool
    party: str


class _Kept(NamedTuple):
    """A group in quarantine. `at`: ms. `peak`: peak as its entry states it."""

    lease: bytes
    at: int
    peak: int


class _Last(NamedTuple):
    """The newest link of a key's chain. `day`: day of its verdict."""

    after: bytes
    day: int


def replay_verdicts(database: Database, tables: Callable[[bytes], Tables | None]) -> ReplayedVerdicts:
    """Run the verdicts of a run again. `tables`: tables of the Calibration with this hash; None: it is missing."""
    replay, ties, pairs = _Replay(EvidenceTable(database), tables), _NearTies(), _VersionPairs()
    with database.reading():
        for one in _decided_groups(database):
            if one.end.calibration and one.end.tokens:
                replay.take(one)
            if one.end.sampled is not None:
                ties.take(one)
            if one.end.newer is not None:
                pairs.take(one, one.end.newer)
        ties.compare(database)
        pairs.compare(database)
        replay.take_quarantines(database)
    faults = replay.faults + ties.faults + pairs.faults
    return ReplayedVerdicts(replay.again, replay.linked, ties.counted, pairs.counted, faults, replay.evidence)


def _decided_groups(database: Database) -> Iterator[_Decided]:
    with closing(database.each(_VERDICTS)) as rows:
        for facts, at, chained, party in rows:
            if facts is not None:
                yield _Decided(msgspec.msgpack.decode(facts, type=_Stated), at, bool(chained), party)


class _NearTies:
    """The near-ties of keys and parties so far. `counted`, `faults`: as in `ReplayedVerdicts`."""

    def __init__(self) -> None:
        self._evidence: dict[str, NodeEvidence] = {}
        self.counted = 0
        self.faults: list[str] = []

    def take(self, one: _Decided) -> None:
        """Run one verdict again (rule 4)."""
        count = NearTieCount(one.end.sampled or 0, one.end.near_ties)
        key, party = key_row(public_key(one.end.node)), party_row(one.party) if one.party else None
        of_party = None if party is None else self._of(party)
        judged = judge_ties(self._of(key), of_party, count, one.at, sparing=one.end.rules > 1)
        self._evidence[key] = judged.key
        if party is not None and judged.party is not None:
            self._evidence[party] = judged.party
        if judged.code == (one.end.code if one.end.code.endswith("near-ties") else ""):
            self.counted += 1
        else:
            self.faults.append(_fault(one.end, f"its near-ties counted again do not lead to {one.end.code}"))

    def compare(self, database: Database) -> None:
        """Compare the rows of `near_ties` with those that follow from the entries. Lapsed rows may be missing."""
        for holder, state in database.all("SELECT holder, state FROM near_ties"):
            if self._of(holder).encode() != state:
                self.faults.append(f"{holder}: its row of near_ties is not what the entries give")

    def _of(self, holder: str) -> NodeEvidence:
        return self._evidence.get(holder, FIRST_TIE_EVIDENCE)


class _VersionPairs:
    """The evidence by passes under the version before so far. `counted`, `faults`: as in `_NearTies`."""

    def __init__(self) -> None:
        self._evidence: dict[str, NodeEvidence] = {}
        self.counted = 0
        self.faults: list[str] = []

    def take(self, one: _Decided, newer: int) -> None:
        """Run one verdict again (rule 5)."""
        end = one.end
        after = after_pass(self._of(end.node), VersionCount(newer, end.older), one.at)
        if end.stored:
            self._evidence[end.node] = after
        if end.code in ("evidence", "unknown-device") or (end.code == "version-lie") == (
            after.conclusion() == "refusal"
        ):
            self.counted += 1
        else:
            self.faults.append(_fault(end, f"its passes under two versions do not lead to {end.code}"))

    def compare(self, database: Database) -> None:
        """Compare the rows of `version_pairs` with those that follow from the entries. Lapsed rows may be missing."""
        for node, state in database.all("SELECT node, state FROM version_pairs"):
            if self._of(peer_id(node)).encode() != state:
                self.faults.append(f"{peer_id(node)}: its row of version_pairs is not what the entries give")

    def _of(self, node: str) -> NodeEvidence:
        return self._evidence.get(node, PAIRS_BEGINNING)


class _Replay:
    """The verdicts so far. `again`, `linked`, `faults`, `evidence`: as in `ReplayedVerdicts`."""

    def __init__(self, table: EvidenceTable, tables: Callable[[bytes], Tables | None]) -> None:
        self._table = table
        self._tables = tables
        self._chains: dict[str, _Last] = {}
        self._kept: dict[str, int] = {}
        """Node -> the last day with one of its groups in quarantine."""
        self.again = self.linked = 0
        self.faults: list[str] = []
        self.evidence: dict[str, NodeEvidence] = {}

    def take(self, one: _Decided) -> None:
        """Run one verdict again (rules 1 to 3)."""
        end, at, chained, _ = one
        fault = self._link(end, at // DAY) if chained else None
        tables = self._tables(end.calibration)
        again = None if tables is None else self._table.run_again(end.lease, tables, at)
        kept = end.rules > 1 and self._kept.get(end.node) == at // DAY
        doubted = kept or (end.rules > 1 and again is not None and again.doubted)
        if again is not None and again.hashes != (end.tokens, end.before, end.after):
            fault = fault or "the bet made again gives other hashes than its entry states"
        elif again is not None and not again.agrees(end.code, doubted=doubted):
            fault = fault or f"the bet made again does not lead to {end.code}"
        elif again is not None and end.rules > 1 and again.peak != end.peak:
            fault = fault or "the bet made again gives another peak than its entry states"
        elif kept and end.rollouts and end.code != "quarantine":
            fault = fault or "its key was in quarantine on that day"
        if end.code == "quarantine":
            self._kept[end.node] = at // DAY
        if again is not None and chained:
            self.evidence[end.node] = again.after
        if fault is not None:
            self.faults.append(_fault(end, fault))
        elif again is None:
            self.linked += 1
        else:
            self.again += 1

    def take_quarantines(self, database: Database) -> None:
        """Run each end of a quarantine again whose evidence is still at hand (rule 6)."""
        last: dict[str, tuple[_Stated, int]] = {}
        kept: dict[tuple[str, int], list[_Kept]] = {}
        answers: dict[bytes, str] = {}
        with closing(database.each(_ENDS_OF_QUARANTINE)) as rows:
            for kind, facts, at in rows:
                if kind == "appeal.answered":
                    answer = msgspec.msgpack.decode(facts, type=_Answered)
                    answers[answer.lease] = answer.again
                elif kind == "quarantine.ended":
                    ended = msgspec.msgpack.decode(facts, type=_QuarantineEnded)
                    groups = kept.pop((ended.node, ended.day), [])
                    if not self._leads_to(ended, groups, last, answers):
                        fault = f"quarantine of {ended.node} on day {ended.day}: the evidence does not lead to its end"
                        self.faults.append(fault)
                elif (end := msgspec.msgpack.decode(facts, type=_Stated)).tokens:
                    last[end.node] = end, at
                    if end.code == "quarantine":
                        kept.setdefault((end.node, at // DAY), []).append(_Kept(end.lease, at, end.peak))

    def _leads_to(
        self, ended: _QuarantineEnded, groups: list[_Kept], last: dict[str, tuple[_Stated, int]],
        answers: dict[bytes, str],
    ) -> bool:  # fmt: skip
        """Tell whether a day's groups and the answers so far lead to its end."""
        if not ended.decided:
            return self._reran(ended, groups) if ended.calibration else self._follows(ended, groups, last)
        again = answers.get(groups[0].lease, "lost") if groups else "lost"
        if ended.decided == "window":
            return ended.released and again == "lost"
        return again != "lost" and ended.released == (again == "ok")

    def _reran(self, ended: _QuarantineEnded, groups: list[_Kept]) -> bool:
        """Tell whether a re-run leads to this end, or can no longer be made."""
        tables = self._tables(ended.calibration)
        again = None if tables is None else self._table.run_anew([group[:2] for group in groups], tables)
        if again is None or not ended.released:
            return ended.released
        return again.ended_well if ended.rules > 1 else again.evidence.conclusion() == "honest"

    def _follows(self, ended: _QuarantineEnded, groups: list[_Kept], last: dict[str, tuple[_Stated, int]]) -> bool:
        """Tell whether the evidence leads to this end, or is no longer at hand."""
        if ended.rules > 1 and max((group.peak for group in groups), default=0) >= MOST_PEAK:
            return not ended.released
        end, at = last.get(ended.node, (None, 0))
        tables = None if end is None else self._tables(end.calibration)
        again = None if end is None or tables is None else self._table.run_again(end.lease, tables, at)
        return again is None or ended.released == (again.after.conclusion() == "honest")

    def _link(self, end: _Stated, day: int) -> str | None:
        """Add a link to its key's chain, and return its fault."""
        last = self._chains.get(end.node)
        if last is None and not end.stored:
            return None
        self._chains[end.node] = _Last(end.after, day)
        known = end.before == (FRESH_EVIDENCE_HASH if last is None else last.after)
        if known or (last is not None and end.before == FRESH_EVIDENCE_HASH and day - last.day >= IDLE_DAYS):
            return None
        return "the evidence before it is not that after the key's group before"


def _fault(end: _Stated, why: str) -> str:
    return f"lease {end.lease.hex()} of {end.node}: {why}"
