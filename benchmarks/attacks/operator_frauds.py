"""Frauds of an operator who holds all keys of a run: each is tried in every form known here, and names what finds it.

Rules
1. A fraud in the file (a row changed or deleted, its triggers dropped) is to be found by `echo2-coord ledger verify`.
2. A fraud by a history written anew, with all heads signed again, is to be found by what nodes hold of the true one: a
   LedgerHead whose entries are not those of the new tree, and receipts whose entries are others.
3. A fraud by an entry that the rules of the market do not lead to is to be found by `echo2-coord ledger replay`.
4. A fraud is kept from its end if each of its forms is found. Its gain to the operator is a figure in nano units.
"""

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from benchmarks.attacks.attack import AttackFinding
from benchmarks.attacks.told_ledger import BUDGET, RESERVE, WEIGHT, LedgerCopy, Operator, Story, new_entry
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.market.entries import (
    AskSealed,
    EpochAnnounced,
    EpochClosed,
    EpochDrawn,
    Forfeited,
    NewEntry,
)
from echo2.coordinator.market.epochs import payable
from echo2.coordinator.market.market_replay import market_of
from echo2.coordinator.verdicts.lease_outcomes import LeaseOutcome
from echo2.ledger.epoch_facts import ClosedNode
from echo2.ledger.export_replay import replay
from echo2.ledger.ledger_audit import audit
from echo2.ledger.ledger_entries import FORFEIT, FUND, Posting, Tampered, accrued_account, transfer

ACCUSED: Final = 6
"""Groups of a node that are taken back."""
_F = TypeVar("_F")


class FraudCheck:
    """The forms of one fraud that were tried. `missed`: those that nothing found."""

    def __init__(self) -> None:
        self.tried = 0
        self.missed: list[str] = []
        self.told: list[str] = []

    def note(self, form: str, named: str | None) -> None:
        """Note a form, and what found it; None: nothing did."""
        self.tried += 1
        if named is None:
            self.missed.append(form)
        else:
            self.told.append(f"{form}: {named}")

    def finding(self, figure: str = "") -> AttackFinding:
        """Return the row's finding. `figure`: beside what was found."""
        missed = f"NOT FOUND: {', '.join(self.missed)}" if self.missed else ""
        note = "; ".join(filter(None, (missed, *self.told, figure)))
        return AttackFinding(tried=self.tried, prevented=not self.missed, note=note)


@contextmanager
def operator() -> Iterator[Operator]:
    """Make a run in a folder that goes with the block."""
    with tempfile.TemporaryDirectory(prefix="echo2-frauds-") as folder:
        yield Operator(Path(folder))


def backdated() -> AttackFinding:
    """Date an entry back: in the file, in a history written anew, and the operator's ask once all others are known."""
    check = FraudCheck()
    with operator() as one:
        honest = one.told()
        group = _first(honest, "lease.accepted")
        changed = _in_the_file(one, honest, f"UPDATE entries SET at = at - 60000 WHERE seq = {group}")
        check.note("a time in the file", by_verify(changed))
        check.note("a friend's group put into the past", by_nodes(honest, one.told(Story(friend=True))))
        late = one.forged(honest, partial(_late_ask, node=one.own))
        check.note("an ask sealed once all others are open", by_replay(late))
    return check.finding()


def dropped() -> AttackFinding:
    """Drop a group that was accepted: from the file, from a history written anew, and from the closing entry."""
    check = FraudCheck()
    with operator() as one:
        honest = one.told()
        group = _first(honest, "lease.accepted")
        deleted = _in_the_file(one, honest, f"DELETE FROM entries WHERE seq = {group}")
        check.note("a row deleted", by_verify(deleted))
        check.note("a history without it", by_nodes(honest, one.told(Story(lost=5))))
        unpaid = one.forged(honest, partial(_closed_anew, change=_without_a_group))
        check.note("its work left out at the close", by_replay(unpaid))
    return check.finding()


