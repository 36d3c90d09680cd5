"""Tasks of reasoning-gym: `gym:NAME`, or a mixture `gym:NAME,NAME=WEIGHT`.

Rules
1. Only sets of the list beside this module (sets.json) are made, with the version of reasoning-gym that it names: those
   passed the kit of tasks/check.py. `python -m tests.tasks.gym.sets_list` makes the list.
2. Index i of a split is an item of one set of the mixture, chosen by weight: of each `sum of weights` indices in a row,
   a set has as many as its weight. All sets have their usual settings.
3. Split and index determine the seed: train and heldout items never share one. Two seeds may give one question, so an
   item of heldout is any item whose question's hash is in the tenth that is held out, and of train any other: the
   first of `SEED_TRIES` seeds that gives one. Which one it is, is remembered for the last `REMEMBERED_ITEMS` items: a
   held-out one takes ten tries on average.
4. The answer is the text after the last "Answer:", or else the whole completion, without blanks around it, cut at
   `MOST_ANSWER_CHARACTERS` characters. The reward is that of the set's own `score_answer`, between 0 and 1; 1 is
   success.
"""

import difflib
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Final

from echo2.tasks.chat import tokens_of_prompt
from echo2.tasks.measure import Measure
from echo2.tasks.task import Score, Split, Tokenizer

SETS: Final = Path(__file__).parent / "sets.json"
LIBRARY: Final = "reasoning-gym"
HELDOUT_TENTHS: Final = 1
SIZE: Final[Mapping[Split, int]] = {"train": 1_000_000, "heldout": 1_000}
SEED_TRIES: Final = 400
REMEMBERED_ITEMS: Final = 4_096
MOST_ANSWER_CHARACTERS: Final = 4_000
MOST_WEIGHT: Final = 1_000
ANSWER_REQUEST: Final = "\nGive the result after the word Answer.\nAnswer:"

Make = Callable[[int], Any]
"""Seed -> a reasoning-gym set of one item."""


class _GymEpisode:
    """An episode of one sampled turn."""

    def __init__(self, item: Mapping[str, Any], grade: Callable[[str], float], text: Tokenizer) -> None:
        self._item, self._grade, self._text = item, grade, text
        self._said = ""

    @cached_property
    def prompt(self) -> Sequence[int]:
        """Token ids of the prompt, encoded at first use: scoring does not need them."""
        return tokens_of_prompt(self._text, [{"role": "user", "content": f"{self._item['question']}{ANSWER_REQUEST}"}])

    def reply(self, sampled: Sequence[int]) -> None:
        self._said = self._text.decode(sampled)

    def score(self) -> Score:
        reward = min(1.0, max(0.0, self._grade(answer_in(self._said))))
        return Score(reward, reward >= 1.0)


def answer_in(said: str) -> str:
    """Return the answer that a completion gives (rule 4)."""
    return said.rpartition("Answer:")[2].strip()[:MOST_ANSWER_CHARACTERS]


def is_heldout(question: str) -> bool:
    """Tell whether a question belongs to the held-out tenth."""
    digest = hashlib.blake2b(question.encode(errors="replace"), key=b"echo2/gym", digest_size=8).digest()
    return int.from_bytes(digest, "little") % 10 < HELDOUT_TENTHS


