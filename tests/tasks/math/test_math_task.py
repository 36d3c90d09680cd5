"""The task on the operator's problems: posed, answered, and scored by Math-Verify."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from echo2.tasks.chat import Message
from echo2.tasks.hostile_answers import HOSTILE
from echo2.tasks.math.data_files import DataFault
from echo2.tasks.task import TaskFault, Transcript, begin_episode, prompt_of, replay
from tests.support.tokenizers import LETTERS

pytest.importorskip("math_verify", reason="needs the extra math")

from echo2.tasks.math import equality, math_task
from echo2.tasks.plugins import find

LIMIT = 2_000_000


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    rows = [{"problem": f"Half of {number}?", "answer": f"\\frac{{{number}}}{{2}}"} for number in range(1, 100)]
    path = tmp_path / "halves.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def reward(task: math_task.MathTask, said: str) -> float:
    tokens = [*LETTERS.encode(said), LETTERS.eos]
    episode = begin_episode(task, "train", 0, LETTERS)
    return replay(episode, Transcript(tokens, [len(tokens)]), ends=LETTERS.ends, limit=LIMIT).reward


def test_a_problem_is_posed_with_the_words_that_ask_for_a_box_and_its_own_answer_is_right(problems: Path) -> None:
    task = find(f"math:{problems}")
    assert isinstance(task, math_task.MathTask)
    prompt = LETTERS.decode(prompt_of(task, "train", 0, LETTERS))
    assert prompt.startswith("Half of ")
    assert prompt.endswith("Put the final answer into \\boxed{}.\n")
    assert reward(task, LETTERS.decode(list(task.demonstration("train", 0, LETTERS, 0, 0.0)))) == 1.0
    number = int(prompt.removeprefix("Half of ").partition("?")[0])
    assert reward(task, f"It is {number / 2}, so \\boxed{{{number / 2}}}") == 1.0
    assert reward(task, f"\\boxed{{{number}}}") == 0.0
    assert reward(task, "I do not know") == 0.0


class ChattingLetters:
    """Letters, with a template that names each message's role."""

    eos, ends, size = LETTERS.eos, LETTERS.ends, LETTERS.size
    encode, decode = LETTERS.encode, LETTERS.decode

    def pose(self, messages: Sequence[Message]) -> list[int]:
        return LETTERS.encode("".join(f"{one['role']}: {one['content']} " for one in messages))

    def follow(self, content: str) -> list[int]:
        return LETTERS.encode(content)


@pytest.mark.parametrize(
    ("query", "posed"),
    [("", "system: Be short. user: 2 + 3? "), ("?ask=In%20a%20box.", "system: Be short. user: 2 + 3?\nIn a box. ")],
)
def test_messages_are_posed_as_they_are_by_a_chat_template_alone(tmp_path: Path, query: str, posed: str) -> None:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2 + 3?"}]
    for name in ("train", "validation"):
        row = {"prompt": messages if name == "train" else "4?", "reward_model": {"ground_truth": ["5", "five"]}}
        (tmp_path / f"{name}.json").write_text(json.dumps([row]))
    task = math_task.task(f"{tmp_path}{query}")
    assert LETTERS.decode(prompt_of(task, "train", 0, ChattingLetters())) == posed
    with pytest.raises(TaskFault, match=r"its problems are messages, .* set run.template = chat"):
        prompt_of(task, "train", 0, LETTERS)
    assert reward(task, "\\boxed{5}") == 1.0
    assert reward(task, "\\boxed{6}") == 0.0
    assert task.remarks[0] == "train: 1 problem of 1 file (train.json)"


def test_data_in_a_relative_path_or_outside_the_split_is_refused(problems: Path) -> None:
    with pytest.raises(DataFault, match="name an absolute path"):
        math_task.task("halves.jsonl")
    task = math_task.task(str(problems))
    with pytest.raises(IndexError, match="is outside train"):
        task.episode("train", task.size("train"), LETTERS)


@pytest.mark.parametrize(("said", "equal"), [("0.5", True), (r"\frac{2}{4}", True), ("50", False), ("", False)])
def test_equal_answers_are_right_in_any_form(said: str, equal: bool) -> None:
    assert equality.is_equal(r"\frac{1}{2}", f"\\boxed{{{said}}}") is equal


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_no_hostile_answer_raises_or_is_right(name: str) -> None:
    before = time.process_time()
    assert equality.is_equal(r"\frac{3}{7}", HOSTILE[name]) is False
    assert time.process_time() - before < (1 + equality.SECOND_TRY) * equality.CPU_SECONDS + 1
