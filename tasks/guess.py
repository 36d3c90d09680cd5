"""Guess a number between two bounds, with one hint: the smallest episode of several turns.

The prompt names the bounds ("guess 12-40>"); the first wrong guess is answered by "higher>" or "lower>"; the second
ends the episode. The bounds determine the number, so that a replay sees the same one.

Reward: 1 for a right guess in either turn; else 0.2 x max(0, 1 - distance / width) for the last readable guess; 0
without one.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import ClassVar

from echo2.tasks import splits
from echo2.tasks.chat import tokens_of_prompt, tokens_of_reply
from echo2.tasks.measure import Measure
from echo2.tasks.task import Score, Split, Tokenizer

PARTIAL_REWARD = 0.2
_BOUNDS = tuple(combinations(range(100), 2))


class _GuessEpisode:
    def __init__(self, low: int, high: int, secret: int, text: Tokenizer) -> None:
        self._question, self._text = f"guess {low}-{high}>", text
        self._width, self._secret = high - low, secret
        self._guess: int | None = None
        self._turns = 0

    @cached_property
    def prompt(self) -> Sequence[int]:
        """Token ids of the prompt, encoded at first use: scoring does not need them."""
        return tokens_of_prompt(self._text, [{"role": "user", "content": self._question}])

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        self._turns += 1
        said = self._text.decode(sampled).strip(" ")
        # An unreadable guess ends the episode; an earlier guess still counts. isascii: "²" is a digit to str.
        if not (said.isascii() and said.isdigit() and len(said) <= 2):
            return None
        self._guess = int(said)
        if self._guess == self._secret or self._turns == 2:
            return None
        return tokens_of_reply(self._text, "higher>" if self._secret > self._guess else "lower>")

    def score(self) -> Score:
        if self._guess == self._secret:
            return Score(1.0, True)
        if self._guess is None:
            return Score(0.0, False)
        return Score(PARTIAL_REWARD * max(0.0, 1 - abs(self._guess - self._secret) / self._width), False)


@dataclass(frozen=True)
class Guess:
    name: str = "guess"
    version: int = 1
    turns: int = 2
    measure: ClassVar[Measure] = Measure()

    def size(self, split: Split) -> int:
        return splits.size(len(_BOUNDS), split)

    def bounds(self, split: Split, index: int) -> tuple[int, int, int]:
        """Return (low, high, secret), low <= secret <= high. Raises IndexError outside the split."""
        low, high = _BOUNDS[splits.number(f"{self.name}/{self.version}", len(_BOUNDS), split, index)]
        digest = hashlib.blake2b(f"{low}-{high}".encode(), key=f"{self.name}/{self.version}".encode()).digest()
        return low, high, low + int.from_bytes(digest, "little") % (high - low + 1)

    def episode(self, split: Split, index: int, text: Tokenizer) -> _GuessEpisode:
        return _GuessEpisode(*self.bounds(split, index), text)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        """Return a right first guess. The usual mistake is the lower bound."""
        low, _, right = self.bounds(split, index)
        chance = random.Random(f"{self.name}/{self.version}/{split}/{index}/{seed}")
        secret = str(low if slip and chance.random() < slip else right)
        written = "".join(
            chance.choice("0123456789".replace(right, "")) if chance.random() < noise else right for right in secret
        )
        return [*text.encode(written), text.eos]


GUESS = Guess()
