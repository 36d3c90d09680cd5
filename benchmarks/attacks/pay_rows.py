"""Attacks that need no run: on pay, by figures of the market and frauds of an operator; on third parties; on the memory
of children. They are computed in this process.

Rules
1. A row is held if its figure is within its bound, and broken if not, or if it tried nothing; no honest node works
   meanwhile.
2. Figures are those of seeded markets: of `QUICK_MARKETS` with `--quick`, else of `MARKETS`.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from benchmarks.attacks import child_memory, market_figures
from benchmarks.attacks.attack import AttackFinding
from benchmarks.attacks.known_fleet_row import KNOWN_FLEET, known_fleet
from benchmarks.attacks.market_figures import MARKETS, MarketFigure
from benchmarks.attacks.operator_frauds import FRAUDS
from benchmarks.attacks.outcome import AttackRow
from benchmarks.attacks.third_parties import THIRD_PARTIES
from echo2.runtime.figures import figure

PAY: Final = "pay"
QUICK_MARKETS: Final = 5


class ComputedAttack(NamedTuple):
    """An attack that is computed. `compute`: (quick) -> its finding. `quick`: part of `--quick`: it is soon done."""

    compute: Callable[[bool], AttackFinding]
    quick: bool = False
    family: str = PAY

    def row(self, sentence: str, quick: bool) -> AttackRow:
        """Compute the attack; return its row."""
        cpu, began = time.process_time(), time.monotonic()
        finding = self.compute(quick)
        return AttackRow(
            attack=sentence,
            family=self.family,
            tried=finding.tried,
            outcome="held" if finding.is_held else "broken",
            prevented=finding.is_held,
            share=None,
            after=None,
            named=finding.named,
            harmed=0,
            attacker_cpu=time.process_time() - cpu,
            operator_cpu=0.0,
            sent=0,
            received=0,
            seconds=time.monotonic() - began,
            note=finding.note,
        )


def _market(attack: Callable[[int, int], MarketFigure], quick: bool) -> AttackFinding:
    markets = QUICK_MARKETS if quick else MARKETS
    one = attack(0, markets)
    note = f"{figure(one.figure)} {one.unit}, bound {figure(one.bound)}"
    return AttackFinding(tried=markets, prevented=one.within, note="; ".join(filter(None, (note, one.note))))


_AT_ONCE: Final = (
    market_figures.false_ask, market_figures.two_keys, market_figures.fleet_of_half,
    market_figures.always_new, market_figures.ground_lottery, market_figures.unopened,
)  # fmt: skip
_MARKET: Final[dict[str, Callable[[int, int], MarketFigure]]] = {
    "a node asks other than its cost": market_figures.false_ask,
    "one of an owner's two keys asks high": market_figures.two_keys,
    "a newcomer is three times as fast until it is measured": market_figures.burst,
    "a node idles at its full ask": market_figures.squatting,
    "a fleet of half of the supply": market_figures.fleet_of_half,
    "a node hands in at the end of each lease": market_figures.slow_walk,
    "a node probes how high it may ask": market_figures.reserve_probing,
    "keys that are always new ask what pays best": market_figures.always_new,
    "a newcomer makes 10,000 keys and takes those with the best lots": market_figures.ground_lottery,
    "a node does not open its ask after it has seen the others'": market_figures.unopened,
}
COMPUTED: Final[dict[str, ComputedAttack]] = {
    KNOWN_FLEET: ComputedAttack(known_fleet, True, "floods"),
    **{
        sentence: ComputedAttack(partial(_market, attack), quick=attack in _AT_ONCE)
        for sentence, attack in _MARKET.items()
    },
    **{sentence: ComputedAttack(lambda _, fraud=fraud: fraud(), quick=True) for sentence, fraud in FRAUDS.items()},  # type: ignore[misc]
    **{sentence: ComputedAttack(attack, True, "third parties") for sentence, attack in THIRD_PARTIES.items()},
    "an environment's code reaches for the memory of other processes": ComputedAttack(
        child_memory.finding, quick=True, family="children"
    ),
}
"""Each by the sentence of its row."""
