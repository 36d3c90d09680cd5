"""The evidence against each key in run.sqlite, and the data from which a verdict by evidence can be run again.

Rules
1. `bets` has one row per key with an accepted group of a class that is not exact, of one size however many groups
   there were. Keys are free: the evidence from a key's groups before the first accepted one is not kept, since the
   next key would begin without it. So rows cost accepted work. Those of keys that were idle for long go (`forget`).
2. `compared` has one row per such group: its tokens, and the key's evidence before them (empty: none). It goes with the
   group's own tokens (coordinator/verdicts/token_storage.py).
3. Both are written in the transaction of the verdict, so the order of the groups is that of the ledger. The verdict's
   entry states three hashes (SHA-256): of the tokens, and of the key's evidence before and after. The evidence after
   one group is that before the key's next one. So each verdict can be run again alone, and from the first accepted
   group on the entries of a key are a chain (verdict_replay.py). The entry states the peak too: the power of ten that
   the day's E reached after the group, or before it on the same day, whichever is greater.
"""

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from echo2.coordinator.database.database import Database
from echo2.coordinator.verification.evidence import (
    DOUBT_EVIDENCE,
    MOST_PEAK,
    Conclusion,
    NodeEvidence,
    Tables,
    exceeding,
    products,
    suffices,
)
from echo2.coordinator.verification.lapsed_rows import forget_lapsed
from echo2.coordinator.verification.token_evidence import TOKEN, TokenArray
from echo2.coordinator.verification.version_pairs import VersionCount
from echo2.runtime.units import DAY

_DOUBT_POWER: Final = len(str(DOUBT_EVIDENCE)) - 1


class EvidenceHashes(NamedTuple):
    """The hashes in the ledger entry of a verdict by evidence (rule 3), 32 bytes each."""

    tokens: bytes
    before: bytes
    after: bytes


class EvidenceAgain(NamedTuple):
    """The bet on a group, run again. `suffices`: whether its tokens were enough without the rest of the group. `peak`:
    of rule 3. `doubted`: whether the key was in doubt by its group before, on the same day. `beyond`: whether a
    token is beyond the bound."""

    after: NodeEvidence
    hashes: EvidenceHashes
    suffices: bool
    peak: int
    doubted: bool
    beyond: bool

    def agrees(self, code: str, *, doubted: bool) -> bool:
        """Tell whether a verdict of this code follows. `doubted`: whether the key was in doubt on that day before."""
        conclusion = self.after.conclusion(doubted=doubted)
        if code == "evidence":
            return conclusion == "refusal" or self.suffices
        if code == "unknown-device":
            return conclusion == "refusal" or self.suffices or self.beyond
        if code in ("version-lie", "seeded-choice"):  # refused by its second pass, or by one token
            return conclusion != "refusal" and self.beyond == (code == "seeded-choice")
        return not self.beyond and conclusion == ("doubt" if code == "quarantine" else "honest")


class EvidenceStep(NamedTuple):
    """The evidence against a key after a further group. `stored`: whether it is in the table (rule 1). `peak`: peak of
    rule
    3. `versions`: versions of a group that was passed twice (version_pairs.py); `stale`: whether it is refused for
       that. `low`:
    whether the group counts as audited work."""

    conclusion: Conclusion
    hashes: EvidenceHashes
    stored: bool
    peak: int
    versions: VersionCount | None = None
    stale: bool = False
    low: bool = False


class RunAnew(NamedTuple):
    """The evidence after groups whose bets were made anew. `peak`: the greatest power of ten that E reached after a
    group. `tokens`: tokens of all these groups."""

    evidence: NodeEvidence
    peak: int
    tokens: int

    @property
    def ended_well(self) -> bool:
        """Whether the day ended well by these bets (evidence.py, rule 9)."""
        return self.evidence.conclusion() == "honest" and self.peak < MOST_PEAK


