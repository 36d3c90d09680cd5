"""Tasks of one question and one answer: reverse digits, add two-digit numbers, add two numbers below 20 asked in words.

The reward is 1 for the exact answer. Otherwise it is 0.2 times the share of characters in the right place: that
separates a near miss from noise, and never competes with the answer.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import eq
from typing import ClassVar

from echo2.tasks import splits
from echo2.tasks.chat import tokens_of_prompt
from echo2.tasks.measure import Measure
from echo2.tasks.task import Score, Split, Tokenizer

PARTIAL_REWARD = 0.2
DIGITS = "0123456789"


def grade(output: str, answer: str) -> Score:
    """Return reward and success of an output against the one right answer (not empty)."""
    if output == answer:
        return Score(1.0, True)
    right = sum(map(eq, output, answer))
    return Score(PARTIAL_REWARD * right / max(len(answer), len(output)), False)


class _ArithmeticEpisode:
    """An episode of one sampled turn. Blanks around the answer do not count."""

    def __init__(self, question: str, answer: str, text: Tokenizer) -> None:
        self._question, self._answer, self._text = question, answer, text
        self._output = ""

    @cached_property
    def prompt(self) -> Sequence[int]:
        """Token ids of the prompt, encoded at first use: scoring does not need them."""
        return tokens_of_prompt(self._text, [{"role": "user", "content": self._question}])

    def reply(self, sampled: Sequence[int]) -> None:
        self._output = self._text.decode(sampled).strip(" ")

    def score(self) -> Score:
        return grade(self._output, self._answer)


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """A task over `count` numbered questions. `pose`: number -> (question, answer). `mistake`: (question, answer) ->
    the usual wrong answer. `lead`: text that a demonstration writes before its answer. `share`: one question in `share`
    is held out."""

    name: str
    version: int
    count: int
    pose: Callable[[int], tuple[str, str]]
    mistake: Callable[[str, str], str]
    lead: str = ""
    share: int = splits.HELDOUT_SHARE
    measure: ClassVar[Measure] = Measure()

    def size(self, split: Split) -> int:
        return splits.size(self.count, split, self.share)

    def question(self, split: Split, index: int) -> tuple[str, str]:
        """Return (question, answer). Raises IndexError outside the split."""
        return _question_and_answer(self, split, index)

    def episode(self, split: Split, index: int, text: Tokenizer) -> _ArithmeticEpisode:
        return _ArithmeticEpisode(*self.question(split, index), text)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        question, answer = self.question(split, index)
        chance = random.Random(f"{self.name}/{self.version}/{split}/{index}/{seed}")
        if slip and chance.random() < slip:
            answer = self.mistake(question, answer)
        written = "".join(
            chance.choice(DIGITS.replace(right, "")) if chance.random() < noise else right for right in answer
        )
        return [*text.encode(self.lead + written), text.eos]


@lru_cache(64)
def _question_and_answer(task: Arithmetic, split: Split, index: int) -> tuple[str, str]:
    """Return (question, answer): each rollout of a group is scored by an episode of its own, of the same question."""
    return task.pose(splits.number(f"{task.name}/{task.version}", task.count, split, index, task.share))


def _reverse(number: int) -> tuple[str, str]:
    digits = f"{number:04d}"
    return f"{digits}>", digits[::-1]


def _add(number: int) -> tuple[str, str]:
    a, b = divmod(number, 100)
    return f"{a:02d}+{b:02d}=", str(a + b)


def _single_sum(number: int) -> tuple[str, str]:
    """Return question and answer. Each pair has one number and one order: a policy that knows 3 + 5 knows 5 + 3."""
    large = (math.isqrt(8 * number + 1) - 1) // 2  # numbers count the pairs 0 0, 0 1, 1 1, 0 2, 1 2, ...
    small = number - large * (large + 1) // 2
    a, b = (large, small) if number % 2 else (small, large)
    return f"What is {a} plus {b}? Answer with a number only.\nAnswer:", str(a + b)


def _as_they_stand(question: str, answer: str) -> str:
    return question.removesuffix(">")


def _without_carries(question: str, answer: str) -> str:
    """Return the sum of each column by itself: 27+35 gives 52."""
    left, right = (divmod(int(part), 10) for part in question.removesuffix("=").split("+"))
    return str(10 * ((left[0] + right[0]) % 10) + (left[1] + right[1]) % 10)


def _one_too_few(question: str, answer: str) -> str:
    """Return the sum less one, as by counting on from the first number and counting that number too."""
    return str(abs(int(answer) - 1))


REVERSE_TASK = Arithmetic("reverse", 1, 10_000, _reverse, _as_they_stand)
ADD_TASK = Arithmetic("add", 1, 10_000, _add, _without_carries)
SINGLE_SUM = Arithmetic("single_sum", 2, 210, _single_sum, _one_too_few, lead=" ", share=4)
