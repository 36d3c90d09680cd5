"""Tasks for the kit of tasks/check.py: one that passes, and one for each fault."""

import os
import random
import re
import time
from collections.abc import Sequence

from echo2.tasks.task import Score, Split, Tokenizer

CHANCE = random.SystemRandom()


class _Answered:
    def __init__(self, task: "Faulty", prompt: str, text: Tokenizer) -> None:
        self.prompt: Sequence[int] = text.encode(prompt)
        self._task, self._text, self._said = task, text, ""

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        self._said = self._text.decode(sampled)
        if self._task.fault == "replies differ":
            return self._text.encode(str(CHANCE.random()))
        return self._text.encode("again>") if self._task.fault == "endless" else None

    def score(self) -> Score:
        return Score(self._task.reward(self._said), False)


class Faulty:
    """A task whose argument names its fault."""

    version = 1

    def __init__(self, fault: str) -> None:
        self.fault, self.name = fault, f"faulty:{fault}"
        self._asked = 0

    def size(self, split: Split) -> int:
        return 0 if self.fault == "no heldout" and split == "heldout" else 20

    def episode(self, split: Split, index: int, text: Tokenizer) -> _Answered:
        self._asked += 1
        return _Answered(self, self.prompt(split, index), text)

    def prompt(self, split: Split, index: int) -> str:
        if self.fault == "hangs at a prompt" and index == 7:
            time.sleep(60)
        if self.fault == "no prompt" or (self.fault == "raises at a prompt" and index == 7):
            raise KeyError("x")
        words = {
            "hash seed": " ".join({"one", "two", "three", "four", "five", "six"}),
            "clock": str(time.time_ns()),
            "order of calls": str(self._asked),
            "process": str(os.getpid()),
        }.get(self.fault, "")
        shared = self.fault == "both splits" and index == 3
        return f"{'' if shared else split} {index} {words}"

    def reward(self, said: str) -> float:
        if self.fault == "chance":
            return CHANCE.random()
        if self.fault == "not a number":
            return float("nan")
        if self.fault == "raises":
            return float(said)
        if self.fault == "regex" and said[:2] == "aa" and len(said) > 100_000:
            return float(bool(re.fullmatch(r"(\w+)+!?\?", said[:40])))
        if self.fault == "dies" and said.startswith("(("):
            os._exit(7)
        return float(len(said) % 7)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        if self.fault == "no demonstration":
            raise NotImplementedError
        return [*text.encode("7"), text.eos]


def faulty(argument: str) -> Faulty:
    return Faulty(argument)


def raises(argument: str) -> Faulty:
    raise ValueError(f"no data in {argument}")


def hungry(argument: str) -> Faulty:
    raise MemoryError


def number(argument: str) -> int:
    return 5


def misnamed(argument: str) -> Faulty:
    return Faulty("another")


class _Unversioned(Faulty):
    version = "one"  # type: ignore[assignment]


def unversioned(argument: str) -> Faulty:
    task = _Unversioned(argument)
    task.name = f"unversioned:{argument}"
    return task


class _Counting:
    """An episode of two sampled turns."""

    def __init__(self, fault: str, prompt: str, text: Tokenizer) -> None:
        self.prompt: Sequence[int] = text.encode(prompt)
        self._fault, self._text, self._turns = fault, text, 0

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        self._turns += 1
        said = self._text.decode(sampled)
        if self._turns == 2:
            if self._fault == "raises late" and said.startswith("(("):
                raise RecursionError("brackets")
            if self._fault == "dies late" and said.startswith("(("):
                os._exit(7)
            if self._fault == "endless late" and said == "perhaps":
                self._turns = 1
        words = "again" if self._fault != "hash seed late" else " ".join({"one", "two", "three", "four", "five"})
        return None if self._turns == 2 else self._text.encode(f"{words}>")

    def score(self) -> Score:
        return Score(1.0, True)


class Turns(Faulty):
    """A task of several turns."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.name = f"turns:{fault}"

    def episode(self, split: Split, index: int, text: Tokenizer) -> _Counting:  # type: ignore[override]
        return _Counting(self.fault, self.prompt(split, index), text)


def turns(argument: str) -> Turns:
    return Turns(argument)
