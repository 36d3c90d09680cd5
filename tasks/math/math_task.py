"""Mathematics: `math:DATA`, problems of the operator's; `math`, word problems of reasoning-gym's gsm_symbolic.

The prompt is the problem and one sentence that asks for a box, or the messages that the data has. The reward is 1 where
the completion's answer equals a right one (tasks/math/equality.py), else 0. The version of a task on data tells data
apart: a run goes on with the data that it was made with, or not at all.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple, Protocol

from echo2.tasks.chat import Chatting, Message, tokens_of_prompt
from echo2.tasks.math import equality, problem_files
from echo2.tasks.math.data_files import DataFault
from echo2.tasks.math.row_fields import parse_argument
from echo2.tasks.measure import Measure
from echo2.tasks.task import Score, Split, Tokenizer

ANSWER_REQUEST: Final = "Put the final answer into \\boxed{}."


class Posed(NamedTuple):
    """A problem as it is posed. `answers`: any one is right. `chat`: whether the messages are the data's own."""

    messages: tuple[Message, ...]
    answers: tuple[str, ...]
    chat: bool = False


def _ask_text(question: str, ask: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": f"{question}\n{ask}\n" if ask else f"{question}\n"},)


class Problems(Protocol):
    """Problems by index."""

    def size(self, split: Split) -> int: ...

    def pose(self, split: Split, index: int) -> Posed:
        """Return a problem. Raises IndexError outside the split."""


class FileProblems:
    """The problems of data of the operator's. `remarks`: sentences on what was read and left out."""

    def __init__(self, argument: str) -> None:
        """Raises `DataFault`."""
        path, fields = parse_argument(argument)
        if not path.is_absolute():
            raise DataFault(
                f"name an absolute path: the task's process works in a folder of its own, so {path} is not there"
            )
        data = problem_files.read(path, fields)
        self._splits, self.remarks, self._ask = data.splits, data.remarks, fields.ask
        self.version = problem_files.version_of(data, fields.ask)

    def size(self, split: Split) -> int:
        return len(self._splits[split])

    def pose(self, split: Split, index: int) -> Posed:
        """See `Problems.pose`."""
        if not 0 <= index < len(self._splits[split]):
            raise IndexError(f"index {index} is outside {split}, which has {len(self._splits[split])} problems")
        problem = self._splits[split][index]
        if isinstance(problem.posed, str):
            ask = ANSWER_REQUEST if self._ask is None else self._ask
            return Posed(_ask_text(problem.posed, ask), problem.answers)
        *before, last = problem.posed
        asked: Message = {**last, "content": f"{last['content']}\n{self._ask}"} if self._ask else last
        return Posed((*before, asked), problem.answers, chat=True)


class WordProblems:
    """gsm_symbolic's problems, from a seed without end."""

    version = 1

    def __init__(self) -> None:
        from echo2.tasks.gym import gym_task

        self._task = gym_task.task("gsm_symbolic")

    def size(self, split: Split) -> int:
        return self._task.size(split)

    def pose(self, split: Split, index: int) -> Posed:
        """See `Problems.pose`."""
        item = self._task.item(split, index)
        return Posed(_ask_text(item["question"], ANSWER_REQUEST), (item["answer"],))


class _MathEpisode:
    """An episode of one sampled turn."""

    def __init__(self, posed: Posed, text: Tokenizer) -> None:
        self._posed, self._text = posed, text
        self._said = ""

    @cached_property
    def prompt(self) -> Sequence[int]:
        """Token ids of the prompt, encoded at first use: scoring does not need them. Raises `DataFault` for messages
        without a template to write them."""
        if self._posed.chat and not isinstance(self._text, Chatting):
            raise DataFault("its problems are messages, which a chat template writes: set run.template = chat")
        return tokens_of_prompt(self._text, self._posed.messages)

    def reply(self, sampled: Sequence[int]) -> None:
        self._said = self._text.decode(sampled)

    def score(self) -> Score:
        right = equality.is_any(self._posed.answers, self._said)
        return Score(float(right), right)


class MathTask:
    """A task over problems, each with at least one right answer."""

    measure = Measure()

    def __init__(self, name: str, version: int, problems: Problems, remarks: Sequence[str] = ()) -> None:
        self.name, self.version, self._problems = name, version, problems
        self.remarks = remarks

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return self._problems.size(split)

    def episode(self, split: Split, index: int, text: Tokenizer) -> _MathEpisode:
        """Return an episode. Raises IndexError outside the split."""
        return _MathEpisode(self._problems.pose(split, index), text)

    def ready(self, text: Tokenizer) -> None:
        """Load Math-Verify, so that the first answer takes no longer than others."""
        equality.is_equal(r"\frac{x}{2}", r"\boxed{\frac{1}{2}x}")

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        """Return the right answer in its box; there are no mistakes to show."""
        answer, *_ = self._problems.pose(split, index).answers
        return [*text.encode(f"\\boxed{{{answer}}}"), text.eos]


def task(argument: str) -> MathTask:
    """Return the task on the data at a path, or on word problems. Raises `DataFault`; ImportError without the extra."""
    import math_verify  # noqa: F401  # so that an operator without it is told at the start

    if not argument:
        return MathTask("math", WordProblems.version, WordProblems())
    data = FileProblems(argument)
    return MathTask(f"math:{argument}", data.version, data, data.remarks)
