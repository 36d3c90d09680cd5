"""Tasksets in verifiers' own environment server, in the Python that `make verifiers` makes.

Skipped without it. Each test starts a server, which takes seconds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.chat import PLAIN, ChatSettings, ChatTokenizer
from tasks.task import Score, TaskFault, begun, left, prompt_of
from tasks.tokenizer import EOS, FileTokenizer, char_tokenizer
from tasks.verifiers import verifiers_task
from tasks.verifiers.taskset_file import USUAL_PYTHON, TasksetFault
from tasks.verifiers.verifiers_task import VerifiersTask
from tests.support.paths import ROOT

pytestmark = [
    pytest.mark.skipif(not USUAL_PYTHON.exists(), reason="there is no .venv-verifiers: make test-verifiers"),
    pytest.mark.slow,
]
TEXT = FileTokenizer(char_tokenizer(), EOS)
TASKSETS = ROOT / "tasks/verifiers/tasksets"
REWRITING = """
import verifiers.v1 as vf
from verifiers.v1.types import UserMessage
__all__ = ["ATaskset", "AEnv"]
class AData(vf.TaskData):
    pass
class ATask(vf.Task[AData]):
    @vf.reward(weight=1.0)
    async def reward(self, trace: vf.Trace) -> float:
        {reward}
class AConfig(vf.TasksetConfig):
    pass
class ATaskset(vf.Taskset[ATask, AConfig]):
    def load(self):
        for number in range({rows}):
            yield ATask(AData(prompt=f"say {{number}}>"), self.config.task)
class AEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig({agent})
class AEnv(vf.Env[AEnvConfig]):
    async def run(self, task, agents):
        {run}
"""
PLAYED = "async with agents.player.interaction(task) as interaction: await interaction.turn()"


class Opened:
    """Opens tasks, and closes their servers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tasks = list[VerifiersTask]()

    def task(self, taskset: str, *more: str) -> VerifiersTask:
        path = self._folder / f"{taskset}.toml"
        places = [str(TASKSETS), str(self._folder)]
        path.write_text("\n".join([f"path = {places}", "seconds = 20.0", *more, "[env]", f'taskset.id = "{taskset}"']))
        self._tasks.append(verifiers_task.task(str(path)))
        return self._tasks[-1]

    def written(self, **parts: Any) -> VerifiersTask:
        usual = {"reward": "return 1.0", "rows": 100, "agent": "", "run": PLAYED}
        (self._folder / "a_taskset.py").write_text(REWRITING.format(**{**usual, **parts}))
        return self.task("a-taskset")

    def close(self) -> None:
        for task in self._tasks:
            task.close()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(tmp_path)
    yield opened
    opened.close()


def said(text: str) -> list[int]:
    return [*TEXT.encode(text), EOS]


def test_a_taskset_of_one_turn(opened: Opened) -> None:
    task = opened.task("reverse-digits")
    prompt = TEXT.decode(prompt_of(task, "train", 0, TEXT))
    digits = prompt.removesuffix(">")
    right = task.demonstration("train", 0, TEXT, 0, 0.0)
    assert TEXT.decode(right) == digits[::-1]
    episode = begun(task, "train", 0, TEXT)
    assert episode.reply(right) is None
    assert episode.score() == Score(1.0, True)
    other = begun(task, "train", 0, TEXT)
    assert other.reply(TEXT.encode(digits[::-1][:3])) is None  # cut: no end token
    assert other.score() == Score(0.75, False)


def test_a_taskset_of_several_turns(opened: Opened) -> None:
    task = opened.task("guess-digit")
    prompt = TEXT.decode(prompt_of(task, "train", 1, TEXT))
    digit = 3 * int(prompt.removeprefix("guess ").removesuffix(">")) % 10
    wrong = (digit + 1) % 10
    hint = "lower>" if wrong > digit else "higher>"
    for guesses, reward in (([digit], 1.0), ([wrong, digit], 0.75), ([wrong, wrong, digit], 0.5), ([wrong] * 3, 0.0)):
        episode = begun(task, "train", 1, TEXT)
        for guess in guesses[:-1]:
            given = episode.reply(said(str(guess)))
            assert given is not None
            assert TEXT.decode(given) == hint
        assert episode.reply(said(str(guesses[-1]))) is None
        assert episode.score() == Score(reward, reward == 1.0)
        left(episode)


