"""Make the entries of an epoch: terms, asks, opening, close, vesting, release, forfeits. Pure: state in, entries out.

Rules
1. Each function returns an entry and changes nothing. The caller appends it to the ledger and lets `MarketState.take`
   read it. An epoch goes: announced, owners grouped, asks sealed, drawn, asks opened, opened, closed. Vesting and
   release have entries of their own, at any time; the run writes them once the next epoch is open.
2. At the opening the operator's budget moves from its fund to escrow, with all that lies in `forfeit`.
3. At the close pay moves from escrow to the nodes, `UNVESTED` of it to `unvested` (holdback.py). Escrow is then as
   it was before the opening: what is left goes back to where it came from.
4. Pay is taken from the operator's part first, and from forfeits only beyond it. So a forfeit raises the budget of
   others, and does not spare the operator anything.
5. A node that delivered nothing has no posting. A clock that goes back does not shorten time below 0.
6. Pay that vests or becomes payable after the last epoch has entries of its own, each at another time.
7. An epoch may be closed before its time, and the next one opened: that is how activation is made anew at once.
8. A forfeit of a key whose balance has moved takes from the key that has it.
"""

from collections.abc import Iterable

from echo2.coordinator.market.asks import check_opened, check_sealed
from echo2.coordinator.market.entries import (
    AskOpened,
    AskSealed,
    Benchmarked,
    EpochAnnounced,
    EpochClosed,
    EpochDrawn,
    EpochOpened,
    Forfeited,
    NewEntry,
    OwnersGrouped,
    Settled,
    postings_of_changes,
)
from echo2.coordinator.market.epoch_pay import EpochPay, pay_nodes
from echo2.coordinator.market.epoch_terms import MOST_MONEY, MOST_RATE, BadTerms
from echo2.coordinator.market.holdback import earned_tranche, forfeit_amount
from echo2.coordinator.market.market_state import MarketState, OpenEpoch
from echo2.coordinator.market.prices import PricedNode
from echo2.ledger.balance_waits import holder
from echo2.ledger.epoch_facts import ClosedNode
from echo2.ledger.ledger_entries import ESCROW, FORFEIT, FUND, ROUNDING, Posting, accrued_account, unvested_account


def announce(state: MarketState, at: int, terms: EpochAnnounced) -> NewEntry:
    """Return the entry that fixes the terms of the next epoch. Raises `BadTerms`."""
    state.check_next(terms, at)
    return NewEntry(at, "epoch.announced", f"epoch:{terms.epoch}:announced", terms)


def benchmark(at: int, node: str, rate: int) -> NewEntry:
    """Return the entry of a newcomer's benchmark. Raises `BadTerms`."""
    if not 0 < rate <= MOST_RATE:
        raise BadTerms(f"a benchmark lies from 1 to {MOST_RATE} milli-RE per hour, not at {str(rate)[:40]}")
    return NewEntry(at, "measured", f"measured:{node}:{at}", Benchmarked(node=node, rate=rate))


def group_owners(state: MarketState, at: int, owners: dict[str, bytes]) -> NewEntry:
    """Return the entry that names the owners of the coming epoch. Raises `BadTerms`."""
    terms = state.next_terms(state.epoch + 1)
    fact = OwnersGrouped(epoch=terms.epoch, owners=sorted(owners.items()))
    return NewEntry(at, "owners.grouped", f"owners:{terms.epoch}", fact)


def seal_ask(state: MarketState, at: int, node: str, epoch: int, hash_: bytes) -> NewEntry:
    """Return the entry of a node's sealed ask. Raises `BadAsk`, `BadTerms`."""
    state.check_sealing(epoch, at)
    check_sealed(state.standing, node, hash_)
    return NewEntry(at, "ask.sealed", f"sealed:{node}:{epoch}", AskSealed(node=node, epoch=epoch, hash=hash_))


def draw(state: MarketState, at: int, beacon: bytes) -> NewEntry:
    """Return the entry that draws the lottery of the announced epoch. Raises `BadTerms`."""
    epoch = state.epoch + 1
    state.check_draw(epoch, beacon, at)
    return NewEntry(at, "epoch.drawn", f"epoch:{epoch}:drawn", EpochDrawn(epoch=epoch, beacon=beacon))


