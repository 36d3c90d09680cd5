"""A player's view of a hand, as data and as text. Pure.

Rules
1. The text has only what the player sees: own cards, the moves of both, the board. Hands that look alike to a player
   have the same text but for the hand's number.
2. Texts are short and have only characters of the demo's tokenizer (tasks/tokenizer.py), so that a tiny model can play:

       kuhn 271828 card k. c or b>            the prompt of who acts first, with a king
       b. f or c>                             after its check: the opponent bets
       no. f or c>                            after a move that is not legal

3. A move is a letter: c checks or calls, b bets or raises, f folds. In hold'em the bet is named by the chips that the
   player's bets of this round then sum to: b12.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

from echo2.tasks.chat import tokens_of_prompt, tokens_of_reply
from echo2.tasks.task import Tokenizer

Who = Literal["you", "they", "board"]
MOST_MOVE_TOKENS: Final = 32
"""Most tokens of a move; more are no legal move."""
_MOVE: Final = re.compile(r"([fc])|b ?([0-9]{1,6})?")


class Event(NamedTuple):
    """A move, or cards that all see. `said`: "c", "b12" ..., or the cards. `choices`: what was legal at an own move, in
    words."""

    who: Who
    said: str
    choices: str = ""


class Situation(NamedTuple):
    """View of a player who is to move. `game`: its name. `seat`: 0 acts first. `cards`: own, such as "k" or "ah kd".
    `events`: events in order. `legal`: letters of the legal moves. `low`, `high`: a bet's bounds in hold'em; 0: the
    game has one size. `pot`, `owed`: chips of both players so far, and chips that a call costs; hold'em alone tells
    them."""

    game: str
    seat: int
    cards: str
    events: tuple[Event, ...]
    legal: tuple[str, ...]
    low: int = 0
    high: int = 0
    pot: int = 0
    owed: int = 0

    @property
    def sized(self) -> bool:
        """Whether a bet needs a number of chips."""
        return self.game == "holdem"


Policy = Callable[[Situation], Sequence[float]]
"""Return the probability of each letter of `legal`, in its order; they sum to 1."""


def segments(number: int, situation: Situation) -> list[str]:
    """Return the environment's texts of a hand up to a situation: the prompt, then one answer after each own move.

    A hand in which a move was asked again has further texts: `again` gives them."""
    texts, text = [], _opening(number, situation)
    for event in situation.events:
        if event.who == "you":
            texts.append(f"{text}{event.choices}>")
            text = ""
        else:
            text += f"{'board ' if event.who == 'board' else ''}{event.said}. "
    return [*texts, f"{text}{choices(situation)}>"]


def answer(situation: Situation) -> str:
    """Return the environment's text after the player's last move."""
    return segments(0, situation)[-1]


def again(situation: Situation) -> str:
    """Return the text after a move that is not legal."""
    return f"no. {choices(situation)}>"


def choices(situation: Situation) -> str:
    """Return the legal moves in words, in hold'em behind the pot and the price of a call."""
    moves = [_bet(situation) if letter == "b" else letter for letter in situation.legal]
    chips = f"pot {situation.pot}, call {situation.owed}. " if situation.sized else ""
    return f"{chips}{', '.join(moves[:-1])}{' or ' * (len(moves) > 1)}{moves[-1]}"


def _bet(situation: Situation) -> str:
    return f"b{situation.low} to b{situation.high}" if situation.sized else "b"


def _opening(number: int, situation: Situation) -> str:
    if situation.sized:
        return f"holdem {number} {('small', 'big')[situation.seat]} blind, cards {situation.cards}. "
    return f"{situation.game} {number} card {situation.cards}. "


def read(said: str, situation: Situation) -> str | None:
    """Return the move that a text names, such as "c" or "b12"; None: it is no legal move. Blanks around it and letter
    case make no difference."""
    match = _MOVE.fullmatch(said.strip(" \n").lower())
    if match is None:
        return None
    letter, chips = match[1] or "b", match[2]
    if letter not in situation.legal or (letter == "b" and (chips is not None) != situation.sized):
        return None
    if chips is None:
        return letter
    return f"b{int(chips)}" if situation.low <= int(chips) <= situation.high else None


def prompt_tokens(number: int, situation: Situation, text: Tokenizer) -> list[int]:
    """Return the tokens of the prompt of a hand, as the model's chat template writes it where the run has one."""
    return tokens_of_prompt(text, [{"role": "user", "content": segments(number, situation)[0]}])


def tokens_before(number: int, situation: Situation, text: Tokenizer) -> list[int]:
    """Return all tokens that a policy sees in a situation: texts of the environment, own moves, each with eos."""
    own = [event.said for event in situation.events if event.who == "you"]
    tokens = prompt_tokens(number, situation, text)
    for move, after in zip(own, segments(number, situation)[1:], strict=True):
        tokens += [*text.encode(move), text.eos, *tokens_of_reply(text, after)]
    return tokens