def test_a_turn_at_the_limit_ends_the_rollout(opened: Opened) -> None:
    task = opened.task("guess-digit")
    episode = begun(task, "train", 1, TEXT)
    assert episode.reply(said("x")) is not None
    assert episode.score() == Score(0.0, False)
    cut = begun(task, "train", 1, TEXT)
    assert cut.reply(TEXT.encode("x")) is None
    assert cut.score() == Score(0.0, False)


def test_rows_and_settings_tell_versions_apart(opened: Opened) -> None:
    first, again = opened.task("reverse-digits"), opened.task("reverse-digits")
    fewer = opened.task("reverse-digits", "rows = 500")
    assert first.version == again.version != fewer.version
    assert first.size("train") > fewer.size("train") > 0
    assert fewer.size("heldout") > 0


@pytest.mark.parametrize(
    ("parts", "reason"),
    {
        "an error": ({"run": "raise KeyError('x')"}, "KeyError"),
        "no call to the model": ({"run": "return None"}, "ran no agent"),
        "another temperature": ({"agent": "sampling={'temperature': 0.5}"}, "temperature 1 and top-p 1 alone"),
        "a limit of its own": ({"agent": "sampling={'max_tokens': 3}"}, "the sampling parameter max_tokens"),
    }.values(),
)
def test_a_taskset_that_does_not_fit_is_told_at_its_first_prompt(
    opened: Opened, parts: dict[str, str], reason: str
) -> None:
    with pytest.raises(TaskFault, match=reason):
        prompt_of(opened.written(**parts), "train", 0, TEXT)


@pytest.mark.parametrize(
    ("reward", "reason"), [("raise ValueError('no')", "ValueError: no"), ("return 'much'", "much")]
)
def test_a_reward_that_raises_or_is_no_number_is_no_score(opened: Opened, reward: str, reason: str) -> None:
    episode = begun(opened.written(reward=reward), "train", 0, TEXT)
    with pytest.raises(TaskFault, match=reason):
        episode.reply(said("5"))


@pytest.mark.parametrize(
    ("parts", "reason"),
    {
        "a container": ({"agent": "harness={'id': 'claude_code'}"}, "needs a container|sandbox"),
        "a sandbox": ({"agent": "runtime={'type': 'docker'}"}, "needs a sandbox of the kind docker"),
        "too few rows": ({"rows": 1}, "leave none for the split"),
    }.values(),
)
def test_a_taskset_that_cannot_run_here_is_refused(opened: Opened, parts: dict[str, Any], reason: str) -> None:
    with pytest.raises(TasksetFault, match=reason):
        opened.written(**parts)


def test_a_taskset_that_is_missing_is_refused(opened: Opened) -> None:
    with pytest.raises(TasksetFault, match="not found"):
        opened.task("nobody-has-this")


def test_another_version_of_verifiers_is_refused(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.verifiers.taskset_file.VERSION", "0.3.9")
    with pytest.raises(TasksetFault, match=r"works with 0\.3\.9 alone"):
        opened.task("reverse-digits")


def test_with_a_chat_template_conversations_are_those_of_the_run(opened: Opened) -> None:
    template = PLAIN.replace("message.role | capitalize", "message.role").replace("Assistant:", "assistant:")
    text = ChatTokenizer(TEXT, ChatSettings(template=template.replace(": {{", "- {{").replace("t:", "t-")))
    task = opened.task("guess-digit")
    prompt = prompt_of(task, "train", 1, text)
    question = TEXT.decode(prompt).removeprefix("user- ").removesuffix("\n\nassistant-")
    assert prompt == text.pose([{"role": "user", "content": question}])
    digit = 3 * int(question.removeprefix("guess ").removesuffix(">")) % 10
    episode = begun(task, "train", 1, text)
    assert episode.reply(said(str((digit + 1) % 10))) in (text.follow("lower>"), text.follow("higher>"))
