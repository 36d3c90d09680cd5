"""Hands by pokerkit against OpenSpiel's games: the same moves are legal, and the same chips are won."""

import random
from typing import Any

import pytest

from benchmarks.tasks import bare_hand
from echo2.tasks.poker import poker_hand
from echo2.tasks.poker.poker_hand import RULES, SmallHand, begin, deal
from echo2.tasks.poker.situation import Event

pytest.importorskip("pokerkit", reason="needs the extra poker")
pytest.importorskip("pyspiel", reason="needs the extra poker")


@pytest.mark.parametrize(("name", "hands"), [("kuhn", 300), ("leduc", 400)])
def test_a_small_game_is_open_spiels(name: str, hands: int) -> None:
    from echo2.tasks.poker.exploitability import open_spiel_game

    rules, chance = RULES[name], random.Random(5)
    for _ in range(hands):
        cards = deal(rules, chance)
        hand, state, dealt = begin(rules, cards), open_spiel_game(name).new_initial_state(), iter(cards)
        while not state.is_terminal():
            if state.is_chance_node():
                state.apply_action(rules.deck.index(next(dealt)))
                continue
            reached = hand.reached
            assert reached.actor == state.current_player()
            assert len(reached.situation.legal) == len(state.legal_actions())
            place = chance.randrange(len(reached.situation.legal))
            state.apply_action(state.legal_actions()[place])
            hand.play(reached.situation.legal[place])
        assert hand.reached.actor is None
        assert list(hand.reached.chips) == state.returns()


def test_a_state_of_a_small_game_is_played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = SmallHand(RULES["kuhn"], ("Js", "Ks"))
    first.play("c")

    def unreachable(*anything: Any) -> None:
        raise AssertionError("pokerkit plays it again")

    monkeypatch.setattr(poker_hand, "PokerHand", unreachable)
    again = SmallHand(RULES["kuhn"], ("Js", "Ks"))
    again.play("c")
    assert again.reached == first.reached


def test_holdem_tells_blinds_board_pot_and_bounds() -> None:
    hand = begin(RULES["holdem"], ("Ah", "Kd", "2c", "7d", "Th", "9h", "8h", "3s", "4s"))
    small = hand.reached.situation
    assert (hand.reached.actor, small.cards, small.legal) == (0, "ah kd", ("f", "c", "b"))
    assert (small.low, small.high, small.pot, small.owed) == (4, 200, 3, 1)
    hand.play("b6")
    hand.play("c")
    big = hand.reached.situation
    assert (hand.reached.actor, big.cards, big.pot, big.owed, big.low, big.high) == (1, "2c 7d", 12, 0, 2, 194)
    assert [event.said for event in big.events] == ["b6", "c", "th 9h 8h"]
    assert big.events[1] == Event("you", "c", "pot 8, call 4. f, c or b10 to b200")


def test_holdem_ends_at_a_showdown_of_all_chips_and_at_a_fold() -> None:
    cards = ("Ah", "As", "2c", "7d", "Th", "9h", "8d", "3s", "4s")
    every_chip = begin(RULES["holdem"], cards)
    every_chip.play("b200")
    every_chip.play("c")
    assert every_chip.reached == (None, None, (200, -200))
    folded = begin(RULES["holdem"], cards)
    folded.play("b6")
    folded.play("f")
    assert folded.reached == (None, None, (2, -2))


def test_holdem_pays_what_pokerkits_own_showdown_pays() -> None:
    rules, chance = RULES["holdem"], random.Random(11)
    paid = set()
    for _ in range(150):
        cards, moves = deal(rules, chance), list[str]()
        hand = begin(rules, cards)
        while hand.reached.situation is not None:
            situation = hand.reached.situation
            letter = chance.choice(situation.legal)
            moves.append(letter if letter != "b" else f"b{chance.choice((situation.low, situation.high))}")
            hand.play(moves[-1])
        assert hand.reached.chips == bare_hand("holdem", cards, moves)[::-1]
        paid.add(hand.reached.chips[0])
    assert {200, -200} <= paid


def test_a_hand_on_the_board_alone_is_shared() -> None:
    hand = begin(RULES["holdem"], ("2c", "3d", "4c", "5d", "Ts", "Js", "Qs", "Ks", "As"))
    hand.play("b200")
    hand.play("c")
    assert hand.reached == (None, None, (0, 0))
