"""A language model as a policy in the small games: its probabilities of the legal moves, renormalised. Pure.

Rules
1. In a situation the model has read what it reads in an episode (`situation.tokens_before`). A move's probability is
   that of its letter and then the end of the turn.
2. The probabilities of the legal moves are divided by their sum. `legal`, the mean of that sum over the situations,
   tells how much was left out: a move that is not legal would be asked again, or forfeit the hand.
3. The prompt has the hand's number. Each number that is asked for has a policy, and the figures are means over them: of
   somebody who exploits the policy and sees the number too.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from echo2.tasks.poker.exploitability import exploitability, situations
from echo2.tasks.poker.poker_task import hand_number
from echo2.tasks.poker.situation import Situation, tokens_before
from echo2.tasks.task import Tokenizer

HANDS: Final = 4
"""Held-out numbers that are asked for, unless told otherwise."""


class AskedMoves(NamedTuple):
    """A question to a model. `before`: tokens that it has read. `moves`: tokens of each legal move, with their end."""

    number: int
    situation: Situation
    before: list[int]
    moves: list[list[int]]


class MeasuredPolicy(NamedTuple):
    """Chips per hand (`exploitability.Exploited`), and the mean probability of a legal move."""

    exploitability: float
    nash_conv: float
    legal: float


def questions(game: str, text: Tokenizer, hands: int = HANDS) -> list[AskedMoves]:
    """Return what a model is asked for a small game: each situation at each of the first `hands` held-out numbers."""
    return [
        AskedMoves(
            number,
            situation,
            tokens_before(number, situation, text),
            [[*text.encode(letter), text.eos] for letter in situation.legal],
        )
        for number in (hand_number("heldout", index) for index in range(hands))
        for situation in situations(game)
    ]


def measure(game: str, asked: Sequence[AskedMoves], told: Sequence[Sequence[float]]) -> MeasuredPolicy:
    """Return what the policy of a model can lose. `told`: its answers to `questions`, in their order."""
    legal = [[math.exp(value) for value in values] for values in told]
    policies: dict[int, dict[Situation, list[float]]] = {}
    for one, chances in zip(asked, legal, strict=True):
        total = sum(chances)
        shares = [chance / total for chance in chances] if total > 0 else [1 / len(chances)] * len(chances)
        policies.setdefault(one.number, {})[one.situation] = shares
    results = [exploitability(game, policy.__getitem__) for policy in policies.values()]
    return MeasuredPolicy(
        sum(one.exploitability for one in results) / len(results),
        sum(one.nash_conv for one in results) / len(results),
        sum(map(sum, legal)) / len(legal),
    )
