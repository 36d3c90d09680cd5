"""Poker for two: `poker:kuhn`, `poker:leduc`, `poker:holdem`, each with an opponent: `poker:kuhn,opponent=uniform`.

Rules
1. An index is a hand: its number, which the prompt shows, determines the cards, the seat of the policy and each choice
   of the opponent. So all rollouts of a group play the same hand, and what the opponent does depends on the hand's
   number and on the moves so far alone.
2. Numbers are 0 .. `NUMBERS` - 1, in another order than the indices; one in ten is held out. Two hands of Kuhn may have
   the same cards: their numbers tell them apart, and mean nothing else. How well a policy plays the small games is told
   by its exploitability (tasks/poker/exploitability.py).
3. A move that is not legal is asked again once in a hand. A second one forfeits the hand, and so does a hand that the
   token limit cuts.
4. The reward is the chips won or lost, divided by the most that can be lost: -1 to 1. A forfeited hand has -1, less
   than any fold. Success: chips were won.
5. The opponent does not fold before the policy has moved: each hand has a first move of the policy.
"""

import random
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from echo2.tasks.chat import tokens_of_reply
from echo2.tasks.measure import Measure
from echo2.tasks.poker import poker_hand
from echo2.tasks.poker.opponents import OPPONENTS, Opponent, uniform_sized
from echo2.tasks.poker.poker_hand import RULES, PokerRules
from echo2.tasks.poker.situation import MOST_MOVE_TOKENS, Situation, again, answer, prompt_tokens, read
from echo2.tasks.task import Score, Split, Tokenizer

NUMBERS: Final = 1_000_000
_STRIDE: Final = 611_953
_OFFSET: Final = 271_828
"""Place p of a permutation of the numbers has (p x stride + offset) modulo `NUMBERS`; the stride is prime to that."""
HELDOUT_HANDS: Final = NUMBERS // 10
ASKED_AGAIN: Final = 1
FORFEIT_REWARD: Final = -1.0
_MOVE_CHARACTERS: Final = "bcf0123456789"


def hand_number(split: Split, index: int) -> int:
    """Return the number of a hand. Raises IndexError outside the split."""
    size = _size(split)
    if not 0 <= index < size:
        raise IndexError(f"index {index} is outside {split}, which has {size} hands")
    place = index if split == "heldout" else HELDOUT_HANDS + index
    return (place * _STRIDE + _OFFSET) % NUMBERS


def _size(split: Split) -> int:
    return HELDOUT_HANDS if split == "heldout" else NUMBERS - HELDOUT_HANDS


class _PokerEpisode:
    """One hand. `cards`: all of it, as `poker_hand.deal` returns them. `moves`: moves of both players so far."""

    def __init__(self, rules: PokerRules, opponent: Opponent, key: str, number: int, text: Tokenizer) -> None:
        """`key`: key of all chance in the hand."""
        self._rules, self._opponent, self._key, self._number, self._text = rules, opponent, key, number, text
        chance = random.Random(f"{key}/deal")
        self._seat = chance.randrange(2)
        self.cards = poker_hand.deal(rules, chance)
        self.moves: list[str] = []
        self._hand = poker_hand.begin(rules, self.cards)
        self._asked, self._forfeited = 0, False
        self._let_opponent_play()
        self.opening = self.situation

    @cached_property
    def prompt(self) -> Sequence[int]:
        """Token ids of the prompt, encoded at first use: scoring does not need them."""
        return prompt_tokens(self._number, self.opening, self._text)

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        situation = self.situation
        move = read(self._text.decode(sampled), situation) if len(sampled) <= MOST_MOVE_TOKENS else None
        if move is None:
            self._asked += 1
            self._forfeited = self._asked > ASKED_AGAIN
            return None if self._forfeited else tokens_of_reply(self._text, again(situation))
        self._play(move)
        self._let_opponent_play()
        return None if self._hand.reached.situation is None else tokens_of_reply(self._text, answer(self.situation))

    def score(self) -> Score:
        if self._forfeited or self._hand.reached.situation is not None:
            return Score(FORFEIT_REWARD, False)
        chips = self._hand.reached.chips[self._seat]
        return Score(chips / self._rules.most, chips > 0)

    def _let_opponent_play(self) -> None:
        """Let the opponent move until the policy is to move (rules 1 and 5)."""
        while self._hand.reached.actor == 1 - self._seat:
            move = self._opponent(self.situation, random.Random(f"{self._key}/{' '.join(self.moves)}"))
            self._play("c" if move == "f" and not self.moves else move)

    def _play(self, move: str) -> None:
        self.moves.append(move)
        self._hand.play(move)

    @property
    def situation(self) -> Situation:
        """View of the player who is to move; the hand is not over."""
        situation = self._hand.reached.situation
        assert situation is not None
        return situation


class PokerTask:
    """A game against an opponent. `name`: the same as in run.task."""

    version = 1
    turns = 64
    """At most: the bound of the checks (tasks/check_probe.py)."""
    measure = Measure()
    """Share of hands won: none by a policy that forfeits them."""

    def __init__(self, name: str, rules: PokerRules, opponent: str) -> None:
        """`opponent`: one of `OPPONENTS[rules.name]`."""
        self.name, self.rules, self.opponent = name, rules, opponent
        self._chooses = OPPONENTS[rules.name][opponent]
        self._demonstrates = next(iter(OPPONENTS[rules.name].values()))

    def size(self, split: Split) -> int:
        """Return the number of hands of a split."""
        return _size(split)

    def episode(self, split: Split, index: int, text: Tokenizer) -> _PokerEpisode:
        """Return a hand. Raises IndexError outside the split."""
        number = hand_number(split, index)
        return _PokerEpisode(self.rules, self._chooses, self._key(number), number, text)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        """Return a first move of the game's usual opponent in the policy's place. The usual mistake is any move."""
        situation = self.episode(split, index, text).opening
        chance = random.Random(f"{self._key(hand_number(split, index))}/{seed}")
        move = self._demonstrates(situation, chance)
        if chance.random() < slip:
            move = uniform_sized(situation, chance) if situation.sized else chance.choice(situation.legal)
        written = "".join(
            chance.choice(_MOVE_CHARACTERS.replace(right, "")) if chance.random() < noise else right for right in move
        )
        return [*text.encode(written), text.eos]

    def _key(self, number: int) -> str:
        return f"{self.rules.name}/{self.version}/{number}"


def task(argument: str) -> PokerTask:
    """Return the task that an argument names. Raises ValueError, whose message says what is wrong; ImportError without
    the extra."""
    game, comma, setting = argument.partition(",")
    if game not in RULES:
        raise ValueError(f"{game!r} is no game: choose one of {', '.join(RULES)}, as in poker:kuhn")
    opponents = OPPONENTS[game]
    opponent = setting.removeprefix("opponent=") if comma else next(iter(opponents))
    if opponent not in opponents or (comma and not setting.startswith("opponent=")):
        choices = ", ".join(f"opponent={name}" for name in opponents)
        raise ValueError(f"{setting!r} is no setting of {game}: choose one of {choices}")
    poker_hand.started_game(game)
    return PokerTask(f"poker:{argument}", RULES[game], opponent)
