"""Mathematics: `math:PATH`, data of the operator's; `math`, word problems of reasoning-gym's gsm_symbolic.

The prompt is the problem and one sentence that asks for a box. The reward is 1 where the completion's answer equals the
right one (tasks/math/equality.py), else 0. The version of a task on data tells data apart: a run goes on with the data
that it was made with, or not at all.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

from echo2.tasks.chat import tokens_of_prompt
from echo2.tasks.math import equality, problem_files
from echo2.tasks.math.problem_files import DataFault
from echo2.tasks.measure import Measure
from echo2.tasks.task import Score, Split, Tokenizer

ANSWER_REQUEST: Final = "\nPut the final answer into \\boxed{}.\n"


class Problems(Protocol):
    """Questions and answers by index."""

    def size(self, split: Split) -> int: ...

    def pose(self, split: Split, index: int) -> tuple[str, str]:
        """Return (question, answer). Raises IndexError outside the split."""


class FileProblems:
    """The problems of data of the operator's."""

    def __init__(self, path: Path) -> None:
        """Raises `DataFault`."""
        self._splits = problem_files.read(path)
        self.version = problem_files.version_of(self._splits)

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return len(self._splits[split])

    def pose(self, split: Split, index: int) -> tuple[str, str]:
        """See `Problems.pose`."""
        if not 0 <= index < len(self._splits[split]):
            raise IndexError(f"index {index} is outside {split}, which has {len(self._splits[split])} problems")
        problem = self._splits[split][index]
        return problem.question, problem.answer


class WordProblems:
    """gsm_symbolic's problems, from a seed without end."""

    version = 1

    def __init__(self) -> None:
        from echo2.tasks.gym import gym_task

        self._task = gym_task.task("gsm_symbolic")

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return self._task.size(split)

    def pose(self, split: Split, index: int) -> tuple[str, str]:
        """See `Problems.pose`."""
        item = self._task.item(split, index)
        return item["question"], item["answer"]


class _MathEpisode:
    """An episode of one sampled turn."""

    def __init__(self, question: str, answer: str, text: Tokenizer) -> None:
        self._question, self._answer, self._text = question, answer, text
        self._said = ""

    @cached_property
    def prompt(self) -> Sequence[int]:
        """Token ids of the prompt, encoded at first use: scoring does not need them."""
        return tokens_of_prompt(self._text, [{"role": "user", "content": f"{self._question}{ANSWER_REQUEST}"}])

    def reply(self, sampled: Sequence[int]) -> None:
        self._said = self._text.decode(sampled)

    def score(self) -> Score:
        right = equality.is_equal(self._answer, self._said)
        return Score(float(right), right)


class MathTask:
    """A task over problems with one answer each."""

    measure = Measure()

    def __init__(self, name: str, version: int, problems: Problems) -> None:
        self.name, self.version, self._problems = name, version, problems

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return self._problems.size(split)

    def episode(self, split: Split, index: int, text: Tokenizer) -> _MathEpisode:
        """Return an episode. Raises IndexError outside the split."""
        return _MathEpisode(*self._problems.pose(split, index), text)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        """Return the right answer in its box; there are no mistakes to show."""
        _, answer = self._problems.pose(split, index)
        return [*text.encode(f"\\boxed{{{answer}}}"), text.eos]


def task(argument: str) -> MathTask:
    """Return the task on the data at a path, or on word problems. Raises `DataFault`; ImportError without the extra."""
    import math_verify  # noqa: F401  # so that an operator without it is told at the start

    if not argument:
        return MathTask("math", WordProblems.version, WordProblems())
    path = Path(argument)
    if not path.is_absolute():
        raise DataFault(
            f"name an absolute path: the task's process works in a folder of its own, so {path} is not there"
        )
    data = FileProblems(path)
    return MathTask(f"math:{argument}", data.version, data)
