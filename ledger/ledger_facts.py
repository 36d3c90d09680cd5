"""The facts of ledger entries about keys, and the sum of one key's entries.

Rules
1. The field `rules` states the rules under which an entry was written. Older entries without the field count under
   rules 1. Under rules 1 doubt ended with the group after which E
   was below it, a day's peak was not regarded (coordinator/verification/evidence.py, rules 8 and 9), and near-ties of
   a party refused each of its keys (coordinator/verification/near_ties.py, rule 6). Under rules 2 that is so no longer.
   Under rules 1 and 2 each accepted group counts as audited work and no count decays; these entries are never judged
   anew. Under `VERDICT_RULES` a group counts that its entry states as `audited`, and counts decay
   (ledger/audited_work.py).
2. A `KeyAccount` follows from the entries alone, in their order: it depends on no clock and no other table.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from echo2.ledger.audited_work import ONE, decay_count
from echo2.ledger.ledger_entries import Entry
from echo2.protocol.restored_logs import KIND, SealedLog

RULES = 1
KEY_ROTATED_KIND = "key.rotated"
LOG_RESTORED = KIND
REPLACED_PREFIX = "its key was replaced by "
"""Prefix of `KeyAccount.banned` of a replaced key."""
AUDITING_RULES = 3
"""The first rules under which entries state whether a group was audited."""
VERDICT_RULES = AUDITING_RULES
"""Of LeaseOutcomes and `QuarantineEnded`."""
WRONG_CODES = frozenset(
    ("seeded-choice", "close-choices", "drift", "drift-median", "not-generated", "evidence", "near-ties")
)
"""Codes of groups that were refused by the scorer's pass (T1 and T2, coordinator/verification/verification.py)."""


