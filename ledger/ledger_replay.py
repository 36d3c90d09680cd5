"""Compute a ledger again from its entries alone: weights, payments, balances, standing and ranking. Pure.

Rules
1. The key and the postings of each entry must be those that follow from its facts and the entries before it. The first
   entry for which they are not ends the replay: `Tampered` with its number.
2. A weight must follow from the lengths in its entry, by the Costs in force there (protocol/group_weights.py), and so
   must the tokens in and out. A lease that earned nothing states no lengths, and 0 of all that.
3. A `costs.set` has Costs that the ledger's key signed, newer than those before.
4. The end of a quarantine moves what its day's groups weighed, the vesting of a canary what that weighed; a reversal
   names the verdict that its lease had, pays none that was accepted, and takes back none that was not.
5. A kind that this build does not know may state facts, but moves nothing.
   A `log.restored` repeats a document that the role root signed, and moves nothing.
6. Entries about payments in money follow from those before them by ledger/payout_facts.py. A plan has no
   more than is payable.
7. The state after the last entry is that of ledger/ledger_state.py.
8. In a run with a market weight moves nothing: the verdicts of leases, and what follows from them, have no postings,
   and no points are issued. The market's own kinds follow by its rules (`MarketRules`), from the entries alone.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from echo2.ledger.costs_in_force import CostsInForce, CostsSet
from echo2.ledger.ledger_entries import (
    ESCROW,
    FUND,
    ORIGIN,
    Entry,
    LedgerFault,
    Posting,
    Tampered,
    accrued_account,
    quarantine_account,
    transfer,
    unvested_account,
)
from echo2.ledger.ledger_facts import (
    KEY_ROTATED_KIND,
    LOG_RESTORED,
    AppealAnswered,
    CanaryVested,
    KeyAccount,
    KeyRotated,
    LeaseReversed,
    LeasesEnded,
    LogBegun,
    QuarantineEnded,
    apply,
    log_key,
)
from echo2.ledger.ledger_state import LedgerState, MarketRules, NodeWork, state_of
from echo2.ledger.payout_facts import KINDS as PAYOUT_KINDS
from echo2.ledger.payout_facts import PLANNED, PayoutPlanned, Payouts, check_total
from echo2.p2p.errors import Malformed, P2PError
from echo2.p2p.identity import public_key
from echo2.p2p.wire_types import decode
from echo2.protocol.authority import Root, open_kept, open_log
from echo2.protocol.group_weights import Costs, GroupLengths, group_weight
from echo2.runtime.units import DAY

HOLDING_ACCOUNTS: Final = {"quarantine": quarantine_account, "canary": unvested_account}
"""The account of an accepted group's weight, by its code; of every other code the node's `accrued`."""
T = TypeVar("T")


class _Lengths(msgspec.Struct, frozen=True, kw_only=True):
    """The fields from which a weight follows."""

    weight: int
    prompt: int = 0
    turns: list[list[int]] = []
    costs: int = 0


class _End(_Lengths, frozen=True, kw_only=True):
    """The fields of a LeaseOutcome (coordinator/verdicts/lease_outcomes.py) that the ledger's state depends on."""

    node: str
    lease: bytes
    code: str
    rollouts: int
    tokens_in: int
    tokens_out: int


class _Issued(msgspec.Struct, frozen=True):
    amount: int


class _OfKey(msgspec.Struct, frozen=True):
    """The fact of an entry about one key alone."""

    node: str


class _Verdict(NamedTuple):
    """A lease's verdict. `kind`: kind of its entry."""

    node: str
    code: str
    weight: int
    kind: str


