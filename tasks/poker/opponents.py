"""Frozen opponents. Pure: a choice depends on the situation and the chance that is passed in.

    uniform       each letter of the legal moves alike; a bet in hold'em is the least, the pot or everything
    equilibrium   Kuhn: the equilibrium with `KUHN_BLUFFS`. Leduc: an approximate one (leduc_equilibrium.json)
    blind         Kuhn: bets with half of its hands and calls with three quarters, whatever its card
    loose         Kuhn: calls with the queen more often than the equilibrium, and bluffs less often
    tight         hold'em: bets and calls with good cards, checks and folds with others
    caller        hold'em: checks or calls, whatever happens

A policy learns to beat the opponent that it meets. The best response to `uniform` can itself lose 0.375 chips per hand
of Kuhn, where uniform play loses 0.458. Against the equilibrium with half of the most bluffs only bad moves lose, and
the policy that mixes all others alike can lose 0.083. So `equilibrium` is the usual opponent. But nothing keeps a
policy that learns from it from always taking one of these others, which can lose up to 1 chip. Against `loose` one
policy alone is best: it bets and calls with kings alone. It can lose 0.25 chips. In Leduc the policies that are best
against `equilibrium` can lose 3.4 chips and 1.5 to 2.4, where uniform play loses 2.374: there a fall of exploitability
is not to be expected.
"""

import json
import random
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from echo2.tasks.poker.situation import Policy, Situation

KUHN_BLUFFS: Final = 1 / 6
"""Probability that seat 0 bets with the jack, from 0 to 1/3; each gives an equilibrium (Kuhn, 1950)."""
LEDUC: Final = Path(__file__).parent / "leduc_equilibrium.json"
MOST_BETS: Final = 2
"""Bets that a hold'em opponent makes in one round, so that a hand ends."""
_RANKS: Final = "23456789tjqka"
_GOOD_RANK_SUM: Final = 22
"""Sum of two ranks, ace 14, from which `tight` calls before the flop: ten and queen."""

Opponent = Callable[[Situation, random.Random], str]
"""Return a legal move."""


def uniform(situation: Situation) -> list[float]:
    """Take each letter alike."""
    return [1 / len(situation.legal)] * len(situation.legal)


def kuhn_equilibrium(situation: Situation) -> list[float]:
    """Play Kuhn's equilibrium with `KUHN_BLUFFS`. The probability is that of a bet, or of a call."""
    answers_bet = "f" in situation.legal
    if situation.seat == 1:
        bold = {"j": 0.0, "q": 1 / 3, "k": 1.0} if answers_bet else {"j": 1 / 3, "q": 0.0, "k": 1.0}
    elif answers_bet:
        bold = {"j": 0.0, "q": KUHN_BLUFFS + 1 / 3, "k": 1.0}
    else:
        bold = {"j": KUHN_BLUFFS, "q": 0.0, "k": 3 * KUHN_BLUFFS}
    chance = bold[situation.cards]
    return [1 - chance, chance]


def kuhn_loose(situation: Situation) -> list[float]:
    """Play Kuhn as in equilibrium, but call with twice as many queens, and bluff half as often."""
    _, bold = kuhn_equilibrium(situation)
    if situation.cards == "q" and "f" in situation.legal:
        bold = min(1.0, 2 * bold)
    elif situation.cards == "j":
        bold /= 2
    return [1 - bold, bold]


def kuhn_blind(situation: Situation) -> list[float]:
    """Play Kuhn without a look at the card."""
    return [1 / 4, 3 / 4] if "f" in situation.legal else [1 / 2, 1 / 2]


def leduc_key(situation: Situation) -> str:
    """Return the name of a situation of Leduc: own rank, then moves and board in order."""
    return situation.cards + "".join(event.said for event in situation.events)


@lru_cache(maxsize=1)
def _leduc_table() -> Mapping[str, list[float]]:
    table: Mapping[str, list[float]] = json.loads(LEDUC.read_text())
    return table


def leduc_equilibrium(situation: Situation) -> list[float]:
    """Play Leduc's approximate equilibrium."""
    return _leduc_table()[leduc_key(situation)]


def letter_of(policy: Policy) -> Opponent:
    """Return the opponent of a game without sizes that plays a policy."""
    return lambda situation, chance: chance.choices(situation.legal, policy(situation))[0]


def uniform_sized(situation: Situation, chance: random.Random) -> str:
    """Take each letter alike; see the top."""
    letter = chance.choice(situation.legal)
    if letter != "b" or not _may_bet(situation):
        return "c" if letter == "b" else letter
    return f"b{_chips(situation, chance.choice((situation.low, _pot_bet(situation), situation.high)))}"


def caller(situation: Situation, chance: random.Random) -> str:
    """Check or call."""
    return "c"


def tight(situation: Situation, chance: random.Random) -> str:
    """Bet the pot, or call, with good cards; a third of the time bet or call a small price with others that fit."""
    strength = _strength(situation)
    bold = strength == 2 or (strength == 1 and chance.random() < 1 / 3)
    if bold and _may_bet(situation):
        return f"b{_chips(situation, _pot_bet(situation))}"
    if strength == 2 or situation.owed == 0 or (strength == 1 and 3 * situation.owed <= situation.pot):
        return "c"
    return "f"


def _strength(situation: Situation) -> int:
    """Return 2 for good cards, 1 for fair ones, else 0: ranks before the flop, then pairs and better by own cards."""
    own = [_RANKS.index(card[0]) + 2 for card in situation.cards.split()]
    board = [card[0] for event in situation.events if event.who == "board" for card in event.said.split()]
    shown = [_RANKS.index(rank) + 2 for rank in board]
    pair = own[0] == own[1]
    if not shown:
        return (
            2
            if (pair and own[0] >= 9) or sum(own) >= _GOOD_RANK_SUM + 3
            else int(pair or sum(own) >= _GOOD_RANK_SUM - 4)
        )
    matched = sum(shown.count(rank) for rank in set(own)) + pair
    if matched >= 2 or (max(own) in shown and max(own) == max(shown)) or (pair and own[0] > max(shown)):
        return 2
    return int(matched == 1)


def _may_bet(situation: Situation) -> bool:
    """Tell whether the player has bet less than `MOST_BETS` times in this round."""
    bets = 0
    for event in situation.events:
        if event.who == "board":
            bets = 0
        elif event.who == "you" and event.said[0] == "b":
            bets += 1
    return "b" in situation.legal and bets < MOST_BETS


def _pot_bet(situation: Situation) -> int:
    """Return the chips of a raise by the pot, counted as the size of the least raise is."""
    return situation.low + situation.pot


def _chips(situation: Situation, wanted: int) -> int:
    return max(situation.low, min(wanted, situation.high))


OPPONENTS: Final[Mapping[str, Mapping[str, Opponent]]] = {
    "kuhn": {
        "equilibrium": letter_of(kuhn_equilibrium),
        "uniform": letter_of(uniform),
        "loose": letter_of(kuhn_loose),
        "blind": letter_of(kuhn_blind),
    },
    "leduc": {"equilibrium": letter_of(leduc_equilibrium), "uniform": letter_of(uniform)},
    "holdem": {"tight": tight, "caller": caller, "uniform": uniform_sized},
}
"""Game -> name -> opponent; the first is the usual one."""
