"""A server of verifiers that hangs, seen from the environment's process and from the coordinator."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from echo2.coordinator.environments.environment import Environment
from echo2.coordinator.environments.environment_process import EnvironmentProcess
from echo2.coordinator.environments.limits import Limits
from echo2.coordinator.environments.messages import OpenTask
from echo2.protocol.task_kinds import SERVED_KIND
from echo2.tasks.task import Score, TaskBroken, TaskFault
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, char_tokenizer
from echo2.tasks.verifiers.other_side import OtherSide
from tests.support.bridge_stand_in_server import GARBLES, HANGS, PROMPT, WAITS
from tests.support.stand_in_bridge import started

SOON = 0.3


@pytest.fixture
def server() -> Iterator[OtherSide]:
    one = started()
    for name in ("a", "b"):
        one.listen(name)
        one.tell("begin", name)
        assert one.hear(name, 30.0)["called"] == PROMPT
    yield one
    one.close()


def test_an_episode_that_waits_for_ever_has_failed_and_the_others_go_on(server: OtherSide) -> None:
    server.tell("answer", "a", tokens=[WAITS, EOS])
    for _ in range(3):
        with pytest.raises(TaskFault, match=r"no answer within 0\.3 s") as failed:
            server.hear("a", SOON)
        assert not isinstance(failed.value, TaskBroken)
    server.tell("answer", "b", tokens=[7, EOS])
    assert server.hear("b", 30.0)["reward"] == 1.0


def test_lines_that_are_no_messages_are_passed_over(server: OtherSide) -> None:
    for name in ("a", "b"):
        server.tell("answer", name, tokens=[GARBLES, EOS])
    for name in ("b", "a"):
        assert server.hear(name, 30.0)["reward"] == 1.0


def test_an_episode_that_computes_for_ever_breaks_the_server(server: OtherSide) -> None:
    server.tell("answer", "a", tokens=[HANGS, EOS])
    with pytest.raises(TaskBroken, match="the environment server hangs"):
        server.hear("a", SOON)


@pytest.mark.slow
async def test_the_episode_after_one_that_computes_for_ever_gets_another_server(tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    char_tokenizer().save(str(tokenizer))
    processes = list[EnvironmentProcess]()

    def made(limits: Limits) -> EnvironmentProcess:
        processes.append(EnvironmentProcess(limits, module="tests.support.stand_in_bridge"))
        return processes[-1]

    order = OpenTask(task="bridged", version=None, tokenizer=str(tokenizer), eos=EOS)
    limits = Limits(seconds=10.0, opening=30.0, memory_mb=2048, subprocesses=True)
    one = Environment(order, limits, vocabulary=CHAR_SIZE, kind=SERVED_KIND, make=made)
    try:
        await one.open()
        open_before = one.episode("train", 1)
        for _ in range(2):
            with pytest.raises(TaskFault, match="the environment server hangs"):
                await one.episode("train", 0).reply([HANGS, EOS], last=False)
        assert (await open_before.reply([7, EOS], last=False)).score == Score(1.0, True)
        assert len(processes) == 3
    finally:
        await one.close()