def open_ask(state: MarketState, at: int, node: str, epoch: int, ask: object, salt: bytes) -> NewEntry:
    """Return the entry of an ask that a node opens. Raises `BadAsk`, `BadTerms`."""
    closes = state.next_terms(epoch).closes
    if at <= closes:
        seconds = -(-(closes + 1 - at) // 1000)
        raise BadTerms(f"the asks of epoch {epoch} are opened once they are closed, {seconds} seconds from now")
    state.drawn_terms(epoch)
    amount = check_opened(state.standing, state.run, node, epoch, ask, salt)
    fact = AskOpened(node=node, epoch=epoch, ask=amount, salt=salt)
    return NewEntry(at, "ask.opened", f"opened:{node}:{epoch}", fact)


def open_epoch(state: MarketState, at: int, present: Iterable[str]) -> NewEntry:
    """Return the entry that opens the announced epoch with the nodes that are here. Raises `BadTerms`."""
    if state.open is not None:
        raise BadTerms(f"epoch {state.open.terms.epoch} is not closed")
    terms = state.drawn_terms(state.epoch + 1)
    here = sorted(node for node in set(present) if not state.is_barred(node, at))
    fact = EpochOpened(epoch=terms.epoch, forfeits=state.forfeits, present=here)
    money = postings_of_changes(
        [(FUND, -terms.budget), (FORFEIT, -state.forfeits), (ESCROW, terms.budget + state.forfeits)]
    )
    return NewEntry(at, "epoch.opened", f"epoch:{terms.epoch}:opened", fact, money)


def close_epoch(state: MarketState, at: int) -> NewEntry:
    """Return the entry that closes the open epoch: prices, work, leased time, pay (rules 3 to 5). Raises `BadTerms`."""
    if state.open is None:
        raise BadTerms("no epoch is open")
    open_ = state.open
    market = open_.plan.market
    nodes = [*market.nodes, *(one.node for one in open_.plan.run_offs)]
    works = [state.work_of(node.node.decode()).work for node in nodes]
    pay = pay_nodes(nodes, works)
    rows = [
        _row(state, node, pay.pay[place], work, place < len(market.nodes))
        for place, (node, work) in enumerate(zip(nodes, works, strict=True))
    ]
    fact = EpochClosed(
        epoch=open_.terms.epoch, since=open_.opened, short=market.activation.short, binding=market.binding, nodes=rows
    )
    return NewEntry(at, "epoch.closed", f"epoch:{open_.terms.epoch}:closed", fact, _closing(open_, rows, pay))


def _row(state: MarketState, node: PricedNode, pay: int, work: int, active: bool) -> ClosedNode:
    peer = node.node.decode()
    grown = state.work_of(peer).measured.grown
    return ClosedNode(peer, int(node.price), work, grown, pay, earned_tranche(0, work, pay).unvested, active)


def _closing(open_: OpenEpoch, rows: list[ClosedNode], pay: EpochPay) -> tuple[Posting, ...]:
    budget, spent = open_.terms.budget, pay.spent
    own = min(budget, spent)
    changes = [(ESCROW, -open_.plan.budget), (FUND, budget - own), (FORFEIT, open_.forfeits - (spent - own))]
    for row in rows:
        changes += [(accrued_account(row.node), row.pay - row.unvested), (unvested_account(row.node), row.unvested)]
    return postings_of_changes([*changes, (ROUNDING, pay.rounding)])


def vest(state: MarketState, at: int) -> NewEntry | None:
    """Return the entry of all that has vested up to `at`; None: nothing has."""
    amounts = [(node, state.vested_tranches(node, at)[1]) for node in sorted(state.tranches)]
    return _settle_amounts(state, at, "vested", [(node, amount) for node, amount in amounts if amount])


def release(state: MarketState, at: int) -> NewEntry | None:
    """Return the entry of all that becomes payable at `at`; None: nothing does."""
    amounts = [(node, state.released_tranches(node, at)[1]) for node in sorted(state.tranches)]
    return _settle_amounts(state, at, "released", [(node, amount) for node, amount in amounts if amount])


def _settle_amounts(state: MarketState, at: int, kind: str, amounts: list[tuple[str, int]]) -> NewEntry | None:
    if not amounts:
        return None
    changes: list[tuple[str, int]] = []
    for node, amount in amounts:
        source, target = (unvested_account, accrued_account) if kind == "vested" else (accrued_account, payable)
        changes += [(source(node), -amount), (target(node), amount)]
    fact = Settled(epoch=state.epoch, amounts=amounts)
    key = f"epoch:{state.epoch}:{kind}"
    return NewEntry(at, kind, f"{key}:{at}" if kind in state.settled else key, fact, postings_of_changes(changes))


def forfeit(state: MarketState, at: int, node: str, amount: int, why: str, lease: bytes) -> NewEntry:
    """Return the entry by which a node forfeits an amount, as far as it can be taken (holdback.py, rule 4; rule 8).

    `lease`: lease of the group that is taken back; `amount`: its share (forfeit_shares.py). Raises `BadTerms`."""
    if not 0 < amount <= MOST_MONEY:
        raise BadTerms(f"a forfeit lies from 1 to {MOST_MONEY}, not at {str(amount)[:40]}")
    node = holder(state.waits, node)
    taken = forfeit_amount(state.tranches.get(node, ()), at, state.proven(node, at), amount)
    fact = Forfeited(node=node, lease=lease, amount=amount, lacking=taken.lacking, why=why)
    money = postings_of_changes([
        (unvested_account(node), -taken.unvested), (accrued_account(node), -taken.accrued),
        (FORFEIT, taken.unvested + taken.accrued)
    ])  # fmt: skip
    return NewEntry(at, "forfeited", f"forfeited:{lease.hex()}", fact, money)


def payable(node: str) -> str:
    """Return the account of pay that is the node's for good. `node`: its peer id."""
    return f"node:{node}:payable"