def repriced() -> AttackFinding:
    """Change a price once the asks are known: at the close, by other terms, or by another history's reserve price."""
    check = FraudCheck()
    with operator() as one:
        honest = one.told()
        lower = one.forged(honest, partial(_closed_anew, change=_lower_price))
        check.note("a lower price at the close", by_replay(lower))
        check.note("terms announced twice", by_replay(one.forged(honest, _second_terms)))
        lowered = one.told(Story(reserve=RESERVE // 4))
        check.note("a history with a lower reserve price", by_nodes(honest, lowered))
        saved = _spent(honest) - _spent(lowered)
    return check.finding(f"it would have saved {saved} nano units of {_spent(honest)}")


def accused() -> AttackFinding:
    """Accuse a node to keep its money: by the rules, by postings to the operator's fund, from what is payable already,
    of more than its group earned, or without a group that was taken back."""
    check = FraudCheck()
    with operator() as one:
        honest, accusing = one.told(), one.told(Story(accused=ACCUSED))
        gained = _spent(honest) - _spent(accusing)
        check.note("a forfeit by the rules", None if gained > 0 else f"gains {gained} nano units, at most 0")
        poor = [one.told(Story(accused=amount, budget=BUDGET // 10**5)) for amount in (0, ACCUSED)]
        more, gained = _paid(poor[1]) - _paid(poor[0]), _spent(poor[0]) - _spent(poor[1])
        fair = gained <= 0 < more
        named = f"gains {gained}, and the next epoch pays {more} more" if fair else None
        check.note("the same where the budget binds", named)
        forms: dict[str, Callable[[list[NewEntry]], list[NewEntry]]] = {
            "to the operator's fund": _to_the_fund, "of more than can be taken": _too_much,
            "of more than it earned": _more, "of a group that stands": _another_group,
            "of none": partial(_another_group, lease=b""),
        }  # fmt: skip
        for form, forge in forms.items():
            check.note(f"a forfeit {form}", by_replay(one.forged(accusing, forge)))
    return check.finding()


def chosen_beacon() -> AttackFinding:
    """Choose the beacon of a lottery: one that is not a head's, or a second one once the first is out."""
    check = FraudCheck()
    with operator() as one:
        honest = one.told()
        check.note("a beacon that is not a head's", by_verify(one.forged(honest, _own_beacon).folder))
        check.note("a draw before an ask is sealed", by_verify(one.forged(honest, _early_draw).folder))
        check.note("a second draw", by_verify(one.forged(honest, _second_draw).folder))
    return check.finding("of the heads that the operator signs, the one that suits can be kept, unseen")


FRAUDS: Final[dict[str, Callable[[], AttackFinding]]] = {
    "the operator dates an entry back": backdated,
    "the operator drops an accepted entry": dropped,
    "the operator changes a price after the asks": repriced,
    "the operator accuses a node to keep its money": accused,
    "the operator chooses the beacon of a lottery": chosen_beacon,
}
"""Each by one sentence."""


def by_verify(folder: Path) -> str | None:
    """Return the entry at which an export does not verify; None: it does."""
    try:
        audit(folder)
    except Tampered as fault:
        return f"ledger verify names entry {fault.seq}"
    return None


def by_replay(copy: LedgerCopy) -> str | None:
    """Return the entry that the entries before it do not lead to; None: each does. All of it must verify."""
    audit(copy.folder)
    try:
        replay(copy.folder, market_of)
    except Tampered as fault:
        return f"ledger replay names entry {fault.seq}"
    return None


def by_nodes(honest: LedgerCopy, copy: LedgerCopy) -> str | None:
    """Return what nodes find in another history, which verifies, if they saw the honest one until its second epoch
    opened; None: nothing."""
    audit(copy.folder)
    until = max(one.seq for one in honest.entries if one.kind == "epoch.opened")
    heads = [one.head for one in honest.heads if one.head.size <= until]
    receipts = [one for one in honest.entries[:until] if one.kind == "lease.accepted"]
    with Database.read(copy.database) as database:
        ledger = Ledger(database)
        size = ledger.tip().entries
        false = [one for one in heads if one.size > size or ledger.tree.root(one.size) != one.root]
        lost = [one for one in receipts if (there := ledger.entry(one.seq)) is None or there.hash != one.hash]
    if not lost:
        return None
    return f"{len(false)} of {len(heads)} heads and {len(lost)} of {len(receipts)} receipts do not fit"


def _in_the_file(operator: Operator, copy: LedgerCopy, statement: str) -> Path:
    """Return the export of a copy whose file was changed by a statement, its triggers dropped."""
    path = copy.database.with_name(f"changed-{operator.copies}.sqlite")
    path.write_bytes(copy.database.read_bytes())
    with closing(sqlite3.connect(path)) as file, file:
        for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            file.execute(f"DROP TRIGGER {name}")
        file.execute(statement)
    return operator.exported(path)


def _first(copy: LedgerCopy, kind: str) -> int:
    """Return the number of the first entry of a kind."""
    return next(one.seq for one in copy.entries if one.kind == kind)


def _last(entries: list[NewEntry], kind: str) -> int:
    """Return the place of the last entry of a kind."""
    return max(place for place, one in enumerate(entries) if one.kind == kind)


def _facts(entry: NewEntry, kind: type[_F]) -> _F:
    assert isinstance(entry.facts, kind)
    return entry.facts


def _late_ask(entries: list[NewEntry], node: str) -> list[NewEntry]:
    """Seal an ask behind the last one that is opened, dated as the first one that was sealed."""
    before = _last(entries, "ask.opened")
    sealed = next(one for one in entries if one.kind == "ask.sealed" and _facts(one, AskSealed).epoch == 2)
    own = AskSealed(node=node, epoch=2, hash=bytes(32))
    late = NewEntry(sealed.at, "ask.sealed", f"sealed:{node}:2", own)
    return [*entries[: before + 1], late, *entries[before + 1 :]]


def _second_terms(entries: list[NewEntry]) -> list[NewEntry]:
    """Announce the second epoch once more behind its opened asks, with a lower reserve price."""
    terms = entries[_last(entries, "epoch.announced")]
    before = _last(entries, "ask.opened")
    facts = msgspec.structs.replace(_facts(terms, EpochAnnounced), reserve=RESERVE // 4, closes=entries[before].at + 9)
    again = NewEntry(entries[before].at, terms.kind, f"{terms.key}:again", facts)
    return [*entries[: before + 1], again, *entries[before + 1 :]]


def _own_beacon(entries: list[NewEntry]) -> list[NewEntry]:
    """Draw the second epoch's lottery with another beacon."""
    place = _last(entries, "epoch.drawn")
    facts = msgspec.structs.replace(_facts(entries[place], EpochDrawn), beacon=bytes(32))
    return [*entries[:place], entries[place]._replace(facts=facts), *entries[place + 1 :]]


def _early_draw(entries: list[NewEntry]) -> list[NewEntry]:
    """Draw the second epoch's lottery before its last ask is sealed."""
    place, before = _last(entries, "epoch.drawn"), _last(entries, "ask.sealed")
    others = [*entries[:place], *entries[place + 1 :]]
    return [*others[:before], entries[place], *others[before:]]


def _second_draw(entries: list[NewEntry]) -> list[NewEntry]:
    """Draw the second epoch's lottery once more behind the last ask that was opened."""
    drawn, before = entries[_last(entries, "epoch.drawn")], _last(entries, "ask.opened")
    again = drawn._replace(at=entries[before].at, key=f"{drawn.key}:again")
    return [*entries[: before + 1], again, *entries[before + 1 :]]


def _closed_anew(entries: list[NewEntry], change: Callable[[ClosedNode], ClosedNode]) -> list[NewEntry]:
    """Change the first node's row of the last closing entry; what it loses goes back to the operator's fund."""
    place = _last(entries, "epoch.closed")
    closed = _facts(entries[place], EpochClosed)
    row, *others = closed.nodes
    less = row.pay - change(row).pay
    facts = msgspec.structs.replace(closed, nodes=[change(row), *others])
    lost = {accrued_account(row.node): -less, FUND: less}
    postings = tuple(Posting(one.account, one.amount + lost.get(one.account, 0)) for one in entries[place].postings)
    return [*entries[:place], entries[place]._replace(facts=facts, postings=postings), *entries[place + 1 :]]


def _lower_price(row: ClosedNode) -> ClosedNode:
    return msgspec.structs.replace(row, price=row.price - 1, pay=row.pay - row.work // 1000)


def _without_a_group(row: ClosedNode) -> ClosedNode:
    left = row.work - WEIGHT
    return msgspec.structs.replace(row, work=left, pay=row.pay * left // row.work)


def _to_the_fund(entries: list[NewEntry]) -> list[NewEntry]:
    """Let what a node forfeits go to the operator's fund."""
    place = _last(entries, "forfeited")
    postings = [Posting(FUND if one.account == FORFEIT else one.account, one.amount) for one in entries[place].postings]
    return [*entries[:place], entries[place]._replace(postings=tuple(postings))]


def _too_much(entries: list[NewEntry]) -> list[NewEntry]:
    """Let a node forfeit what is payable to it already."""
    place = _last(entries, "forfeited")
    node = _facts(entries[place], Forfeited).node
    moves = (*entries[place].postings, *transfer(payable(node), FORFEIT, 1))
    return [*entries[:place], entries[place]._replace(postings=moves)]


def _more(entries: list[NewEntry]) -> list[NewEntry]:
    """Let a node forfeit one more than its group earned."""
    place = _last(entries, "forfeited")
    fact = _facts(entries[place], Forfeited)
    facts = msgspec.structs.replace(fact, amount=fact.amount + 1)
    first, *others, last = entries[place].postings
    moves = (first._replace(amount=first.amount - 1), *others, last._replace(amount=last.amount + 1))
    return [*entries[:place], entries[place]._replace(facts=facts, postings=moves)]


def _another_group(entries: list[NewEntry], lease: bytes | None = None) -> list[NewEntry]:
    """Let a node forfeit a group that nobody took back. `lease`: its id."""
    place = _last(entries, "forfeited")
    fact = _facts(entries[place], Forfeited)
    own = [one.facts for one in entries if one.kind == "lease.accepted" and one.key != f"lease:{fact.lease.hex()}"]
    named = [one.lease for one in own if isinstance(one, LeaseOutcome) and one.node == fact.node]
    lease = named[ACCUSED + 1] if lease is None else lease
    facts = msgspec.structs.replace(fact, lease=lease)
    return [*entries[:place], entries[place]._replace(facts=facts, key=f"forfeited:{lease.hex()}")]


def _spent(copy: LedgerCopy) -> int:
    """Return what has left the operator's fund in the end."""
    return -sum(one.amount for entry in copy.entries for one in entry.postings if one.account == FUND)


def _paid(copy: LedgerCopy) -> int:
    """Return the pay of the last epoch."""
    closed = new_entry(next(one for one in reversed(copy.entries) if one.kind == "epoch.closed"))
    return sum(row.pay for row in _facts(closed, EpochClosed).nodes)
