"""Tasksets in verifiers' own environment server, in the Python that `make verifiers` makes.

Skipped without it. Each test starts a server, which takes seconds."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from echo2.coordinator.environments.environment import Environment, HostedEpisode
from echo2.coordinator.environments.limits import Limits
from echo2.coordinator.environments.messages import OpenTask
from echo2.coordinator.environments.task_host import EpisodeLost
from echo2.tasks import check
from echo2.tasks.chat import PLAIN_TEMPLATE, ChatSettings, ChatTokenizer
from echo2.tasks.check import Extent
from echo2.tasks.task import Score, TaskFault, begin_episode, leave_episode, prompt_of, reply_to_episode
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, FileTokenizer, char_tokenizer
from echo2.tasks.verifiers import verifiers_task
from echo2.tasks.verifiers.taskset_file import TasksetFault, usual_python
from echo2.tasks.verifiers.verifiers_task import VerifiersTask
from tests.support.paths import ROOT

pytestmark = [
    pytest.mark.skipif(not usual_python().exists(), reason="there is no .venv-verifiers: make test-verifiers"),
    pytest.mark.slow,
]
TEXT = FileTokenizer(char_tokenizer(), EOS)
TASKSETS = ROOT / "benchmarks/bridge/tasksets"
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
ANSWERED = """async with agents.player.interaction(task) as interaction:
            said = (await interaction.turn()).last_reply.strip()
            if said == "9":
                await __import__("asyncio").sleep(3600)
            if said == "7":
                __import__("time").sleep(3600)
            await interaction.turn({answer})"""
"""An environment that never answers a 9, and computes for ever on a 7."""


class Opened:
    """Opens tasks, and closes their servers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tasks = list[VerifiersTask]()

    def file(self, taskset: str, *more: str, seconds: float = 20.0) -> Path:
        path = self._folder / f"{taskset}.toml"
        places = [str(TASKSETS), str(self._folder)]
        settings = [f"path = {places}", f"seconds = {seconds}", *more, "[env]", f'taskset.id = "{taskset}"']
        path.write_text("\n".join(settings))
        return path

    def task(self, taskset: str, *more: str, seconds: float = 20.0) -> VerifiersTask:
        self._tasks.append(verifiers_task.task(str(self.file(taskset, *more, seconds=seconds))))
        return self._tasks[-1]

    def written(self, **parts: Any) -> VerifiersTask:
        self.source(**parts)
        return self.task("a-taskset")

    def source(self, **parts: Any) -> Path:
        usual = {"reward": "return 1.0", "rows": 100, "agent": "", "run": PLAYED}
        (self._folder / "a_taskset.py").write_text(REWRITING.format(**{**usual, **parts}))
        return self.file("a-taskset")

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
    episode = begin_episode(task, "train", 0, TEXT)
    assert episode.reply(right) is None
    assert episode.score() == Score(1.0, True)
    other = begin_episode(task, "train", 0, TEXT)
    assert other.reply(TEXT.encode(digits[::-1][:3])) is None  # cut: no end token
    assert other.score() == Score(0.75, False)


def test_a_taskset_of_several_turns(opened: Opened) -> None:
    task = opened.task("guess-digit")
    prompt = TEXT.decode(prompt_of(task, "train", 1, TEXT))
    digit = 3 * int(prompt.removeprefix("guess ").removesuffix(">")) % 10
    wrong = (digit + 1) % 10
    hint = "lower>" if wrong > digit else "higher>"
    for guesses, reward in (([digit], 1.0), ([wrong, digit], 0.75), ([wrong, wrong, digit], 0.5), ([wrong] * 3, 0.0)):
        episode = begin_episode(task, "train", 1, TEXT)
        for guess in guesses[:-1]:
            given = episode.reply(said(str(guess)))
            assert given is not None
            assert TEXT.decode(given) == hint
        assert episode.reply(said(str(guesses[-1]))) is None
        assert episode.score() == Score(reward, reward == 1.0)
        leave_episode(episode)