class EvidenceTable:
    """The tables `bets` and `compared`. A node is its public key, 32 bytes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, node: bytes) -> NodeEvidence:
        """Return the evidence against a key."""
        return _decode_evidence(self._state(node))

    def _state(self, node: bytes) -> bytes:
        """Return the stored evidence against a key; empty: none."""
        state: bytes | None = self._database.value("SELECT state FROM bets WHERE node = ?", (node,))
        return state or b""

    def take(
        self,
        node: bytes,
        lease: bytes,
        tokens: TokenArray,
        tables: Tables,
        now: int,
        *,
        refused: bool = False,
        kept: bool = False,
    ) -> EvidenceStep:
        """Bet on a group whose verdict falls at `now`, ms, in the caller's transaction. `tables`: tables of the
        Calibration that its lease names. `refused`: whether the group is refused whatever the evidence. `kept`: whether
        a group of the key is in quarantine of this day."""
        old, packed = self._state(node), tokens.tobytes()
        before = _decode_evidence(old)
        after = before.after(products(tokens, tables), now)
        conclusion, new = after.conclusion(doubted=kept or _doubted_on(before, now)), after.encode()
        stored = bool(old) or not (refused or conclusion == "refusal")
        if stored:
            self._database.do("INSERT OR REPLACE INTO bets VALUES (?, ?, ?)", (node, new, after.day))
        self._database.do("INSERT INTO compared VALUES (?, ?, ?)", (lease, packed, old))
        hashes = EvidenceHashes(_hash(packed), evidence_hash(old), _hash(new))
        return EvidenceStep(conclusion, hashes, stored, _peak(before, after), low=after.is_low())

    def run_again(self, lease: bytes, tables: Tables, now: int) -> EvidenceAgain | None:
        """Repeat the bet on a group from what was stored with it; None if that was deleted. `now`: time as at the
        verdict. The caller compares the result with the ledger's entry."""
        row = self._database.one("SELECT tokens, before FROM compared WHERE lease = ?", (lease,))
        if row is None:
            return None
        packed, old = row
        before, tokens = _decode_evidence(old), np.frombuffer(packed, TOKEN)
        after = before.after(products(tokens, tables), now)
        hashes = EvidenceHashes(_hash(packed), evidence_hash(old), _hash(after.encode()))
        return EvidenceAgain(
            after, hashes, suffices(before, tokens, tables), _peak(before, after), _doubted_on(before, now),
            bool(exceeding(tokens, tables).any()),
        )  # fmt: skip

    def conclude(self, lease: bytes, tokens: TokenArray, tables: Tables, at: int) -> Conclusion | None:
        """Return the conclusion about a group whose tokens were compared a second time, from the evidence before its
        verdict at `at`, ms; None: that was deleted. Nothing is stored."""
        old = self._database.value("SELECT before FROM compared WHERE lease = ?", (lease,))
        if old is None:
            return None
        before = _decode_evidence(old)
        return before.after(products(tokens, tables), at).conclusion(doubted=_doubted_on(before, at))

    def run_anew(self, groups: Sequence[tuple[bytes, int]], tables: Tables) -> RunAnew | None:
        """Bet on successive groups of one key, given by lease and time of verdict (ms), against other tables than at
        their verdicts. The evidence before the first is that of then. None: a group's tokens were deleted."""
        again: RunAnew | None = None
        for lease, at in groups:
            again = self.bet_anew(again, lease, at, tables)
            if again is None:
                return None
        return again

    def bet_anew(self, before: RunAnew | None, lease: bytes, at: int, tables: Tables) -> RunAnew | None:
        """Bet on one further group as `run_anew` does. `before`: the result of the groups before it; None: it is the
        first. None: its tokens were deleted."""
        row = self._database.one("SELECT tokens, before FROM compared WHERE lease = ?", (lease,))
        if row is None:
            return None
        evidence, peak, tokens = before or RunAnew(_decode_evidence(row[1]), 0, 0)
        compared = np.frombuffer(row[0], TOKEN)
        evidence = evidence.after(products(compared, tables), at)
        return RunAnew(evidence, max(peak, evidence.daily.power()), tokens + len(compared))

    def tokens_kept(self, node: bytes, day: int) -> int:
        """Return the number of stored tokens of a key's groups in quarantine of a day."""
        query = (
            "SELECT coalesce(sum(length(c.tokens)), 0) FROM quarantine q JOIN compared c ON c.lease = q.lease"
            " WHERE q.node = ? AND q.day = ?"
        )
        nbytes: int = self._database.value(query, (node, day))
        return nbytes // TOKEN.itemsize

    def forget(self, now: int) -> int:
        """Delete some rows of keys whose evidence no longer counts, because they were idle; return how many."""
        return len(forget_lapsed(self._database, "bets", "node", now))


def _doubted_on(before: NodeEvidence, now: int) -> bool:
    """Tell whether the evidence before a group was in doubt after a group of the same day. `now`: ms."""
    return before.power_on(now // DAY) >= _DOUBT_POWER


def _peak(before: NodeEvidence, after: NodeEvidence) -> int:
    return max(before.power_on(after.day), after.daily.power())


def _decode_evidence(state: bytes) -> NodeEvidence:
    return NodeEvidence.decode(state) if state else NodeEvidence()


def evidence_hash(state: bytes) -> bytes:
    """Return the hash of stored evidence; `state` empty: of a key without any."""
    return _hash(state or NodeEvidence().encode())


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
