"""The tasks of docs/protocol/tasks.md: prompts, the environment's turns, scores."""

from functools import cache, partial
from hashlib import blake2b
from itertools import combinations

PAIRS = list(combinations(range(100), 2))
SUMS = [(small, large) for large in range(20) for small in range(large + 1)]
COUNTS = {("reverse", 1): (10_000, 10), ("add", 1): (10_000, 10), ("single_sum", 2): (210, 4), ("guess", 1): (4950, 10)}


@cache
def places(key: str, count: int) -> list[int]:
    kind = partial(blake2b, key=key.encode(), digest_size=16)
    return sorted(range(count), key=lambda number: kind(number.to_bytes(8, "little")).digest())


class Episode:
    """One attempt. `prompt`: as text. `reply` takes the text of a sampled turn."""

    def __init__(self, task: str, version: int, split: str, index: int) -> None:
        key, (count, share) = f"{task}/{version}", COUNTS[task, version]
        number = places(key, count)[index + (count // share if split == "train" else 0)]
        self.task, self._texts = task, list[str]()
        if task == "guess":
            self._low, self._high = PAIRS[number]
            text = f"{self._low}-{self._high}"
            drawn = int.from_bytes(blake2b(text.encode(), key=key.encode()).digest(), "little")
            self._secret = self._low + drawn % (self._high - self._low + 1)
            self.prompt = f"guess {text}>"
        elif task == "single_sum":
            a, b = SUMS[number][:: -1 if number % 2 else 1]
            self.prompt, self._answer = f"What is {a} plus {b}? Answer with a number only.\nAnswer:", str(a + b)
        elif task == "add":
            self.prompt, self._answer = f"{number // 100:02d}+{number % 100:02d}=", str(sum(divmod(number, 100)))
        else:
            self.prompt, self._answer = f"{number:04d}>", f"{number:04d}"[::-1]

    def reply(self, said: str) -> str | None:
        """Return the environment's turn; None: the episode has ended."""
        said = said.strip(" ")
        if self.task == "guess" and not (said.isascii() and said.isdigit() and len(said) <= 2):
            return None
        self._texts.append(said)
        if self.task != "guess" or int(said) == self._secret or len(self._texts) == 2:
            return None
        return "higher>" if self._secret > int(said) else "lower>"

    def score(self) -> tuple[float, bool]:
        """Return reward and success."""
        if not self._texts:
            return 0.0, False
        said = self._texts[-1]
        if self.task == "guess":
            off = abs(int(said) - self._secret)
            return (0.2 * max(0.0, 1 - off / (self._high - self._low)), False) if off else (1.0, True)
        right = sum(x == y for x, y in zip(said, self._answer, strict=False))
        longer = max(len(said), len(self._answer))
        return (1.0, True) if said == self._answer else (0.2 * right / longer, False)
