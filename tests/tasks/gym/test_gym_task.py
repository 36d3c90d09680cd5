"""Tasks of reasoning-gym: mixtures, splits and scores by a stand-in for the library; the library itself where it is
installed."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from echo2.tasks import plugins
from echo2.tasks.byte_text import ByteText
from echo2.tasks.check_pay import pay_faults
from echo2.tasks.check_probe import ask
from echo2.tasks.gym import gym_task
from echo2.tasks.gym.gym_task import GymTask, answer_in, mixture
from echo2.tasks.plugins import PluginFault
from tests.tasks.gym.sets_list import unlisted_task

TEXT = ByteText()


class Doubling:
    """A stand-in for a reasoning-gym set of one item, made from a seed."""

    def __init__(self, name: str, seed: int) -> None:
        self.number = seed % 500
        self.name = name

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"question": f"{self.name}: twice {self.number}?", "answer": str(2 * self.number)}

    def score_answer(self, answer: str, entry: Mapping[str, Any]) -> float:
        return 1.0 if answer == entry["answer"] else 7.0 if answer == "more" else 0.01


def toy(weights: dict[str, int]) -> GymTask:
    return GymTask("gym:toy", weights, Doubling)


def prompt(task: GymTask, split: Any, index: int) -> str:
    return TEXT.decode(list(task.episode(split, index, TEXT).prompt))


def test_no_question_is_in_both_splits_though_seeds_repeat() -> None:
    task = toy({"one": 1})
    train = {prompt(task, "train", index) for index in range(600)}
    heldout = {prompt(task, "heldout", index) for index in range(100)}
    assert train & heldout == set()
    assert len(train) > 250
    assert len(heldout) > 25


def test_a_mixture_keeps_its_weights_in_each_round() -> None:
    task = toy({"one": 3, "two": 1})
    assert sorted(task.set_at(index) for index in range(40, 44)) == ["one", "one", "one", "two"]


def test_the_answer_stands_behind_the_last_word_answer() -> None:
    assert answer_in("so it is 3.\nAnswer: 4\nAnswer:  12 \n") == "12"
    assert answer_in(" 12") == "12"
    assert len(answer_in("7" * 1_000_000)) == gym_task.MOST_ANSWER_CHARACTERS


def test_the_own_answer_succeeds_and_rewards_stay_between_0_and_1() -> None:
    task = toy({"one": 1})
    for said, reward in {"own": 1.0, "more": 1.0, "x": 0.01}.items():
        episode = task.episode("train", 5, TEXT)
        episode.reply(task.demonstration("train", 5, TEXT, 0, 0.0) if said == "own" else TEXT.encode(said))
        assert episode.score() == (reward, reward == 1.0)


def test_an_index_outside_the_split_is_an_error() -> None:
    with pytest.raises(IndexError, match="outside heldout"):
        toy({"one": 1}).episode("heldout", 1_000, TEXT)


@pytest.mark.parametrize(
    ("argument", "sentence"),
    {
        "a set that is not on the list": ("three", "'three' is not among the 2 sets that passed; these did: one, two"),
        "a set that is misspelt": (
            "onne",
            r"'onne' is not among the 2 sets that passed; did you mean one\? All are in ",
        ),
        "no set behind a comma": ("one,", "a set is missing in 'one,'"),
        "a set that did not pass": ("slow", "the set slow did not pass: bounded time"),
        "a set twice": ("one,one=2", "one stands twice"),
        "a weight of 0": ("one=0", "the weight '0' of one should be a whole number"),
        "no number": ("one=x", "the weight 'x' of one"),
        "no set": ("", "name a set or several"),
    }.values(),
)
def test_a_faulty_mixture_is_told(argument: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        mixture(argument, ["one", "two"], {"slow": "bounded time"})


def test_a_mixture_is_read() -> None:
    assert mixture("one=3,two", ["one", "two"], {}) == {"one": 3, "two": 1}


def test_the_list_names_its_version_and_no_set_twice() -> None:
    listed = json.loads(Path(gym_task.SETS).read_text())
    assert not set(listed["sets"]) & set(listed["refused"])
    assert "gsm_symbolic" in listed["sets"]


def test_sets_of_the_library_are_posed_and_accept_their_own_answers() -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra gym")
    name = "gym:chain_sum=2,gsm_symbolic"
    task = plugins.find(name)
    for index in range(6):
        episode = task.episode("heldout", index, TEXT)
        assert episode.reply(task.demonstration("heldout", index, TEXT, 0, 0.0)) is None
        assert episode.score() == (1.0, True)
    with pytest.raises(PluginFault, match="is not among the"):
        plugins.find("gym:composite")


UNFAIR = {
    "game_of_life_halting": "a word earns 1 on average",
    "game_of_life": "the commonest of its own answers earns",
    "circuit_logic": "the commonest of its own answers earns",
    "syllogism": "the commonest of its own answers earns",
    "tower_of_hanoi": "own answers do not succeed",
    "palindrome_partitioning": "own answers do not succeed",
}


@pytest.mark.parametrize(("name", "why"), UNFAIR.items())
def test_a_set_that_pays_for_anything_or_refuses_its_own_is_not_offered(name: str, why: str) -> None:
    listed = json.loads(Path(gym_task.SETS).read_text())
    assert name not in listed["sets"]
    assert listed["refused"][name].startswith("fair rewards: ")
    assert why in listed["refused"][name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["circuit_logic", "tower_of_hanoi", "gcd", "course_schedule"])
def test_the_check_of_rewards_says_so_of_the_library_itself(name: str) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra gym")
    task = unlisted_task(name)
    sentences = list(pay_faults(lambda question: ask(task, question), 1_000_000, 200))
    assert [UNFAIR[name] in sentence for sentence in sentences] == ([True] if name in UNFAIR else [])


def test_without_the_extra_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(PluginFault, match=r"task gym needs the extra gym .*: .* install .*\[gym\]"):
        plugins.find("gym:chain_sum")