class GymTask:
    """A mixture of sets. `name`: the same as in run.task. `weights`: set -> weight."""

    version = 1
    measure = Measure()
    """A set of which some are right by chance is still at 0 where a policy answers in no form."""

    def __init__(self, name: str, weights: Mapping[str, int], make: Callable[[str, int], Any]) -> None:
        """`make`: returns a set by its name and seed, of which item 0 is used."""
        self.name, self._make = name, make
        self._places = [one for one in sorted(weights) for _ in range(weights[one])]
        Random(0).shuffle(self._places)
        self._tries: dict[tuple[Split, int], int] = {}
        """By split and index, the number of the try that gave the item (rule 3)."""

    def size(self, split: Split) -> int:
        """Return the number of indices of a split."""
        return SIZE[split]

    def set_at(self, index: int) -> str:
        """Return the set of an index (rule 2)."""
        return self._places[index % len(self._places)]

    def episode(self, split: Split, index: int, text: Tokenizer) -> _GymEpisode:
        """Return an episode. Raises IndexError outside the split."""
        item, score_answer = self._item_and_grader(split, index)
        return _GymEpisode(item, lambda answer: float(score_answer(answer, item)), text)

    def demonstration(
        self, split: Split, index: int, text: Tokenizer, seed: int, noise: float, slip: float = 0.0
    ) -> Sequence[int]:
        """Return the set's own answer; it has no mistakes to show."""
        item = self.item(split, index)
        return [*text.encode(f" {item['answer']}"), text.eos]

    def item(self, split: Split, index: int) -> Mapping[str, Any]:
        """Return an item: question, answer and the library's facts about it. Raises IndexError outside the split."""
        return self._item_and_grader(split, index)[0]

    def _item_and_grader(self, split: Split, index: int) -> tuple[Mapping[str, Any], Callable[[str, Any], float]]:
        """Return an item and its set's grader (rule 3)."""
        if not 0 <= index < SIZE[split]:
            raise IndexError(f"{self.name}: index {index} is outside {split}, which has {SIZE[split]} prompts")
        name = self.set_at(index)
        for number in range(self._tries.get((split, index), 0), SEED_TRIES):
            digest = hashlib.blake2b(f"{name}/{split}/{index}/{number}".encode(), digest_size=4).digest()
            items = self._make(name, int.from_bytes(digest, "little") >> 1)
            item = items[0]
            if is_heldout(item["question"]) == (split == "heldout"):
                self._remember(split, index, number)
                return item, items.score_answer
        raise LookupError(f"{name}: none of {SEED_TRIES} seeds gives a question of {split}")

    def _remember(self, split: Split, index: int, number: int) -> None:
        self._tries[split, index] = number
        if len(self._tries) > REMEMBERED_ITEMS:
            del self._tries[next(iter(self._tries))]


def task(argument: str) -> GymTask:
    """Return the mixture that an argument names. Raises ValueError, whose message says what is wrong; ImportError
    without the extra."""
    import reasoning_gym

    passed = json.loads(SETS.read_text())
    installed = importlib.metadata.version(LIBRARY)
    if installed != passed["version"]:
        raise ValueError(f"{LIBRARY} {installed} is installed, and the list of sets is for {passed['version']}")
    weights = mixture(argument, passed["sets"], passed["refused"])
    return GymTask(f"gym:{argument}", weights, lambda name, seed: reasoning_gym.create_dataset(name, seed=seed, size=1))


def mixture(argument: str, passed: Sequence[str], refused: Mapping[str, str]) -> dict[str, int]:
    """Return set -> weight. `refused`: set -> why it did not pass. Raises ValueError."""
    if not argument:
        raise ValueError("name a set or several, as in gym:chain_sum or gym:chain_sum=3,gsm_symbolic")
    weights: dict[str, int] = {}
    for part in argument.split(","):
        name, equals, weight = part.partition("=")
        if name in refused:
            raise ValueError(f"the set {name} did not pass: {refused[name]}")
        if not name:
            raise ValueError(f"a set is missing in {argument!r}: write names with commas between them")
        if name not in passed:
            near = difflib.get_close_matches(name, passed, n=1)
            hint = f"did you mean {near[0]}? All are" if near else f"these did: {', '.join(passed)}; all stand"
            raise ValueError(f"{name!r} is not among the {len(passed)} sets that passed; {hint} in {SETS}")
        if name in weights:
            raise ValueError(f"{name} stands twice in {argument}")
        if equals and not (weight.isascii() and weight.isdigit() and 1 <= int(weight) <= MOST_WEIGHT):
            raise ValueError(f"the weight {weight!r} of {name} should be a whole number of 1 to {MOST_WEIGHT}")
        weights[name] = int(weight) if equals else 1
    return weights
