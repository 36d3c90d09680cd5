"""Define the public state of a market: part of a run's state where the run pays money, absent where it pays in points.

Amounts are integers, 10^-9 of the run's currency; prices are amounts per RE (reference rollout), work is in milli-RE,
rates in milli-RE per hour, times in ms. All of it follows from the public ledger as of entry `entry` of `MarketView`,
but for `earned` and `step_cost`, which are estimates.
"""

import msgspec


class NodePay(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node's row in the market.

    `place`: active, standby or run-off in the epoch that runs; empty: none of them. `rank`: rank from 1, by cost, of
    the active or of those that stand by; 0: none. `price`: that it is paid now, rounded down; None: no work of it is
    paid. `work`, `pay`: work and pay of the last closed epoch. `unvested`, `accrued`, `payable`: balances of its
    accounts."""

    place: str = ""
    rank: int = 0
    price: int | None = None
    work: int = 0
    pay: int = 0
    unvested: int = 0
    accrued: int = 0
    payable: int = 0

    @property
    def balance(self) -> int:
        """All that the run owes the node."""
        return self.unvested + self.accrued + self.payable


class SupplyPoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A point of the supply curve: offers that cost at most `cost` per RE have `rate` together."""

    rate: int
    cost: int


class OpenMarket(msgspec.Struct, frozen=True, kw_only=True):
    """The epoch that runs.

    `ends`: ends by plan. `budget`: the operator's part and `forfeits`. `earned`: pay earned by the work accepted so
    far, about; None: prices follow at the close. `short`: what the need lacks. `binding`: whether the budget has left
    out a node or lowered a price. `clearing`: highest price of an active node; None: there is none. `supply`: supply of
    all offers, cheapest first, at most 160 of them."""

    epoch: int
    opened: int
    ends: int
    need: int
    reserve: int
    budget: int
    forfeits: int
    earned: int | None
    active: int
    standby: int
    run_off: int
    short: int
    binding: bool
    clearing: int | None
    supply: list[SupplyPoint] = []


class ClosedMarket(msgspec.Struct, frozen=True, kw_only=True):
    """The last epoch that was closed. `paid`: amount paid to nodes, part of it not vested yet. `nodes`: that were
    paid."""

    epoch: int
    opened: int
    closed: int
    budget: int
    paid: int
    work: int
    nodes: int
    short: int
    binding: bool
    entry: int


class PaymentView(msgspec.Struct, frozen=True, kw_only=True):
    """Terms of a run's payments. `minimum`: minimum of a payment; less waits. `most`: bound per node within 24 hours.
    `payee_fee`: what the payee's side takes out of a payment, as far as the operator knows."""

    rail: str
    minimum: int
    most: int
    payee_fee: int


class MarketView(msgspec.Struct, frozen=True, kw_only=True):
    """The market of a run. `entry`: the ledger's last one that is in the figures. `closes`:
    until when asks for the next epoch are sealed; None: it is not announced. `spent`: amount of the operator's money in
    all closed epochs. `step_cost`: step cost of a learner's step, at what the last epoch paid per second; None: not
    known yet. `payments`: how it leaves the ledger; None: not told."""

    currency: str
    entry: int
    closes: int | None = None
    running: OpenMarket | None = None
    last: ClosedMarket | None = None
    spent: int = 0
    step_cost: int | None = None
    payments: PaymentView | None = None
