"""Compute what a run would save and lose if the scorer checked only a part of what known keys hand in:
`python -m benchmarks.trust --sampling`.

The product checks every token (docs/adr/0104-every-token-is-scored.md). Here the coordinator draws what is checked once
a group is received, so no node can foresee it. Keys below a rank, with a strike among their last groups, or in doubt
are checked whole. The rule is the strictest of its kind: a checked group with a false rollout is refused, and its owner
then begins with a new key, which has to earn the rank again. A cheat does so for ever, and chooses how much of each
group is false. Two draws are compared:

    groups      a group is checked whole, or not at all
    rollouts    some rollouts of every group are checked

Pay is in groups for each group of a cheat's own work: an honest node has 1. *Trained on* is the share of what it hands
in that is false and accepted. The saved share is of the time of scorer and learner together, for Qwen3-4B, by computed
times of a token; where answers are short, less is saved, for the prompt of a group is passed in any case.

With `--dtype` nodes in that format are judged as well, by the product's bets: of groups of 64 tokens, one in so many is
compared (benchmarks/trust/doubtful_days.py has the cheats and the rules).
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from benchmarks.harness import bench
from benchmarks.trust.doubtful_days import CHEATS, OURS, RULES, STRATEGIES, Gain, gain, live
from benchmarks.trust.streams import Groups, beyond_bound
from echo2.coordinator.verification.evidence import Tables, products
from echo2.ledger.audited_work import KNOWN_AUDITED_GROUPS, PROVEN_AUDITED_GROUPS

GROUP: Final = 16
"""Rollouts."""
SHARES: Final = (1.0, 0.9, 0.5, 0.2, 0.1)
"""Shares of the groups that are checked."""
ROLLOUTS: Final = (8, 4, 2, 1)
"""Rollouts of each group that are checked."""
FEWER: Final = (1.0, 0.5, 0.25, 0.1)
"""Shares of the groups that are compared in a 16-bit format."""
RANKS: Final = {"known": KNOWN_AUDITED_GROUPS, "proven": PROVEN_AUDITED_GROUPS}
"""Accepted groups that the rank takes."""
LITTLE: Final = 0.05
"""A gain in pay that would be accepted."""


class TokenTimes(NamedTuple):
    """Microseconds of a token: of the scorer in float32 and in TF32, and of the learner in bfloat16."""

    float32: float
    tf32: float
    learner: float


CARDS: Final = {
    "H100": TokenTimes(195, 29, 100), "A100": TokenTimes(549, 80, 255), "4090": TokenTimes(146, 125, 210),
}  # fmt: skip
"""As docs/adr/0103-16-bit-groups-in-tf32.md computes them."""


class Life(NamedTuple):
    """The yield of a cheat's keys. `pay`: groups paid for each group of its own work. `trained`: share of its groups,
    by rollouts, that are false and accepted."""

    pay: float
    trained: float


def life(rank: int, false: float, escapes: float) -> Life:
    """Return the yield of keys that hand in `rank` good groups, and then groups of which the share `false` is false,
    until one of these is refused. `escapes`: chance that such a group is accepted, below 1."""
    accepted = escapes / (1 - escapes)
    work = rank + (1 - false) * (accepted + 1)
    return Life((rank + accepted) / work, false * accepted / (rank + accepted + 1))


def escape(checked: int, false: int) -> float:
    """Return the chance that none of `false` false rollouts is among `checked` that are drawn of a group."""
    return math.comb(GROUP - false, checked) / math.comb(GROUP, checked)


def best_life(rank: int, checked: int) -> Life:
    """Return the best of each yield where so many rollouts of every group are checked, whatever part is false."""
    lives = [life(rank, false / GROUP, escape(checked, false)) for false in range(1, GROUP + 1)]
    return Life(max(one.pay for one in lives), max(one.trained for one in lives))


def least_share(rank: int) -> float:
    """Return the least share of checked groups at which a cheat gains `LITTLE` at most."""
    return 1 / (1 + LITTLE * rank)


def saved(share: float, scorer: float, learner: float) -> float:
    """Return the share of the time of scorer and learner that is saved where the scorer passes only a share."""
    return (1 - share) * scorer / (scorer + learner)


def draws() -> list[tuple[str, float, list[Life]]]:
    """Return the draws by name: the share of rollouts that is checked, and the yield of a cheat by rank."""
    ranks = RANKS.values()
    groups = [(f"{share:.0%} of the groups", share, [life(rank, 1.0, 1 - share) for rank in ranks]) for share in SHARES]
    return groups + [
        (f"{number} of {GROUP} rollouts", number / GROUP, [best_life(rank, number) for rank in ranks])
        for number in ROLLOUTS
    ]


def sampling_table() -> None:
    """Print what is saved, and what a cheat gains."""
    bench.table(
        ["card", "scorer in float32, of all", "scorer in TF32, of all"],
        [
            [name, saved(0, card.float32, card.learner), saved(0, card.tf32, card.learner)]
            for name, card in CARDS.items()
        ],
    )
    card, rows = CARDS["H100"], list[list[object]]()
    for name, share, lives in draws():
        saving = [saved(share, card.float32, card.learner), saved(share, card.tf32, card.learner)]
        rows.append([name, *saving, *(one.pay for one in lives), *(one.trained for one in lives)])
    columns = [f"{what}, {rank}" for what in ("pay", "trained on") for rank in RANKS]
    bench.table(["checked", "saved on an H100, float32", "TF32", *columns], rows)
    for name, rank in RANKS.items():
        share = least_share(rank)
        there = saved(share, card.tf32, card.learner)
        print(f"{name} keys gain at most {LITTLE:.0%} from {share:.2f} of the groups on: TF32 saves {there:.3f} there")
    print(flush=True)


def sampled_days(dtype: str, tables: Tables, honest: Groups, swaps: Mapping[str, Groups]) -> None:
    """Print what a key of a 16-bit class gains by the share of its groups that are compared."""
    bets, rows = [products(group, tables) for group in honest], list[list[object]]()
    for name in CHEATS:
        false, beyond = [products(group, tables) for group in swaps[name]], beyond_bound(swaps[name], tables)
        for share in FEWER:
            gains = [
                gain(live(strategy, bets, false, seed, beyond, share), RULES[OURS])
                for seed, strategy in enumerate(STRATEGIES)
            ]
            rows.append([name, share, *Gain(*map(max, zip(*gains, strict=True)))])
    bench.table([f"{dtype} node cheats", "compared", "trained on", "paid"], rows)
