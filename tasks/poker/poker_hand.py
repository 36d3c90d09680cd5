"""One hand between two players, played by pokerkit: cards, legal moves, chips.

Rules
1. Seat 0 acts first: in hold'em the small blind, who acts second after the flop.
2. The cards are a list: two hands, then the board in its order. The same list and moves give the same hand.
3. Kuhn: three cards, ante 1, one bet of 1 (Kuhn, 1950). Leduc: two suits of three ranks, ante 1, bets of 2 and then of
   4, two a round (Southey et al., "Bayes' bluff", 2005). Both are OpenSpiel's kuhn_poker and leduc_poker. Hold'em: no
   limit, blinds of 1 and 2, `STACK` chips each, whole chips.
4. Kuhn and Leduc have few states: pokerkit plays each once, and its result is kept (`REMEMBERED_STATES`).
"""

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from echo2.tasks.poker.situation import Event, Situation, choices

STACK: Final = 200
REMEMBERED_STATES: Final = 20_000
"""States of small games that are kept; Leduc has 9,457 with its cards."""


class PokerRules(NamedTuple):
    """A game. `own`: cards of a hand. `board`: cards of each round's board. `most`: the most chips that a player can
    lose. `deck`: all cards, as pokerkit writes them."""

    name: str
    own: int
    board: tuple[int, ...]
    most: int
    deck: tuple[str, ...]

    @property
    def small(self) -> bool:
        """Whether the game has few states (rule 4). Its cards are shown by rank."""
        return self.own == 1


RULES: Final = {
    "kuhn": PokerRules("kuhn", 1, (), 2, ("Js", "Qs", "Ks")),
    "leduc": PokerRules("leduc", 1, (1,), 13, ("Js", "Jh", "Qs", "Qh", "Ks", "Kh")),
    "holdem": PokerRules("holdem", 2, (3, 1, 1), STACK, tuple(f"{r}{s}" for r in "23456789TJQKA" for s in "cdhs")),
}


class Reached(NamedTuple):
    """A state of a hand. `actor`: the seat that is to move; None: the hand is over. `situation`: what it sees. `chips`:
    won or lost by each seat, once the hand is over."""

    actor: int | None
    situation: Situation | None
    chips: tuple[int, int] = (0, 0)


@lru_cache(maxsize=len(RULES))
def started_game(name: str) -> Any:
    """Return pokerkit's game of a name, from which hands begin. Raises ImportError without the extra."""
    import pokerkit
    from pokerkit import Automation

    automations = (
        Automation.ANTE_POSTING, Automation.BET_COLLECTION, Automation.BLIND_OR_STRADDLE_POSTING,
        Automation.CHIPS_PUSHING, Automation.CHIPS_PULLING,
    )  # fmt: skip
    if name == "kuhn":
        return pokerkit.KuhnPoker(automations)
    if name == "leduc":
        return pokerkit.LeducHoldem(automations)
    return pokerkit.NoLimitTexasHoldem(automations, True, 0, (1, 2), 2)


def deal(rules: PokerRules, chance: random.Random) -> tuple[str, ...]:
    """Return the cards of a hand."""
    return tuple(chance.sample(rules.deck, 2 * rules.own + sum(rules.board)))


class PokerHand:
    """A hand under way in pokerkit. `reached`: its state."""

    def __init__(self, rules: PokerRules, cards: Sequence[str]) -> None:
        """`cards`: cards as `deal` returns them."""
        self._rules, self._cards = rules, cards
        self._state = started_game(rules.name)((rules.most,) * 2, 2)
        for seat in (0, 1) if rules.small else (1, 0):
            self._state.deal_hole("".join(self._own(seat)))
        self._dealt = 2 * rules.own
        self._streets = iter(rules.board)
        self._events: list[tuple[int, Event]] = []
        self.reached = self._reach()

    def play(self, move: str) -> None:
        """Make a legal move, and deal what follows."""
        actor, situation, _ = self.reached
        assert actor is not None
        assert situation is not None
        self._events.append((actor, Event("you", move, choices(situation))))
        if move == "f":
            self._state.fold()
        elif move == "c":
            self._state.check_or_call()
        else:
            self._state.complete_bet_or_raise_to(int(move[1:]) if move[1:] else None)
        self.reached = self._reach()

    def _reach(self) -> Reached:
        """Deal boards until somebody is to move or the hand is over."""
        state = self._state
        while state.status and state.actor_index is None and not state.showdown_indices:
            count = next(self._streets)
            board = self._cards[self._dealt : self._dealt + count]
            self._dealt += count
            if state.can_burn_card("??"):
                state.burn_card("??")
            state.deal_board("".join(board))
            self._events.append((-1, Event("board", _format_cards(self._rules, board))))
        if state.status and state.actor_index is None:
            return Reached(None, None, self._shown_down())
        if not state.status:
            first, second = state.payoffs if self._rules.small else state.payoffs[::-1]
            return Reached(None, None, (int(first), int(second)))
        seat = int(state.actor_index) if self._rules.small else 1 - int(state.actor_index)
        return Reached(seat, self._situation(seat))

    def _shown_down(self) -> tuple[int, int]:
        """Return the chips after the last bet was called: both have put in the same. pokerkit's own showdown compares
        the hands several times, which is most of a hand's time."""
        state, board = self._state, "".join(self._cards[2 * self._rules.own :])
        first, second = (state.hand_types[0].from_game("".join(self._own(seat)), board) for seat in range(2))
        chips = self._rules.most - int(state.stacks[0])
        won = chips * ((first > second) - (first < second))
        return won, -won

    def _situation(self, seat: int) -> Situation:
        state = self._state
        owed, low = state.checking_or_calling_amount, state.min_completion_betting_or_raising_to_amount
        legal = tuple(filter(None, ("f" * bool(owed), "c", "b" * (low is not None))))
        events = tuple(event if actor in (seat, -1) else Event("they", event.said) for actor, event in self._events)
        seen = Situation(self._rules.name, seat, _format_cards(self._rules, self._own(seat)), events, legal)
        if self._rules.small:
            return seen
        high = state.max_completion_betting_or_raising_to_amount
        return seen._replace(low=low or 0, high=high or 0, pot=2 * STACK - sum(state.stacks), owed=owed)

    def _own(self, seat: int) -> Sequence[str]:
        return self._cards[seat * self._rules.own : (seat + 1) * self._rules.own]


class SmallHand:
    """A hand under way in a game of few states. `reached`: its state."""

    def __init__(self, rules: PokerRules, cards: Sequence[str]) -> None:
        self._rules, self._cards, self._moves = rules, tuple(cards), ""
        self.reached = after(rules, self._cards, "")

    def play(self, move: str) -> None:
        self._moves += move
        self.reached = after(self._rules, self._cards, self._moves)


def begin(rules: PokerRules, cards: Sequence[str]) -> PokerHand | SmallHand:
    return SmallHand(rules, cards) if rules.small else PokerHand(rules, cards)


@lru_cache(maxsize=REMEMBERED_STATES)
def after(rules: PokerRules, cards: tuple[str, ...], moves: str) -> Reached:
    """Return the state of a small game after moves, each one letter."""
    hand = PokerHand(rules, cards)
    for move in moves:
        hand.play(move)
    return hand.reached


def _format_cards(rules: PokerRules, cards: Sequence[str]) -> str:
    """Return cards as a player reads them: in small games their ranks."""
    return " ".join(card[0] if rules.small else card for card in cards).lower()