class Suspended(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `node.suspended`. `evidence`: the hash of the submission that caused it. Times in ms."""

    rules: int = RULES
    node: str
    code: str
    evidence: bytes
    since: int = msgspec.field(name="from")
    until: int


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `node.vouched`, `node.banned`, `node.unbanned` and `node.noted`. `why`: the operator's words."""

    rules: int = RULES
    node: str
    why: str


class KeyRotated(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `key.rotated`: the standing of `node` passes to `successor`, both peer ids."""

    rules: int = RULES
    node: str
    successor: str


class LogBegun(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `log.restored`: the log with this `serial` began. `log`: its id. `size`: entries that were restored;
    `known`: entries under the newest head known, so that those from `size` + 1 to `known` are lost, at least. `sealed`:
    the document (protocol/restored_logs.py)."""

    rules: int = RULES
    serial: int
    log: bytes
    size: int
    known: int
    sealed: bytes

    @classmethod
    def of(cls, one: SealedLog) -> "LogBegun":
        """Return the facts that repeat a document."""
        document = one.document
        return cls(
            serial=document.serial, log=one.id, size=document.size, known=document.known.size, sealed=one.sealed
        )  # fmt: skip


def log_key(serial: int) -> str:
    """Return the key of the entry with which a restored log begins."""
    return f"restored:{serial}"


class QuarantineEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `quarantine.ended`: the groups of one key that one day (days since the Unix epoch) kept in quarantine.
    `released`: whether they are paid to the node, else they go back to escrow. `weight`: milli-RE. `calibration`: hash
    of that by which a re-run agreed; empty: none did. `decided`: of a day that ended badly: "rerun", by a second check
    of the group that began the doubt; "window", for the node, as none was made in time. Empty: the evidence or the
    Calibration decided."""

    rules: int = 1
    node: str
    day: int
    groups: int
    weight: int
    released: bool
    calibration: bytes = b""
    decided: str = ""


class LeaseCounts(msgspec.Struct, frozen=True, array_like=True):
    """The leases of one key in a `LeasesEnded`. `node`: empty: of all other keys, whose standing stays.
    `without_group`: leases that expired or were given back. `refused`: groups; `wrong`: those refused by the scorer's
    pass."""

    node: str
    without_group: int
    refused: int
    wrong: int


class LeasesEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `leases.ended`: the ends of new keys' leases that earned nothing. `root`: Merkle root (SHA-256) over
    their LeaseOutcomes, in the order of their leases' ids. `counts`: counts in the order of the nodes' peer ids."""

    rules: int = RULES
    ends: int
    root: bytes
    counts: list[LeaseCounts]


class LeaseReversed(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `lease.reversed`. `code`: code of the first verdict. `paid`: whether a refused group is paid after all,
    else an accepted one is taken back. `weight`: weight of the group, milli-RE. `lacking`: what the node's account
    lacked of it. `audited`: whether the group counts, or counted, as audited work. `by`: "appeal", "audit" or
    "operator". `prompt`, `turns`, `costs`: turns and costs of a group that is paid, as in its LeaseOutcome."""

    rules: int = VERDICT_RULES
    node: str
    lease: bytes
    code: str
    paid: bool
    weight: int
    lacking: int = 0
    audited: bool
    by: str
    why: str
    prompt: int = 0
    turns: list[list[int]] = []
    costs: int = 0

    def lacks(self, lacking: int) -> "LeaseReversed":
        """Return the fact with what the node's account lacked."""
        return msgspec.structs.replace(self, lacking=lacking)


class CanaryVested(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `canary.vested`: the pay of a canary is the node's own (coordinator/accounts/vesting.py). `weight`:
    milli-RE."""

    rules: int = 1
    node: str
    lease: bytes
    weight: int


class AppealAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of `appeal.answered`: both answers about one group. `code`: code of the verdict. `again`: code of the
    further check; "lost": there was none, for `reason`. `by`: "appeal", "audit" or "operator"."""

    rules: int = VERDICT_RULES
    node: str
    lease: bytes
    by: str
    asked: int
    code: str
    again: str
    reason: str


class _CountedEnd(msgspec.Struct, frozen=True):
    """The fields of a LeaseOutcome (coordinator/verdicts/lease_outcomes.py) that are counted."""

    node: str
    code: str
    rules: int = 1
    audited: str = ""


class KeyAccount(NamedTuple):
    """The sum of one key's entries.

    `accepted`: accepted groups. `groups`: accepted and refused ones. `wrong`: the number, counted from 1, of the last
    group that the scorer's pass refused; 0: none. `code`, `since`, `until`: code and times of the last suspension,
    times in ms. `doubted`: 1 while there is evidence against the key (coordinator/verification/evidence.py). A group
    accepted into quarantine or refused by evidence sets it, and so does a quarantine that ends without release. A group
    accepted outside quarantine clears it, and so does a release. `audited`: audited work, in units of 2^-32 groups;
    `aged`: until when it has decayed, ms; 0: it never did (ledger/audited_work.py)."""

    accepted: int = 0
    groups: int = 0
    wrong: int = 0
    vouched: bool = False
    banned: str | None = None
    code: str = ""
    since: int = 0
    until: int = 0
    doubted: int = 0
    audited: int = 0
    aged: int = 0


Of = Callable[[str], KeyAccount]
"""(peer id) -> the account of its key."""
Put = Callable[[str, KeyAccount], None]
"""Store the account of a peer id."""


def apply(entry: Entry, of: Of, put: Put) -> None:
    """Apply an entry to the accounts of the keys that it names."""
    change = _CHANGES.get(entry.kind)
    if change is not None:
        change(entry, of, put)


def counts_as_audited(entry: Entry) -> bool:
    """Tell whether the group of a `lease.accepted` counts as audited work."""
    return _is_audited(msgspec.msgpack.decode(entry.facts, type=_CountedEnd))


def _is_audited(end: "_CountedEnd") -> bool:
    return end.rules < AUDITING_RULES or bool(end.audited)


def _apply_acceptance(entry: Entry, of: Of, put: Put) -> None:
    end = msgspec.msgpack.decode(entry.facts, type=_CountedEnd)
    account = of(end.node)
    audited, aged = _decay_audited(account, end, entry.at)
    after = account._replace(
        accepted=account.accepted + 1,
        groups=account.groups + 1,
        doubted=int(end.code == "quarantine"),
        audited=audited + ONE * _is_audited(end),
        aged=aged,
    )
    put(end.node, after)


def _apply_refusal(entry: Entry, of: Of, put: Put) -> None:
    end = msgspec.msgpack.decode(entry.facts, type=_CountedEnd)
    account = of(end.node)
    doubted = int(end.code == "evidence" or account.doubted)
    put(end.node, _count_groups(account._replace(doubted=doubted), 1, end.code in WRONG_CODES))


def _decay_audited(account: KeyAccount, end: _CountedEnd, now: int) -> tuple[int, int]:
    """Return an account's audited work after its decay until `now`, ms, and until when it has decayed then."""
    if end.rules < AUDITING_RULES:
        return account.audited, account.aged
    return decay_count(account.audited, account.aged, now)


def _apply_ends(entry: Entry, of: Of, put: Put) -> None:
    for one in msgspec.msgpack.decode(entry.facts, type=LeasesEnded).counts:
        if one.node and one.refused:
            put(one.node, _count_groups(of(one.node), one.refused, bool(one.wrong)))


def _count_groups(account: KeyAccount, refused: int, wrong: bool) -> KeyAccount:
    groups = account.groups + refused
    return account._replace(groups=groups, wrong=groups if wrong else account.wrong)


def _apply_suspension(entry: Entry, of: Of, put: Put) -> None:
    fact = msgspec.msgpack.decode(entry.facts, type=Suspended)
    put(fact.node, of(fact.node)._replace(code=fact.code, since=fact.since, until=fact.until))


def _apply_vouch(entry: Entry, of: Of, put: Put) -> None:
    node = msgspec.msgpack.decode(entry.facts, type=Remark).node
    put(node, of(node)._replace(vouched=True))


def _apply_ban(entry: Entry, of: Of, put: Put) -> None:
    remark = msgspec.msgpack.decode(entry.facts, type=Remark)
    put(remark.node, of(remark.node)._replace(banned=remark.why))


def _apply_unban(entry: Entry, of: Of, put: Put) -> None:
    node = msgspec.msgpack.decode(entry.facts, type=Remark).node
    account = of(node)
    put(node, account._replace(banned=None, until=min(account.until, entry.at)))


def _quarantine_ended(entry: Entry, of: Of, put: Put) -> None:
    fact = msgspec.msgpack.decode(entry.facts, type=QuarantineEnded)
    put(fact.node, of(fact.node)._replace(doubted=int(not fact.released)))


def _apply_reversal(entry: Entry, of: Of, put: Put) -> None:
    fact = msgspec.msgpack.decode(entry.facts, type=LeaseReversed)
    account = of(fact.node)
    audited = account.audited + (ONE if fact.paid else -ONE) * fact.audited
    if fact.paid:
        until = min(account.until, entry.at)
        put(fact.node, account._replace(accepted=account.accepted + 1, audited=audited, wrong=0, until=until))
        return
    accepted = max(0, account.accepted - 1)
    put(fact.node, account._replace(accepted=accepted, audited=max(0, audited), wrong=account.groups))


def _apply_rotation(entry: Entry, of: Of, put: Put) -> None:
    fact = msgspec.msgpack.decode(entry.facts, type=KeyRotated)
    put(fact.successor, of(fact.node))
    put(fact.node, KeyAccount(banned=REPLACED_PREFIX + fact.successor))


_CHANGES: dict[str, Callable[[Entry, Of, Put], None]] = {
    "lease.accepted": _apply_acceptance,
    "lease.refused": _apply_refusal,
    "leases.ended": _apply_ends,
    "lease.reversed": _apply_reversal,
    "quarantine.ended": _quarantine_ended,
    "node.suspended": _apply_suspension,
    "node.vouched": _apply_vouch,
    "node.banned": _apply_ban,
    "node.unbanned": _apply_unban,
    KEY_ROTATED_KIND: _apply_rotation,
}
"""Kind -> the change that its entries make."""
