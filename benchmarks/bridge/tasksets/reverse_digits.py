"""A taskset of one turn: write digits in reverse."""

import random
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["ReverseDigitsTaskset"]


class ReverseDigitsData(vf.TaskData):
    """`answer`: the digits in reverse. `mistake`: the digits in their order."""

    answer: str
    mistake: str


class ReverseDigitsTask(vf.Task[ReverseDigitsData]):
    """The share of places that are right; less where the length is wrong."""

    @vf.reward(weight=1.0)
    async def places(self, trace: vf.Trace) -> float:
        said, answer = trace.last_reply, self.data.answer
        right = sum(one == other for one, other in zip(said, answer, strict=False))
        return right / max(len(said), len(answer))


class ReverseDigitsConfig(vf.TasksetConfig):
    num_tasks: int = 1000
    digits: int = 4


class ReverseDigitsTaskset(vf.Taskset[ReverseDigitsTask, ReverseDigitsConfig]):
    def load(self) -> Iterator[ReverseDigitsTask]:
        """Yield the rows, the same at any time."""
        chance = random.Random(0)
        for _ in range(self.config.num_tasks):
            digits = "".join(chance.choice("0123456789") for _ in range(self.config.digits))
            data = ReverseDigitsData(prompt=f"{digits}>", answer=digits[::-1], mistake=digits)
            yield ReverseDigitsTask(data, self.config.task)