class LedgerReplay:
    """The replay of a ledger, entry by entry. `chain`: its Roots. `market`: market of the run, before the first entry;
    None: it pays points."""

    def __init__(self, chain: Sequence[Root], market: MarketRules | None = None) -> None:
        self._chain, self._market = chain, market
        self._seq, self._tip, self._at = 0, ORIGIN, 0
        self._balances, self._accounts = Counter[str](), defaultdict[str, KeyAccount](KeyAccount)
        self._work = dict[str, NodeWork]()
        self._costs = CostsInForce()
        self._verdicts: dict[bytes, _Verdict] = {}
        self._kept: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self._canaries: dict[bytes, _Verdict] = {}
        self._payouts = Payouts()

    def take(self, entry: Entry) -> None:
        """Take the next entry. Raises `Tampered`."""
        try:
            if self._market is None or not self._market.check(entry):
                self._check(entry)
            if self._market is not None:
                self._market.take(entry)
            apply(entry, self._accounts.__getitem__, self._accounts.__setitem__)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Tampered(entry.seq, f"its facts are not those of a {entry.kind}: {error}") from error
        for account, amount in entry.postings:
            self._balances[account] += amount
        self._seq, self._tip, self._at = entry.seq, entry.hash, entry.at

    def _check(self, entry: Entry) -> None:
        """Check the key and the postings of an entry (rule 1)."""
        key, postings = _RULES.get(entry.kind, LedgerReplay._unknown)(self, entry)
        if entry.key != key:
            raise Tampered(entry.seq, f"it has the key {entry.key}, from its facts follows {key}")
        if entry.postings != postings:
            raise Tampered(entry.seq, "it moves another amount, or elsewhere, than follows from its facts")

    def _weight(self, source: str, target: str, weight: int) -> tuple[Posting, ...]:
        """Return the postings by which weight moves (rule 8)."""
        return transfer(source, target, weight) if self._market is None else ()

    def state(self) -> LedgerState:
        """Return the state after the last entry."""
        return state_of(self._seq, self._tip, self._at, self._balances, self._accounts, self._work, self._market)

    def _apply_issue(self, entry: Entry) -> "_Due":
        amount = _fact(entry, _Issued).amount
        if self._market is not None:
            raise Tampered(entry.seq, "a run with a market issues no points")
        return _Due(f"points:{entry.seq}", transfer(FUND, ESCROW, amount))

    def _apply_acceptance(self, entry: Entry) -> "_Due":
        end = _fact(entry, _End)
        self._weigh(entry, end)
        self._same(entry, end.rollouts, len(end.turns))
        self._same(entry, end.tokens_in, sum(end.prompt + sum(turns[1::2]) for turns in end.turns))
        self._same(entry, end.tokens_out, sum(sum(turns[::2]) for turns in end.turns))
        if end.code == "quarantine":
            self._kept[end.node, entry.at // DAY].append(end.weight)
        verdict = self._verdicts[end.lease] = _Verdict(end.node, end.code, end.weight, entry.kind)
        if end.code == "canary":
            self._canaries[end.lease] = verdict
        self._add_work(entry, end.node, 1, end.rollouts, end.tokens_in + end.tokens_out, end.weight)
        account = HOLDING_ACCOUNTS.get(end.code, accrued_account)(end.node)
        return _Due(f"lease:{end.lease.hex()}", self._weight(ESCROW, account, end.weight))

    def _unpaid(self, entry: Entry) -> "_Due":
        end = _fact(entry, _End)
        if any((end.weight, end.rollouts, end.tokens_in, end.tokens_out, end.prompt, end.turns, end.costs)):
            raise Tampered(entry.seq, f"a {entry.kind} earns nothing, and states a weight or lengths")
        self._verdicts[end.lease] = _Verdict(end.node, end.code, 0, entry.kind)
        return _Due(f"lease:{end.lease.hex()}")

    def _together(self, entry: Entry) -> "_Due":
        ended = _fact(entry, LeasesEnded)
        if sum(one.without_group + one.refused for one in ended.counts) != ended.ends:
            raise Tampered(entry.seq, f"its counts are not those of {ended.ends} ends")
        return _Due(f"ends:{entry.seq}")

    def _quarantine_ended(self, entry: Entry) -> "_Due":
        fact = _fact(entry, QuarantineEnded)
        kept = self._kept.pop((fact.node, fact.day), [])
        if (fact.groups, fact.weight) != (len(kept), sum(kept)):
            raise Tampered(entry.seq, f"{len(kept)} groups with a weight of {sum(kept)} were in this quarantine")
        target = accrued_account(fact.node) if fact.released else ESCROW
        return _Due(
            f"quarantine:{fact.node}:{fact.day}", self._weight(quarantine_account(fact.node), target, fact.weight)
        )

    def _apply_reversal(self, entry: Entry) -> "_Due":
        fact = _fact(entry, LeaseReversed)
        verdict = self._verdicts.get(fact.lease, _Verdict(fact.node, fact.code, 0, "lease.refused"))
        kind = "lease.refused" if fact.paid else "lease.accepted"
        if (verdict.node, verdict.code, verdict.kind) != (fact.node, fact.code, kind):
            raise Tampered(entry.seq, f"the verdict of its lease was {verdict.code} of {verdict.node}: {verdict.kind}")
        key, account = f"reversed:{fact.lease.hex()}", accrued_account(fact.node)
        if fact.paid:
            self._weigh(entry, _fact(entry, _Lengths))
            return _Due(key, self._weight(ESCROW, account, fact.weight))
        self._same(entry, fact.weight, verdict.weight)
        there = fact.weight if self._market is not None else min(self._balances[account], fact.weight)
        self._same(entry, fact.lacking, fact.weight - there)
        return _Due(key, self._weight(account, ESCROW, there))

    def _apply_answer(self, entry: Entry) -> "_Due":
        fact = _fact(entry, AppealAnswered)
        return _Due(f"{fact.by}:{fact.lease.hex()}:{fact.asked}")

    def _apply_vesting(self, entry: Entry) -> "_Due":
        fact = _fact(entry, CanaryVested)
        canary = self._canaries.pop(fact.lease, None)
        if canary is None or (canary.node, canary.weight) != (fact.node, fact.weight):
            raise Tampered(entry.seq, "no canary of this node and weight waits under its lease")
        return _Due(
            f"vested:{fact.lease.hex()}",
            self._weight(unvested_account(fact.node), accrued_account(fact.node), fact.weight),
        )

    def _of_key(self, entry: Entry) -> "_Due":
        return _Due(f"key:{_fact(entry, _OfKey).node}:{entry.seq}")

    def _apply_rotation(self, entry: Entry) -> "_Due":
        return _Due(f"key:{_fact(entry, KeyRotated).successor}:{entry.seq}")

    def _costs_set(self, entry: Entry) -> "_Due":
        fact = _fact(entry, CostsSet)
        digest = hashlib.sha256(fact.sealed).digest()
        try:
            costs = decode(open_kept(fact.sealed, "costs", self._chain, named=True), Costs)
        except P2PError as error:
            raise Tampered(entry.seq, f"its Costs are not the ledger key's: {error}") from error
        before = self._costs.costs
        if fact.costs != digest or (before is not None and costs.at <= before.at):
            raise Tampered(entry.seq, "its Costs have another hash, or are not newer than those before")
        self._costs = CostsInForce(entry.seq, costs)
        return _Due(f"costs:{digest.hex()}")

    def _log_restored(self, entry: Entry) -> "_Due":
        fact = _fact(entry, LogBegun)
        try:
            one = open_log(fact.sealed, self._chain)
        except P2PError as error:
            raise Tampered(entry.seq, f"its document is not the root keys': {error}") from error
        if fact != LogBegun.of(one) or entry.seq <= fact.size:
            raise Tampered(entry.seq, "it states something else than its document, or stands before what that restored")
        return _Due(log_key(fact.serial))

    def _payout(self, entry: Entry) -> "_Due":
        try:
            if entry.kind == PLANNED:
                check_total(_fact(entry, PayoutPlanned), self._balances)
            return _Due(*self._payouts.take(entry))
        except LedgerFault as error:
            raise Tampered(entry.seq, str(error)) from error

    def _unknown(self, entry: Entry) -> "_Due":
        return _Due(entry.key)

    def _weigh(self, entry: Entry, lengths: _Lengths) -> None:
        """Compare a weight with the one that follows from its lengths (rule 2)."""
        group = GroupLengths(lengths.prompt, lengths.turns)
        self._same(entry, lengths.weight, group_weight(self._costs_of_entry(entry, lengths.costs), group))

    def _costs_of_entry(self, entry: Entry, costs: int) -> Costs | None:
        """Return the Costs of the entry that a weight names, which must be those in force."""
        if costs != self._costs.entry:
            raise Tampered(entry.seq, f"it is weighed by the Costs of entry {costs}, not of {self._costs.entry}")
        return self._costs.costs

    def _same(self, entry: Entry, stated: int, follows: int) -> None:
        if stated != follows:
            raise Tampered(entry.seq, f"it states {stated}, where {follows} follows")

    def _add_work(self, entry: Entry, node: str, groups: int, rollouts: int, tokens: int, weight: int) -> None:
        if node not in self._work:
            _check_peer(entry, node)
        one = self._work.get(node, NodeWork())
        self._work[node] = NodeWork(
            one.groups + groups, one.rollouts + rollouts, one.tokens + tokens, one.weight + weight
        )


class _Due(NamedTuple):
    """The key and the postings that an entry must have."""

    key: str
    postings: tuple[Posting, ...] = ()


def _check_peer(entry: Entry, node: str) -> None:
    try:
        public_key(node)
    except Malformed as error:
        raise Tampered(entry.seq, f"it is about no key: {error}") from error


def _fact(entry: Entry, kind: type[T]) -> T:
    return msgspec.msgpack.decode(entry.facts, type=kind)


_RULES: Final[dict[str, Callable[[LedgerReplay, Entry], _Due]]] = {
    "points.issued": LedgerReplay._apply_issue,
    "lease.accepted": LedgerReplay._apply_acceptance,
    "lease.refused": LedgerReplay._unpaid,
    "lease.expired": LedgerReplay._unpaid,
    "leases.ended": LedgerReplay._together,
    "quarantine.ended": LedgerReplay._quarantine_ended,
    "lease.reversed": LedgerReplay._apply_reversal,
    "appeal.answered": LedgerReplay._apply_answer,
    "canary.vested": LedgerReplay._apply_vesting,
    "node.suspended": LedgerReplay._of_key,
    "node.vouched": LedgerReplay._of_key,
    "node.banned": LedgerReplay._of_key,
    "node.unbanned": LedgerReplay._of_key,
    "node.noted": LedgerReplay._of_key,
    KEY_ROTATED_KIND: LedgerReplay._apply_rotation,
    "costs.set": LedgerReplay._costs_set,
    LOG_RESTORED: LedgerReplay._log_restored,
    **dict.fromkeys(PAYOUT_KINDS, LedgerReplay._payout),
}
"""Kind -> the rule from which an entry's key and postings follow."""
