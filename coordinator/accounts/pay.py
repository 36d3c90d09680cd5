"""The pay of accepted rollouts, by the price mode that the run's RunSpec states.

Rules
1. A price mode is one row of `PAY_RULES`. A run keeps the mode of its signed RunSpec for life.
2. Rollouts of accepted groups earn their weight. Refused, late and expired leases earn nothing
   (coordinator/verdicts/verdicts.py).
3. `points`: a group weighs what protocol/group_weights.py says: by the Costs in force (cost_tables.py), which count the
   prompt once per group, or without them by the tokens of each rollout. Points are issued from the operator's fund.
4. `market`: the same weight, and nothing moves at a verdict or by what follows from one: the entries of leases,
   canaries, quarantine and reversals have no postings. Pay moves when an epoch closes
   (coordinator/epochs/market_service.py).
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from echo2.coordinator.accounts.ledger import Ledger
from echo2.ledger.ledger_entries import Posting, transfer
from echo2.protocol.group_weights import Costs, GroupLengths, Weight, group_weight, whole_weight
from echo2.runtime.errors import LocalFault


class PayRule(NamedTuple):
    """One price mode.

    `weight`: weight of a group, in units of the ledger. `fund`: called with (ledger, ms, units)
    before a payment of so many units; ensures that escrow covers it. `at_once`: whether weight moves at the verdict.
    """

    weight: Weight
    fund: Callable[[Ledger, int, int], None]
    at_once: bool = True

    def moves(self, source: str, target: str, weight: int) -> tuple[Posting, ...]:
        """Return the postings by which weight moves from account to account (rule 4)."""
        return transfer(source, target, weight) if self.at_once else ()

    def group_earnings(self, costs: Costs | None, lengths: GroupLengths) -> int:
        """Return what a group earns (rule 3)."""
        return group_weight(costs, lengths, self.weight)


def _not_at_once(ledger: Ledger, now: int, weight: int) -> None:
    """A market's budget is in escrow while an epoch is open."""


POINTS: Final = PayRule(whole_weight, Ledger.issue_points)
MARKET: Final = "market"
"""The price mode in which pay moves when an epoch closes."""
PAY_RULES: Final[dict[str, PayRule]] = {"points": POINTS, MARKET: PayRule(whole_weight, _not_at_once, at_once=False)}
"""Price mode -> its rule."""


def pay_rule(price_mode: str) -> PayRule:
    """Return the rule of a price mode. Raises `LocalFault`."""
    rule = PAY_RULES.get(price_mode)
    if rule is None:
        known = ", ".join(sorted(PAY_RULES))
        raise LocalFault(f"price mode {price_mode} is not in this build, which has {known}: update echo2")
    return rule