def test_many_episodes_leave_no_connection_and_no_memory_behind(opened: Opened) -> None:
    """On f525698 each episode leaves two descriptors and 0.7 MiB to the server until it ends."""
    task = opened.task("guess-digit")

    def play(episodes: int) -> None:
        for index in range(episodes):
            episode = begin_episode(task, "train", index, TEXT)
            assert episode.reply(said("x")) is not None
            if index % 2:
                assert episode.score() == Score(0.0, False)
            leave_episode(episode)

    play(20)
    (server,) = (child for child in psutil.Process().children() if "bridge_server.py" in " ".join(child.cmdline()))
    descriptors, memory = server.num_fds(), server.memory_info().rss
    play(60)
    assert server.num_fds() < descriptors + 60
    assert server.memory_info().rss < memory + (20 << 20)


def test_a_turn_at_the_limit_ends_the_rollout(opened: Opened) -> None:
    task = opened.task("guess-digit")
    episode = begin_episode(task, "train", 1, TEXT)
    assert episode.reply(said("x")) is not None
    assert episode.score() == Score(0.0, False)
    cut = begin_episode(task, "train", 1, TEXT)
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
    ("reward", "reason"),
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("return 'much'", "much"),
        ("return None", "NoneType"),
    ],
)
def test_a_reward_that_raises_or_is_no_number_is_no_score(opened: Opened, reward: str, reason: str) -> None:
    episode = begin_episode(opened.written(reward=reward), "train", 0, TEXT)
    with pytest.raises(TaskFault, match=reason):
        episode.reply(said("5"))


def test_an_environment_that_never_answers_costs_its_own_episode(opened: Opened) -> None:
    opened.source(run=ANSWERED.format(answer="'more>'"))
    task = opened.task("a-taskset", seconds=6.0)
    open_before = begin_episode(task, "train", 0, TEXT)
    assert open_before.reply(said("1")) == TEXT.encode("more>")
    hung = begin_episode(task, "train", 1, TEXT)
    with pytest.raises(TaskFault, match="no answer within 6 s"):
        hung.reply(said("9"))
    leave_episode(hung)
    assert open_before.reply(said("2")) is None
    assert open_before.score() == Score(1.0, True)
    assert begin_episode(task, "train", 1, TEXT).reply(said("1")) == TEXT.encode("more>")


def test_an_answer_of_megabytes_fails_its_own_episode_and_soon(opened: Opened) -> None:
    opened.source(run=ANSWERED.format(answer="'more>' if said == '1' else 'x' * 8_000_000"))
    task = opened.task("a-taskset", seconds=60.0)
    open_before = begin_episode(task, "train", 0, TEXT)
    assert open_before.reply(said("1")) == TEXT.encode("more>")
    loud = begin_episode(task, "train", 1, TEXT)
    with pytest.raises(TaskFault, match="says too much: its conversation has more than 2097152 bytes"):
        loud.reply(said("2"))
    leave_episode(loud)
    assert open_before.reply(said("2")) is None
    assert open_before.score() == Score(1.0, True)
    (server,) = servers()
    assert server.memory_info().rss < 600 << 20


@pytest.mark.parametrize(
    ("taskset", "more"), [("reverse-digits", []), ("guess-digit", []), ("worded-digits", ["opened = true"])]
)
def test_the_kit_passes_a_taskset_without_a_models_tokenizer(opened: Opened, taskset: str, more: list[str]) -> None:
    file = opened.file(taskset, *more, seconds=90.0)  # 1 MB takes long on a busy machine
    assert check.check(f"verifiers:{file}", Extent(prompts=10, seconds=120.0, paid=10)) == []


def test_a_taskset_whose_prompts_differ_from_sample_to_sample(opened: Opened) -> None:
    task = opened.task("worded-digits", "opened = true")
    prompt = prompt_of(task, "train", 0, TEXT)
    assert TEXT.decode(prompt) == "now "
    openings = set[str]()
    for _ in range(12):
        episode = begin_episode(task, "train", 0, TEXT)
        opening = TEXT.decode(reply_to_episode(episode, [], prompt=prompt) or [])
        openings.add(opening)
        digits = opening.partition(" ")[2].removesuffix(">")
        assert reply_to_episode(episode, said(digits[::-1])) is None
        assert episode.score() == Score(1.0, True)
        leave_episode(episode)
    assert len(openings) > 1


