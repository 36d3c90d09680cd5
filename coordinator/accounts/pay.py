"""The pay of accepted rollouts, by the price mode that the run's RunSpec states.

Rules
1. A price mode is one row of `PAY_RULES`. A run keeps the mode of its signed RunSpec for life.
2. Rollouts of accepted groups earn their weight. Refused, late and expired leases earn nothing
   (coordinator/rollouts/verdicts.py).
3. `points`: a rollout weighs round(1000 * (tokens in + tokens out) / 128) milli-RE, halves up: the forward FLOPs of
   prompt and completion relative to a reference rollout of 128 tokens, taken as linear in the tokens. Points are issued
   from the operator's fund.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from coordinator.accounts.ledger import Ledger
from runtime.errors import LocalFault

REFERENCE_TOKENS: Final = 128


class UnknownPriceMode(LocalFault):
    """The RunSpec states a price mode that this build lacks; the message names the modes that it has."""


class PayRule(NamedTuple):
    """One price mode.

    `weight`: tokens of a rollout, prompt and completion together -> units of the ledger. `fund`: called with (ledger,
    ms, units) before a payment of so many units; ensures that escrow covers it.
    """

    weight: Callable[[int], int]
    fund: Callable[[Ledger, int, int], None]

    def earned(self, lengths: Iterable[int]) -> int:
        """Return what the rollouts of one group earn together. `lengths`: tokens per rollout."""
        return sum(map(self.weight, lengths))


def points(tokens: int) -> int:
    """Return the milli-RE of a rollout of `tokens` tokens (rule 3)."""
    return (2000 * tokens + REFERENCE_TOKENS) // (2 * REFERENCE_TOKENS)


PAY_RULES: Final[dict[str, PayRule]] = {"points": PayRule(points, Ledger.issue_points)}
"""Price mode -> its rule."""


def pay_rule(price_mode: str) -> PayRule:
    """Return the rule of a price mode. Raises `UnknownPriceMode`."""
    rule = PAY_RULES.get(price_mode)
    if rule is None:
        known = ", ".join(sorted(PAY_RULES))
        raise UnknownPriceMode(f"price mode {price_mode} is not in this build, which has {known}: update echo2")
    return rule
