"""A plug-in whose episodes are opened by chance: each sample of a group guesses between bounds of its own."""

import random
from collections.abc import Sequence

from echo2.tasks.guess import GUESS
from echo2.tasks.task import Episode, Score, Split, Tokenizer

BEGINNING = "guess "


class DealtEpisode:
    """An episode of `Dealt`."""

    def __init__(self, split: Split, text: Tokenizer) -> None:
        self.prompt, self._split, self._text = text.encode(BEGINNING), split, text
        self._dealt: Episode | None = None

    def open(self, prompt: Sequence[int]) -> Sequence[int]:
        index = random.SystemRandom().randrange(GUESS.size(self._split))
        self._dealt = GUESS.episode(self._split, index, self._text)
        return self._dealt.prompt[len(prompt) :]

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        assert self._dealt is not None
        return self._dealt.reply(sampled)

    def score(self) -> Score:
        assert self._dealt is not None
        return self._dealt.score()


class Dealt:
    """The task `dealt`."""

    name, version, turns, opened = "dealt", 1, 2, True

    def size(self, split: Split) -> int:
        return 100

    def episode(self, split: Split, index: int, text: Tokenizer) -> DealtEpisode:
        return DealtEpisode(split, text)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        return GUESS.demonstration(split, index, text, seed, noise, slip)


DEALT = Dealt()
