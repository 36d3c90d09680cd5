"""gym, math and poker with prompts and turns by a model's own chat template, in the form of each family."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from echo2.coordinator.run import chat_settings, model_folder
from echo2.coordinator.settings.training_config import RunSection
from echo2.protocol.task_kinds import SERVED_KIND
from echo2.tasks.chat import ChatTokenizer
from echo2.tasks.gym.gym_task import GymTask
from echo2.tasks.plugins import find
from echo2.tasks.task import Task, Transcript, begin_episode, prompt_of, replay
from echo2.tasks.tokenizer import load
from tests.support.chat_families import FAMILIES, Family, tokenizer_of, write_folder

LIMIT = 200


class Written:
    """A family's tokenizer with its template, and texts read back with their special tokens."""

    def __init__(self, folder: Path, name: str) -> None:
        self.family: Family = FAMILIES[name]
        model = write_folder(folder, self.family)
        facts = model_folder.facts(model)
        settings = chat_settings.settings_of(model, RunSection(template="chat"), SERVED_KIND)
        assert settings is not None
        self.text = ChatTokenizer(load(model / "tokenizer.json", facts.eos, *facts.other_ends), settings)
        self._library = tokenizer_of(self.family)

    def shown(self, tokens: Sequence[int]) -> str:
        return str(self._library.decode(list(tokens), skip_special_tokens=False))

    def said(self, answer: str, end: int | None = None) -> list[int]:
        return [*self.text.encode(answer), self.text.eos if end is None else end]

    def success(self, task: Task, sampled: list[int]) -> bool:
        episode = begin_episode(task, "train", 0, self.text)
        return replay(episode, Transcript(sampled, [len(sampled)]), ends=self.text.ends, limit=LIMIT).success


@pytest.fixture(params=FAMILIES)
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    return Written(tmp_path / "model", request.param)


class Tripling:
    """A stand-in for a reasoning-gym set of one item, made from a seed."""

    def __init__(self, name: str, seed: int) -> None:
        self._number = seed % 500

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"question": f"three times {self._number}?", "answer": str(3 * self._number)}

    def score_answer(self, answer: str, entry: Mapping[str, Any]) -> float:
        return float(answer == entry["answer"])


def test_a_gym_question_is_a_users_message_and_its_answer_may_end_with_each_end(written: Written) -> None:
    task = GymTask("gym:toy", {"one": 1}, Tripling)
    prompt = written.shown(prompt_of(task, "train", 0, written.text))
    assert "three times " in prompt
    assert prompt.endswith(written.family.suffix.partition("HI")[2])
    right = str(3 * int(prompt.partition("three times ")[2].partition("?")[0]))
    for end in written.text.ends:
        assert written.success(task, written.said(f"Let me see.\nAnswer: {right}", end))
        assert not written.success(task, written.said(f"Answer: {right}1", end))


def test_a_set_of_the_library_is_answered_behind_the_template(written: Written) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra gym")
    task = find("gym:chain_sum")
    assert written.shown(prompt_of(task, "train", 0, written.text)).endswith(written.family.suffix.partition("HI")[2])
    right = [*task.demonstration("train", 0, written.text, 0, 0.0)]
    assert written.success(task, right)


def test_a_problem_of_ones_own_is_a_users_message(written: Written, tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="needs the extra math")
    rows = [{"problem": f"{number} + 1?", "answer": str(number + 1)} for number in range(200)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = find(f"math:{tmp_path / 'sums.jsonl'}")
    prompt = written.shown(prompt_of(task, "train", 0, written.text))
    assert prompt.endswith(written.family.suffix.partition("HI")[2])
    number = int(prompt.partition(" + 1?")[0].split("\n")[-1].split(">")[-1])
    for end in written.text.ends:
        assert written.success(task, written.said(f"It is \\boxed{{{number + 1}}}.", end))
    assert not written.success(task, written.said(f"\\boxed{{{number}}}"))


def test_poker_is_a_conversation_and_its_situations_are_measured_as_it_goes(written: Written) -> None:
    for library in ("pokerkit", "pyspiel"):
        pytest.importorskip(library, reason="needs the extra poker")
    from echo2.tasks.poker.poker_task import PokerTask, hand_number
    from echo2.tasks.poker.situation import tokens_before

    task = find("poker:leduc")
    assert isinstance(task, PokerTask)
    suffix, before_answer = written.family.suffix, written.family.suffix.partition("HI")[2]
    longest = 0
    for index in range(20):
        episode = task.episode("train", index, written.text)
        seen = list(episode.prompt)
        assert written.shown(seen).endswith(before_answer)
        while True:
            assert seen == tokens_before(hand_number("train", index), episode.situation, written.text)
            sampled = written.said("c")
            given = episode.reply(sampled)
            if given is None:
                break
            text = written.shown(given)
            start, end = suffix.split("HI")
            assert text.startswith(start)
            assert text.endswith(end)
            seen += [*sampled, *given]
            longest = max(longest, len(seen))
    assert longest > len(task.episode("train", 0, written.text).prompt)
