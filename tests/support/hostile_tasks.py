"""An environment's process with tasks that misbehave, in the place of coordinator.environments.environment_host."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from coordinator.environments import environment_host
from tasks import registry
from tasks.task import Score, Split, Tokenizer


def right(text: str) -> float:
    return float("a" in text)


def takes_a_while(text: str) -> float:
    time.sleep(0.5)
    return 1.0


def connects(text: str) -> float:
    socket.create_connection(("127.0.0.1", 9), timeout=1)
    return 1.0


def forks(text: str) -> float:
    subprocess.run(["true"], check=True)
    return 1.0


def sees(text: str) -> float:
    raise RuntimeError(",".join(sorted(os.environ)) + " " + ",".join(os.listdir(".")))


def fills_the_disk(text: str) -> float:
    with open("large", "wb", buffering=0) as file:
        file.seek(64 << 20)  # the bytes before stay a hole: a busy disk would take longer than the limit of time
        file.write(bytes(1 << 20))
    return 1.0


def prints(text: str) -> float:
    print("x" * (2 << 20), flush=True)
    time.sleep(60)
    return 1.0


def hangs(text: str) -> float:
    while True:
        pass


def allocates(text: str) -> float:
    return float(len(bytearray(8 << 30)))


def threads(text: str) -> float:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(float, [1, 2]))


SCORES: dict[str, Callable[[str], float]] = {
    "right": right,
    "raises": lambda text: 1 / 0,
    "is no number": lambda text: float("nan"),
    "returns a word": lambda text: "much",  # type: ignore[arg-type, return-value]
    "recurses": lambda text: repr(eval("[" * 50_000 + "]" * 50_000)) and 1.0,
    "ends": lambda text: sys.exit(3),
    "dies": lambda text: os._exit(4),
    "takes a while": takes_a_while,
    "gets ready": right,
    "hangs": hangs,
    "allocates": allocates,
    "prints": prints,
    "fills the disk": fills_the_disk,
    "connects": connects,
    "forks": forks,
    "sees": sees,
    "threads": threads,
}


class _Attempt:
    def __init__(self, rule: Callable[[str], float], text: Tokenizer) -> None:
        self.prompt = text.encode("a=")
        self._rule, self._text, self._said = rule, text, ""

    def reply(self, sampled: Sequence[int]) -> None:
        self._said = self._text.decode(sampled)

    def score(self) -> Score:
        return Score(self._rule(self._said), True)


class ScoredBy:
    """A task whose score misbehaves as its name says."""

    is_ready = False

    def __init__(self, name: str) -> None:
        self.name, self.version = name, 1

    def size(self, split: Split) -> int:
        return 10

    def ready(self, text: Tokenizer) -> None:
        if self.name == "gets ready":
            time.sleep(1.5)
            self.is_ready = True

    def episode(self, split: Split, index: int, text: Tokenizer) -> _Attempt:
        if self.name == "gets ready" and not self.is_ready:
            raise RuntimeError("not ready")
        return _Attempt(SCORES[self.name], text)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        raise NotImplementedError


def counts(said: list[str], left: int) -> str:
    return f"{len(said)}{left}"


def depends_on_its_process(said: list[str], left: int) -> str:
    return str(os.getpid())


def never_answers(said: list[str], left: int) -> str:
    while True:
        pass


def ends_with(reward: object) -> Callable[[list[str], int], str]:
    """Return answers after which the episode is scored with a reward that is none."""

    def answers(said: list[str], left: int) -> str:
        return f"{left}"

    answers.reward = reward  # type: ignore[attr-defined]
    return answers


ANSWERS: dict[str, Callable[[list[str], int], str]] = {
    "counts": counts,
    "depends on its process": depends_on_its_process,
    "never answers": never_answers,
    "answers nothing": lambda said, left: "",
    "breaks": lambda said, left: str(1 / 0),
    "answers megabytes": lambda said, left: "7" * 12_000_000,
    "ends without a number": ends_with(float("nan")),
    "ends without a reward": ends_with(None),
}


class _Talk:
    def __init__(self, rule: Callable[[list[str], int], str], text: Tokenizer) -> None:
        self.prompt = text.encode("a=")
        self._rule, self._text, self._said = rule, text, list[str]()

    def reply(self, sampled: Sequence[int]) -> Sequence[int] | None:
        self._said.append(self._text.decode(sampled))
        left = 3 - len(self._said)
        return self._text.encode(self._rule(self._said, left)) if left else None

    def score(self) -> Score:
        return Score(getattr(self._rule, "reward", float(len("".join(self._said)))), True)


class AnsweredBy:
    """A task of three turns whose answers misbehave as its name says."""

    turns = 3

    def __init__(self, name: str) -> None:
        self.name, self.version = name, 1

    def size(self, split: Split) -> int:
        return 10

    def episode(self, split: Split, index: int, text: Tokenizer) -> _Talk:
        return _Talk(ANSWERS[self.name], text)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        raise NotImplementedError


if __name__ == "__main__":
    for answer in ANSWERS:
        registry.register(AnsweredBy(answer))
    for score in SCORES:
        registry.register(ScoredBy(score))
    environment_host.main()