async def test_an_opened_episode_whose_server_was_killed_is_lost_and_the_next_one_is_played(
    opened: Opened, tmp_path: Path
) -> None:
    async with environment(opened.file("worded-digits", "opened = true"), tmp_path) as one:
        assert one.facts.kind == "opened"
        prompt = await one.prompt("train", 1)
        episodes = [one.episode("train", 1, prompt=prompt) for _ in range(4)]
        before = [(await episode.reply([], last=False)).given for episode in episodes]
        (server,) = servers()
        server.kill()
        ends = [await _ended(episode) for episode in episodes]
        assert all(before)
        assert "lost" in ends
        assert await _ended(one.episode("train", 2, prompt=prompt), opened=False) == "scored"


async def _ended(episode: HostedEpisode, *, opened: bool = True) -> str:
    """Play an episode to its end; return how it ended."""
    try:
        if not opened:
            await episode.reply([], last=False)
        return "scored" if (await episode.reply(said("1"), last=False)).score is not None else "goes on"
    except EpisodeLost:
        return "lost"
    except TaskFault:  # the environment's process ended in this very turn: no one else can be blamed
        return "failed"


def test_a_long_error_is_told_in_brief(opened: Opened) -> None:
    opened.source(reward="raise ValueError('no' * 100_000)")
    task = opened.task("a-taskset", seconds=60.0)
    with pytest.raises(TaskFault, match="ValueError: nono") as refused:
        begin_episode(task, "train", 0, TEXT).reply(said("5"))
    assert len(str(refused.value)) < 3000


async def test_a_server_killed_in_mid_episode_is_started_again_and_takes_the_same_turns(
    opened: Opened, tmp_path: Path
) -> None:
    deaths = list[str]()
    async with environment(opened.file("guess-digit"), tmp_path, deaths) as one:
        prompt = TEXT.decode(await one.prompt("train", 1))
        digit = 3 * int(prompt.removeprefix("guess ").removesuffix(">")) % 10
        wrong = (digit + 1) % 10
        episode = one.episode("train", 1)
        hint = (await episode.reply(said(str(wrong)), last=False)).given
        (server,) = servers()
        server.kill()
        assert (await episode.reply(said(str(wrong)), last=False)).given == hint
        assert (await episode.reply(said(str(digit)), last=False)).score == Score(0.5, False)
        assert len(deaths) == 1
        assert "environment ended with 1" in deaths[0]
        assert servers() != [server]


async def test_an_episode_by_chance_fails_with_its_server_and_the_next_one_is_played(
    opened: Opened, tmp_path: Path
) -> None:
    chance = "str(__import__('random').getrandbits(200)) + '>'"
    async with environment(opened.source(run=ANSWERED.format(answer=chance)), tmp_path) as one:
        episode = one.episode("train", 1)
        await episode.reply(said("1"), last=False)
        (server,) = servers()
        server.kill()
        with pytest.raises(TaskFault, match="the environment server of verifiers ended with -9"):
            await episode.reply(said("2"), last=False)
        after = one.episode("train", 1)
        await after.reply(said("1"), last=False)
        assert (await after.reply(said("2"), last=False)).score == Score(1.0, True)


async def test_an_episode_that_computes_for_ever_costs_its_server_and_the_next_one_is_played(
    opened: Opened, tmp_path: Path
) -> None:
    opened.source(run=ANSWERED.format(answer="'again>'"))
    async with environment(opened.file("a-taskset", seconds=8.0), tmp_path) as one:
        before = one.episode("train", 2)
        await before.reply(said("1"), last=False)
        (server,) = servers()
        with pytest.raises(TaskFault, match="the environment server hangs"):
            await one.episode("train", 1).reply(said("7"), last=False)
        assert server not in servers()
        assert (await before.reply(said("2"), last=False)).score == Score(1.0, True)


