"""Episodes of several turns that stay open in an environment's process, whatever becomes of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.environments.environment import Environment
from echo2.coordinator.environments.environment_process import EnvironmentProcess
from echo2.coordinator.environments.limits import Limits
from echo2.coordinator.environments.messages import OpenTask
from echo2.coordinator.environments.process_pool import EnvironmentFault
from echo2.coordinator.environments.task_host import EnvironmentAway, EpisodeLost, TurnAnswer
from echo2.protocol.task_kinds import OPENED_KIND, SERVED_KIND, SINGLE_KIND
from echo2.tasks.task import Score, TaskFault
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, FileTokenizer, char_tokenizer
from tests.support.fake_coordinator import until

TEXT = FileTokenizer(char_tokenizer(), EOS)
QUICK = Limits(seconds=2.0, opening=30.0, memory_mb=2048)


class Talking:
    """An environment of the module of hostile tasks, and its processes."""

    def __init__(self, folder: Path, task: str, *, kind: str = SERVED_KIND, workers: int = 1) -> None:
        self.processes: list[EnvironmentProcess] = []
        tokenizer = folder / "tokenizer.json"
        char_tokenizer().save(str(tokenizer))
        order = OpenTask(task=task, version=None, tokenizer=str(tokenizer), eos=EOS)
        self.environment = Environment(order, QUICK, vocabulary=CHAR_SIZE, kind=kind, workers=workers, make=self._made)

    def _made(self, limits: Limits) -> EnvironmentProcess:
        self.processes.append(EnvironmentProcess(limits, module="tests.support.hostile_tasks"))
        return self.processes[-1]

    async def kill(self) -> None:
        """Kill the newest process, as somebody else might."""
        self.processes[-1].kill()
        await self.processes[-1].exited


@asynccontextmanager
async def talking(folder: Path, task: str, workers: int = 1) -> AsyncIterator[Talking]:
    one = Talking(folder, task, workers=workers)
    try:
        await one.environment.open()
        yield one
    finally:
        await one.environment.close()


def said(text: str) -> list[int]:
    return [*TEXT.encode(text), EOS]


def given(text: str) -> TurnAnswer:
    return TurnAnswer(TEXT.encode(text))


async def test_an_episode_is_answered_turn_by_turn_and_scored_at_its_end(tmp_path: Path) -> None:
    async with talking(tmp_path, "counts") as one:
        episode = one.environment.episode("train", 0)
        assert await episode.reply(said("ab"), last=False) == given("12")
        assert await episode.reply(said("c"), last=False) == given("21")
        assert await episode.reply(said("def"), last=False) == TurnAnswer(None, Score(6.0, True))


async def test_the_last_turn_ends_an_episode_whatever_it_would_have_answered(tmp_path: Path) -> None:
    async with talking(tmp_path, "counts") as one:
        assert await one.environment.episode("train", 0).reply(said("ab"), last=True) == TurnAnswer(
            None, Score(2.0, True)
        )


@pytest.mark.parametrize("workers", [1, 2])
async def test_episodes_that_are_open_together_do_not_mix(tmp_path: Path, workers: int) -> None:
    async with talking(tmp_path, "counts", workers) as one:
        episodes = [one.environment.episode("train", number) for number in range(4)]
        for turn_number in range(2):
            for episode in episodes:
                assert await episode.reply(said("a"), last=False) == given(f"{turn_number + 1}{2 - turn_number}")
        assert [await episode.reply(said("a" * number), last=False) for number, episode in enumerate(episodes)] == [
            TurnAnswer(None, Score(2.0 + number, True)) for number in range(4)
        ]


@pytest.mark.slow
async def test_episodes_that_begin_one_after_the_other_stand_in_different_processes(tmp_path: Path) -> None:
    async with talking(tmp_path, "counts", workers=4) as one:
        await all_started(one, 4)
        episodes = [one.environment.episode("train", number) for number in range(3)]
        for episode in episodes:
            await episode.reply(said("a"), last=False)
        assert len({id(episode.process) for episode in episodes}) == 3
        episodes[1].leave()
        another = one.environment.episode("train", 3)
        await another.reply(said("a"), last=False)
        assert another.process is episodes[1].process


@pytest.mark.slow
async def test_all_processes_are_started_behind_the_first_and_replaced_before_a_call_comes(tmp_path: Path) -> None:
    async with talking(tmp_path, "ends its process at x and depends on it", workers=2) as one:
        await all_started(one, 2)
        with pytest.raises(TaskFault, match="ended with 4"):
            await one.environment.episode("train", 0).reply(said("x"), last=False)
        await all_started(one, 3)


async def all_started(one: Talking, number: int) -> None:
    """Wait until as many processes have been made, and no place is without one."""
    await until(lambda: len(one.processes) >= number and one.environment.is_ready)


@pytest.mark.slow
async def test_an_evaluations_turns_end_while_the_task_cannot_be_opened_and_others_wait(
    tmp_path: Path,
) -> None:
    async with talking(tmp_path, "counts") as one:
        usual = one.environment.episode("train", 0)
        (tmp_path / "tokenizer.json").unlink()
        await one.kill()
        aside = one.environment.aside().episode("heldout", 0)
        waits = asyncio.create_task(usual.reply(said("ab"), last=False))
        with pytest.raises(EnvironmentAway):
            await aside.reply(said("a"), last=False)
        char_tokenizer().save(str(tmp_path / "tokenizer.json"))
        assert await waits == given("12")
        assert await one.environment.aside().episode("heldout", 0).reply(said("ab"), last=False) == given("12")


@pytest.mark.slow
async def test_an_episode_whose_process_is_killed_goes_on_in_another(tmp_path: Path) -> None:
    async with talking(tmp_path, "counts") as one:
        episode = one.environment.episode("train", 0)
        await episode.reply(said("ab"), last=False)
        await one.kill()
        assert await episode.reply(said("c"), last=False) == given("21")
        assert len(one.processes) == 2


@pytest.mark.slow
async def test_many_quick_turns_buy_no_long_answer(tmp_path: Path) -> None:
    async with talking(tmp_path, "hangs in its third turn") as one:
        episode = one.environment.episode("train", 0)
        for _ in range(2):
            await episode.reply(said("a"), last=False)
        with pytest.raises(TaskFault, match="no answer within 2 s"):
            await episode.reply(said("b"), last=False)


@pytest.mark.slow
async def test_taking_up_an_episode_of_many_turns_has_a_bounded_time(tmp_path: Path) -> None:
    async with talking(tmp_path, "talks for ever") as one:
        one.environment.limits = msgspec.structs.replace(QUICK, seconds=0.4)
        past = [part for _ in range(20) for part in (said("slow"), TEXT.encode("1"))]
        episode = one.environment.episode("train", 0, past)
        with pytest.raises(EpisodeLost, match=r"took longer than 1\.6 s"):
            await episode.reply(said("a"), last=False)


@pytest.mark.slow
async def test_an_episode_that_another_one_takes_down_is_lost_and_the_one_that_hangs_has_failed(tmp_path: Path) -> None:
    async with talking(tmp_path, "hangs at x and depends on its process") as one:
        honest, hostile = one.environment.episode("train", 0), one.environment.episode("train", 1)
        for episode in (honest, hostile):
            await episode.reply(said("a"), last=False)
        with pytest.raises(TaskFault, match="no answer within 2 s") as failed:
            await hostile.reply(said("x"), last=False)
        assert not isinstance(failed.value, EpisodeLost)
        with pytest.raises(EpisodeLost):
            await honest.reply(said("a"), last=False)


@pytest.mark.slow
async def test_an_episode_that_is_apart_takes_no_other_down(tmp_path: Path) -> None:
    async with talking(tmp_path, "hangs at x and depends on its process", workers=2) as one:
        honest = [one.environment.episode("train", 0), one.environment.episode("train", 1)]
        answers = [await episode.reply(said("a"), last=False) for episode in honest]
        for number in range(2):
            hostile = one.environment.episode("train", number, apart=True)
            await hostile.reply(said("a"), last=False)
            with pytest.raises(TaskFault, match="no answer within 2 s"):
                await hostile.reply(said("x"), last=False)
        assert [await episode.reply(said("a"), last=False) for episode in honest] == answers
        assert len(one.processes) == 4


async def test_with_one_process_no_episode_is_apart(tmp_path: Path) -> None:
    async with talking(tmp_path, "counts") as one:
        assert await one.environment.episode("train", 0, apart=True).reply(said("ab"), last=False) == given("12")
        assert len(one.processes) == 1


@pytest.mark.slow
async def test_an_episode_that_ends_its_process_by_its_own_turn_has_failed(tmp_path: Path) -> None:
    async with talking(tmp_path, "ends its process at x and depends on it") as one:
        episode = one.environment.episode("train", 0)
        await episode.reply(said("a"), last=False)
        with pytest.raises(TaskFault, match="ended with 4") as failed:
            await episode.reply(said("x"), last=False)
        assert not isinstance(failed.value, EpisodeLost)


@pytest.mark.slow
async def test_a_task_that_is_broken_gets_another_process_behind_that_answer(tmp_path: Path) -> None:
    async with talking(tmp_path, "breaks for good") as one:
        for number in range(2):
            with pytest.raises(TaskFault, match="its server is silent"):
                await one.environment.episode("train", number).reply(said("a"), last=False)
        assert len(one.processes) == 3


@pytest.mark.parametrize(
    ("task", "tries"),
    [("never answers", 1), ("ends its process at x and depends on it", 2), ("breaks for good", 1)],
)
@pytest.mark.slow_but("breaks for good-1")
async def test_a_turn_that_ended_its_process_fails_once_the_next_process_is_open(
    tmp_path: Path, task: str, tries: int
) -> None:
    async with talking(tmp_path, task) as one:
        begun = list[int]()
        with pytest.raises(TaskFault):
            await one.environment.episode("train", 0).reply(
                said("x"), last=False, begin=lambda: begun.append(len(one.processes))
            )
        assert begun == list(range(1, tries + 1))
        assert len(one.processes) == tries + 1
        assert not one.processes[-1].has_ended


@pytest.mark.slow
async def test_a_turn_that_ended_its_process_fails_though_the_task_cannot_be_opened_again(tmp_path: Path) -> None:
    async with talking(tmp_path, "never answers") as one:
        (tmp_path / "tokenizer.json").unlink()
        with pytest.raises(TaskFault, match="no answer within 2 s"):
            await one.environment.episode("train", 0).reply(said("x"), last=False)
        char_tokenizer().save(str(tmp_path / "tokenizer.json"))
        assert len(await one.environment.prompt("train", 0)) == 2


async def test_an_episode_is_taken_up_from_what_an_earlier_coordinator_wrote(tmp_path: Path) -> None:
    async with talking(tmp_path, "counts") as one:
        episode = one.environment.episode("train", 0, [said("ab"), TEXT.encode("12")])
        assert await episode.reply(said("c"), last=False) == given("21")


@pytest.mark.slow
async def test_an_episode_that_answers_otherwise_in_another_process_is_lost(tmp_path: Path) -> None:
    async with talking(tmp_path, "depends on its process") as one:
        episode, other = one.environment.episode("train", 0), one.environment.episode("train", 1)
        await episode.reply(said("ab"), last=False)
        await one.kill()
        with pytest.raises(EpisodeLost, match="answers otherwise than before"):
            await episode.reply(said("c"), last=False)
        assert (await other.reply(said("ab"), last=False)).given is not None


async def test_an_episode_that_is_left_before_its_turn_comes_costs_no_other_its_process(tmp_path: Path) -> None:
    async with talking(tmp_path, "talks for ever") as one:
        gone, other = one.environment.episode("train", 0), one.environment.episode("train", 1)
        await gone.reply(said("a"), last=False)
        answered = asyncio.create_task(other.reply(said("slow"), last=False))
        waits = asyncio.create_task(gone.reply(said("a"), last=False))
        await asyncio.sleep(0)
        gone.leave()
        with pytest.raises(TaskFault, match="nobody plays it any more"):
            await waits
        await answered
        await other.reply(said("a"), last=False)
        assert len(one.processes) == 1


async def test_an_episode_that_is_left_while_it_is_answered_does_not_stay_open(tmp_path: Path) -> None:
    async with talking(tmp_path, "counts the open episodes") as one:
        gone = one.environment.episode("train", 0)
        answered = asyncio.create_task(gone.reply(said("slow"), last=False))
        await asyncio.sleep(0)
        gone.leave()
        assert await answered == given("1")
        assert await one.environment.episode("train", 1).reply(said("a"), last=False) == given("1")


async def test_an_episode_that_cannot_be_taken_up_does_not_stay_open(tmp_path: Path) -> None:
    async with talking(tmp_path, "counts the open episodes") as one:
        with pytest.raises(EpisodeLost):
            await one.environment.episode("train", 0, [said("a"), TEXT.encode("9")]).reply(said("a"), last=False)
        assert await one.environment.episode("train", 1).reply(said("a"), last=False) == given("1")


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("never answers", "no answer within 2 s"),
        ("answers nothing", "its answer is empty"),
        ("breaks", "reply raised ZeroDivisionError"),
        ("answers megabytes", "no answer within 2 s|bytes"),
    ],
)
@pytest.mark.slow_but("breaks-reply raised ZeroDivisionError", "answers nothing-its answer is empty")
async def test_an_answer_that_misbehaves_fails_its_own_episode_alone(tmp_path: Path, task: str, says: str) -> None:
    async with talking(tmp_path, task) as one:
        for number in range(2):
            with pytest.raises(TaskFault, match=says):
                await one.environment.episode("train", number).reply(said("a"), last=False)
        assert len(await one.environment.prompt("train", 0)) == 2


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("ends without a number", "reward nan is no finite"),
        ("ends without a reward", "reward None is no finite"),
    ],
)
async def test_an_end_without_a_finite_reward_fails_the_episode_alone(tmp_path: Path, task: str, says: str) -> None:
    async with talking(tmp_path, task) as one:
        for number in range(2):
            episode = one.environment.episode("train", number)
            assert await episode.reply(said("a"), last=False) == given("2")
            with pytest.raises(TaskFault, match=says):
                await episode.reply(said("b"), last=True)
        assert len(one.processes) == 1


async def test_a_task_of_several_turns_is_refused_as_single(tmp_path: Path) -> None:
    one = Talking(tmp_path, "counts", kind=SINGLE_KIND)
    try:
        with pytest.raises(EnvironmentFault, match=r'up to 3 sampled turns: set run\.kind = "served"'):
            await one.environment.open()
    finally:
        await one.environment.close()


@pytest.mark.slow
async def test_each_opened_episode_is_opened_behind_the_prompt_of_its_lease(tmp_path: Path) -> None:
    async with talking(tmp_path, "is dealt a number") as one:
        assert one.environment.facts.kind == OPENED_KIND
        for number in (1, 2):
            episode = one.environment.episode("train", 0, prompt=TEXT.encode("a="))
            assert await episode.reply([], last=False) == given(str(number))
            assert await episode.reply(said("ab"), last=False) == given("12")
    async with talking(tmp_path, "says its prompt") as one:
        assert await one.environment.episode("train", 0, prompt=TEXT.encode("b=")).reply([], last=False) == given("b=")


@pytest.mark.slow
async def test_an_opened_episode_whose_process_was_killed_goes_on_if_it_opens_alike_else_it_is_lost(
    tmp_path: Path,
) -> None:
    async with talking(tmp_path, "says its prompt") as one:
        episode = one.environment.episode("train", 0, prompt=TEXT.encode("b="))
        await episode.reply([], last=False)
        await one.kill()
        assert await episode.reply(said("ab"), last=False) == given("12")
    async with talking(tmp_path, "is dealt a number") as one:
        episodes = [one.environment.episode("train", 0) for _ in range(2)]
        for episode in episodes:
            await episode.reply([], last=False)
        await one.kill()
        assert await episodes[0].reply(said("ab"), last=False) == given("12")  # the first is dealt the same again
        with pytest.raises(EpisodeLost, match="answers otherwise than before"):
            await one.environment.episode("train", 0, [[], TEXT.encode("9")]).reply(said("ab"), last=False)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("opens with nothing", "its answer is empty"), ("ends at its opening", "before the policy was asked anything"),
        ("breaks at its opening", "open raised ZeroDivisionError"),
    ],
)  # fmt: skip
async def test_an_opening_that_is_none_fails_the_episode_alone(tmp_path: Path, task: str, says: str) -> None:
    async with talking(tmp_path, task) as one:
        for number in range(2):
            with pytest.raises(TaskFault, match=says):
                await one.environment.episode("train", number).reply([], last=False)
        assert len(one.processes) == 1


@pytest.mark.parametrize(
    ("task", "kind", "says"),
    [
        ("is dealt a number", SINGLE_KIND, r'it opens its episodes: set run\.kind = "served"'),
        ("counts", OPENED_KIND, "it no longer opens its episodes"),
    ],
)
async def test_a_task_is_refused_under_a_kind_that_is_not_its_own(
    tmp_path: Path, task: str, kind: str, says: str
) -> None:
    one = Talking(tmp_path, task, kind=kind)
    try:
        with pytest.raises(EnvironmentFault, match=says):
            await one.environment.open()
    finally:
        await one.environment.close()


async def test_episodes_that_are_left_are_forgotten_by_their_process(tmp_path: Path) -> None:
    async with talking(tmp_path, "counts the open episodes") as one:
        for number in range(3):
            episode = one.environment.episode("train", number)
            assert await episode.reply(said("a"), last=False) == given("1")
            episode.leave()
