"""Tasks for the kit of tasks/check.py: one that passes, and one for each fault."""

import os
import random
import re
import time
from collections.abc import Sequence

import psutil

from echo2.tasks.task import Score, Split, Tokenizer

CHANCE = random.SystemRandom()


class _Answered:
    def __init__(self, task: "Faulty", prompt: str, index: int, text: Tokenizer) -> None:
        self.prompt: Sequence[int] = text.encode(prompt)
        self._task, self._index, self._text, self._said = task, index, text, ""

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        self._said = self._text.decode(sampled)
        if self._task.fault == "replies differ":
            return self._text.encode(str(CHANCE.random()))
        return self._text.encode("again>") if self._task.fault == "endless" else None

    def score(self) -> Score:
        return self._task.grade(self._said, self._index)


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
        return _Answered(self, self.prompt(split, index), index, text)

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

    def answer(self, index: int) -> str:
        return "7" if self.fault == "one answer" else str(7 * index)

    def grade(self, said: str, index: int) -> Score:
        """Return 1 for the right answer, and little for others."""
        right = said == self.answer(index)
        if self.fault == "not a number" or (self.fault == "refuses its own" and index % 8 == 0):
            right = False
        if self.fault == "pays anything" or (self.fault == "pays any number" and said.isdecimal()):
            right = True
        return Score(1.0 if right else self.reward(said) / 10, right)

    def reward(self, said: str) -> float:
        if self.fault == "chance":
            return CHANCE.random()
        if self.fault == "load":
            beside = psutil.Process().parent()
            return float(beside is not None and any("while True: pass" in one.cmdline() for one in beside.children()))
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
        return [*text.encode(self.answer(index)), text.eos]


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

    def __init__(self, fault: str, prompt: str, answer: str, text: Tokenizer) -> None:
        self.prompt: Sequence[int] = text.encode(prompt)
        self._fault, self._answer, self._text, self._turns = fault, answer, text, 0
        self._said = ""

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        self._turns += 1
        self._said = said = self._text.decode(sampled)
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
        right = self._said == self._answer or self._fault == "pays anything"
        return Score(float(right), right)


class Turns(Faulty):
    """A task of several turns."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.name = f"turns:{fault}"

    def episode(self, split: Split, index: int, text: Tokenizer) -> _Counting:  # type: ignore[override]
        return _Counting(self.fault, self.prompt(split, index), self.answer(index), text)


def turns(argument: str) -> Turns:
    return Turns(argument)