async def test_a_reward_of_nan_fails_its_episode_and_the_next_prompt_is_posed(opened: Opened, tmp_path: Path) -> None:
    async with environment(opened.source(reward="return float('nan')"), tmp_path) as one:
        with pytest.raises(TaskFault, match="the reward nan is no finite float32"):
            await one.episode("train", 0).reply(said("1"), last=False)
        assert TEXT.decode(await one.prompt("train", 1)).startswith("say ")


@asynccontextmanager
async def environment(file: Path, folder: Path, deaths: list[str] | None = None) -> AsyncIterator[Environment]:
    """A taskset in a coordinator's environment. `deaths`: gets each death of its process."""
    tokenizer = folder / "tokenizer.json"
    char_tokenizer().save(str(tokenizer))
    order = OpenTask(task=f"verifiers:{file}", version=None, tokenizer=str(tokenizer), eos=EOS)
    limits = Limits(seconds=30.0, network=True, loopback=True)
    told = (lambda fault: None) if deaths is None else deaths.append
    one = Environment(order, limits, vocabulary=CHAR_SIZE, kind="served", tell=told)
    try:
        await one.open()
        yield one
    finally:
        await one.close()


def servers() -> list[psutil.Process]:
    """The processes of verifiers' server below this one."""
    below = [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in below if any(part.endswith("bridge_server.py") for part in child.cmdline())]


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
    with pytest.raises(TasksetFault, match=r"there is no taskset nobody-has-this in the folders of path, and none in "):
        opened.task("nobody-has-this")


@pytest.mark.parametrize(
    ("more", "reason"),
    {
        "of the taskset": ("taskset.digit = 3", r"^verifiers has no setting taskset\.digit here: correct its name"),
        "of the sampling": ("sampling.temperature = 0.7", r"^verifiers has no setting sampling here: correct its name"),
        "of another type": ('taskset.digits = "three"', r"^verifiers refuses taskset\.digits: "),
    }.values(),
)
def test_a_setting_that_verifiers_lacks_is_refused_in_a_sentence(opened: Opened, more: str, reason: str) -> None:
    file = opened.file("reverse-digits")
    file.write_text(f"{file.read_text()}\n{more}\n")
    with pytest.raises(TasksetFault, match=reason) as refused:
        verifiers_task.task(str(file))
    assert "\n" not in str(refused.value)


def test_a_taskset_that_is_no_table_is_refused(opened: Opened) -> None:
    file = opened.file("reverse-digits")
    file.write_text('[env]\ntaskset = "reverse-digits"\n')
    with pytest.raises(TasksetFault, match=r"taskset = 'reverse-digits': write a table"):
        verifiers_task.task(str(file))


def test_another_version_of_verifiers_is_refused(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echo2.tasks.verifiers.taskset_file.VERSION", "0.3.9")
    with pytest.raises(TasksetFault, match=r"works with 0\.3\.9 alone"):
        opened.task("reverse-digits")


def test_with_a_chat_template_conversations_are_those_of_the_run(opened: Opened) -> None:
    template = PLAIN_TEMPLATE.replace("message.role | capitalize", "message.role").replace("Assistant:", "assistant:")
    text = ChatTokenizer(TEXT, ChatSettings(template=template.replace(": {{", "- {{").replace("t:", "t-")))
    task = opened.task("guess-digit")
    prompt = prompt_of(task, "train", 1, text)
    question = TEXT.decode(prompt).removeprefix("user- ").removesuffix("\n\nassistant-")
    assert prompt == text.pose([{"role": "user", "content": question}])
    digit = 3 * int(question.removeprefix("guess ").removesuffix(">")) % 10
    episode = begin_episode(task, "train", 1, text)
    assert episode.reply(said(str((digit + 1) % 10))) in (text.follow("lower>"), text.follow("higher>"))
