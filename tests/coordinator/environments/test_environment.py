"""An environment's process: whatever the code of a task does, it costs its own episode."""

import asyncio
import contextlib
import fcntl
import itertools
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks.attacks.reaching_task import REACHES
from echo2.coordinator.environments import work_folders
from echo2.coordinator.environments.environment import Environment
from echo2.coordinator.environments.environment_process import EnvironmentProcess
from echo2.coordinator.environments.limits import MOST_REASON_CHARACTERS, Limits
from echo2.coordinator.environments.messages import OpenTask
from echo2.coordinator.environments.process_pool import EnvironmentFault
from echo2.coordinator.environments.work_folders import sweep
from echo2.tasks.task import InvalidTranscript, Score, TaskFault, Transcript
from echo2.tasks.tokenizer import CHAR_SIZE, EOS, char_tokenizer
from tests.support import plugin_packages
from tests.support.paths import ROOT
from tests.support.quick_disk import quick_folder

MODULE = "tests.support.hostile_tasks"
NO_PROCESS = (1 << 22) + 1
"""Above the highest process id that Linux gives."""
QUICK = Limits(seconds=1.0, opening=60.0, memory_mb=2048)
PATIENT = Limits(seconds=60.0, opening=60.0, memory_mb=2048)
"""For tasks that answer or fail by themselves, however busy the machine is."""
PATIENT_WITH_PROCESSES = Limits(seconds=60.0, opening=60.0, memory_mb=2048, subprocesses=True)


def process(limits: Limits) -> EnvironmentProcess:
    return EnvironmentProcess(limits, module=MODULE)


@asynccontextmanager
async def environment(
    folder: Path, task: str, limits: Limits = QUICK, make: Callable[[Limits], EnvironmentProcess] = process
) -> AsyncIterator[Environment]:
    tokenizer = folder / "tokenizer.json"
    char_tokenizer().save(str(tokenizer))
    order = OpenTask(task=task, version=None, tokenizer=str(tokenizer), eos=EOS)
    one = Environment(order, limits, vocabulary=CHAR_SIZE, make=make)
    try:
        yield one
    finally:
        await one.close()


ANSWER = Transcript([5, 6, EOS], [3])


async def test_a_task_is_opened_asked_for_prompts_and_scores_an_episode(tmp_path: Path) -> None:
    async with environment(tmp_path, "right") as one:
        opened = await one.open()
        assert (opened.version, opened.train, opened.heldout) == (1, 10, 10)
        prompt = await one.prompt("train", 3)
        assert len(prompt) == 2
        assert await one.score("train", 3, Transcript([prompt[0], EOS], [2]), 8) == Score(1.0, True)
        assert await one.score("train", 3, ANSWER, 8) == Score(0.0, True)


async def test_a_task_gets_ready_before_its_first_episode_and_may_take_longer_than_an_answer(tmp_path: Path) -> None:
    async with environment(tmp_path, "gets ready") as one:  # for 1.5 s; an answer may take 1 s
        prompt = await one.prompt("train", 3)
        assert await one.score("train", 3, Transcript([prompt[0], EOS], [2]), 8) == Score(1.0, True)


@pytest.mark.slow
async def test_a_plug_in_is_imported_by_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin_packages.install(tmp_path, monkeypatch, {"faulty": "tests.support.faulty_tasks:faulty"})
    async with environment(tmp_path, "faulty:none", make=EnvironmentProcess) as one:
        opened = await one.open()
        assert (opened.name, opened.version, opened.train, opened.heldout) == ("faulty:none", 1, 20, 20)
        assert await one.score("train", 3, ANSWER, 8) == Score(pytest.approx(0.2), False)
    async with environment(tmp_path, "nothing", make=EnvironmentProcess) as one:
        with pytest.raises(EnvironmentFault, match="there is no task nothing"):
            await one.open()


async def test_an_episode_that_the_task_cannot_have_had_is_the_nodes_fault(tmp_path: Path) -> None:
    async with environment(tmp_path, "right") as one:
        with pytest.raises(InvalidTranscript, match="not the environment"):
            await one.score("train", 0, Transcript([5, EOS, 7, 5, EOS], [2, 1, 2]), 8)


@pytest.mark.parametrize(
    ("task", "says"),
    {
        "an error": ("raises", "score raised ZeroDivisionError: division by zero"),
        "a reward that is no number": ("is no number", "the reward nan is no finite float32"),
        "a reward that is a word": ("returns a word", "the reward 'much' is no finite float32"),
        "brackets that Python cannot nest": ("recurses", "score raised"),
        "an end by sys.exit": ("ends", "score raised SystemExit"),
        "an end of the process": ("dies", "environment ended with 4"),
        "no end": ("hangs", "no answer within 1 s"),
        "8 GiB": ("allocates", "score raised MemoryError"),
        "2 MiB of text": ("prints", "it printed more than 1048576 bytes in one call"),
        "a file of 65 MiB": ("fills the disk", "score raised OSError: .*File too large"),
        "a connection": ("connects", "score raised PermissionError"),
        "a process of its own": ("forks", "score raised PermissionError"),
        "a signal to the coordinator": ("signals its parent", "score raised PermissionError"),
        "a signal to all processes": ("signals all", "score raised PermissionError"),
        "a signal by a descriptor": ("signals its parent by a descriptor", "score raised PermissionError"),
        "the coordinator's memory": ("reads its parent's memory", "score raised PermissionError"),
        "an open file of the coordinator": ("takes a file of its parent", "score raised PermissionError"),
        "the coordinator's limits": ("limits its parent", "score raised PermissionError"),
        "an abort": ("aborts", "environment ended with -6"),
    }.values(),
    ids=lambda value: value if " " not in value else "",
)
@pytest.mark.slow_for("dies-", "hangs-", "allocates-", "prints-", "aborts-")
async def test_a_score_that_misbehaves_fails_its_own_episode_and_the_next_is_scored(
    tmp_path: Path, task: str, says: str
) -> None:
    async with environment(tmp_path, task, QUICK if "no answer" in says else PATIENT) as one:
        for _ in range(2):
            with pytest.raises(TaskFault, match=says) as failed:
                await one.score("train", 0, ANSWER, 8)
            assert failed.value.verified
        assert len(await one.prompt("train", 0)) == 2


@pytest.mark.parametrize("what", REACHES)
@pytest.mark.parametrize("limits", [PATIENT, PATIENT_WITH_PROCESSES], ids=["alone", "with processes"])
async def test_a_score_that_reaches_for_the_coordinator_by_its_number_finds_no_such_process(
    tmp_path: Path, what: str, limits: Limits
) -> None:
    if missing := without_namespaces():
        pytest.skip(missing)
    async with environment(tmp_path, f"reaches for {what}", limits) as one:
        tokens = [*char_tokenizer().encode(str(os.getpid())).ids, EOS]
        with pytest.raises(TaskFault, match=r"raised (FileNotFoundError|ProcessLookupError|PermissionError)"):
            await one.score("train", 0, Transcript(tokens, [len(tokens)]), 16)


@pytest.mark.parametrize("task", ["writes many files", "writes large files", "nests folders"])
@pytest.mark.slow_but("writes large files")
async def test_a_process_that_fills_its_folder_is_killed_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    monkeypatch.setattr(work_folders, "MOST_FOLDER_BYTES", 3 << 20 if task == "writes large files" else 1 << 40)
    with quick_folder() as temporary:
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        async with environment(tmp_path, task, Limits(seconds=30.0, opening=30.0, memory_mb=2048)) as one:
            with pytest.raises(TaskFault, match="its folder has more than"):
                await one.score("train", 0, ANSWER, 8)
            assert list(temporary.glob("*")) == []
            assert len(await one.prompt("train", 0)) == 2


async def has_ended(lock: Path) -> bool:
    """Tell whether the process that has a lock ends within 20 s."""
    with lock.open("w") as file:
        for _ in range(400):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            await asyncio.sleep(0.05)
    return False


def without_namespaces() -> str:
    """Return why this system gives a process no namespace of processes; empty: it does."""
    script = "from echo2.coordinator.environments import own_processes\nprint(own_processes.enter())"
    return subprocess.check_output([sys.executable, "-c", script], text=True, cwd=ROOT).strip()


@pytest.mark.parametrize("task", ["leaves a process", "leaves a process and ends"])
@pytest.mark.slow_but("leaves a process")
async def test_what_a_task_starts_ends_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    if missing := without_namespaces():
        pytest.skip(missing)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limits = Limits(seconds=30.0, opening=30.0, memory_mb=2048, subprocesses=True)
    async with environment(tmp_path, task, limits) as one:
        if task == "leaves a process":
            assert await one.score("train", 0, ANSWER, 8) == Score(1.0, True)
        else:
            with pytest.raises(TaskFault, match="environment ended with 5"):
                await one.score("train", 0, ANSWER, 8)
            assert await has_ended(tmp_path / "lock")
            assert len(await one.prompt("train", 0)) == 2
    assert await has_ended(tmp_path / "lock")


@pytest.mark.slow
async def test_a_process_that_somebody_kills_in_mid_episode_costs_nothing(tmp_path: Path) -> None:
    processes: list[EnvironmentProcess] = []

    def noted(limits: Limits) -> EnvironmentProcess:
        processes.append(process(limits))
        return processes[-1]

    async with environment(tmp_path, "takes a while", Limits(seconds=30.0, memory_mb=2048), noted) as one:
        await one.open()
        asked = asyncio.create_task(one.score("train", 0, ANSWER, 8))
        await asyncio.wait([asked], timeout=0.1)
        processes[0].kill()
        assert await asked == Score(1.0, True)
        assert len(processes) == 2


@pytest.mark.parametrize("task", ["leaks memory", "leaks files"])
@pytest.mark.slow
async def test_a_process_that_ran_out_of_something_is_replaced_before_the_next_episode(
    tmp_path: Path, task: str
) -> None:
    async with environment(tmp_path, task, Limits(seconds=30.0, opening=30.0, memory_mb=2048)) as one:
        failed = []
        for number in range(10):
            try:
                await one.score("train", 0, ANSWER, 8)
            except TaskFault:
                failed.append(number)
        assert failed
        assert all(later - earlier > 1 for earlier, later in itertools.pairwise(failed))


@pytest.mark.parametrize("task", ["ends with a long word", "breaks at length"])
@pytest.mark.slow_but("breaks at length")
async def test_a_reason_is_one_line_of_bounded_length(tmp_path: Path, task: str) -> None:
    async with environment(tmp_path, task) as one:
        with pytest.raises(TaskFault) as failed:
            await one.score("train", 0, ANSWER, 8)
        assert str(failed.value).isprintable()
        assert len(str(failed.value)) == MOST_REASON_CHARACTERS


async def test_an_environment_may_use_threads(tmp_path: Path) -> None:
    async with environment(tmp_path, "threads") as one:
        assert await one.score("train", 0, ANSWER, 8) == Score(3.0, True)


async def test_an_environment_may_print(tmp_path: Path) -> None:
    async with environment(tmp_path, "speaks") as one:
        for _ in range(3):
            assert await one.score("train", 0, ANSWER, 8) == Score(1.0, True)


async def test_an_environment_may_signal_itself(tmp_path: Path) -> None:
    async with environment(tmp_path, "signals itself") as one:
        assert await one.score("train", 0, ANSWER, 8) == Score(1.0, True)


async def test_an_environment_sees_nothing_of_the_operators_and_works_in_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHO2_PASSPHRASE", "secret")
    async with environment(tmp_path, "sees") as one:
        with pytest.raises(TaskFault) as failed:
            await one.score("train", 0, ANSWER, 8)
        assert "PATH" in str(failed.value)
        assert "ECHO2" not in str(failed.value)
        assert str(failed.value).endswith(" []")


@pytest.mark.slow
async def test_a_task_that_cannot_be_opened_says_so_once_and_then_makes_calls_wait(tmp_path: Path) -> None:
    async with environment(tmp_path, "nowhere") as one:
        with pytest.raises(EnvironmentFault, match="there is no task nowhere"):
            await one.open()
        asked = asyncio.create_task(one.prompt("train", 0))
        async with asyncio.timeout(20):
            while not one.trouble:
                await asyncio.wait([asked], timeout=0.05)
        assert not asked.done()
        asked.cancel()


@pytest.mark.parametrize(
    ("task", "said"),
    [("no prompts", "0"), ("prompts below none", "-5"), ("10^30 prompts", "1000000"), ("ten prompts", "'ten'")],
)
async def test_a_task_whose_number_of_prompts_is_none_cannot_be_opened(tmp_path: Path, task: str, said: str) -> None:
    async with environment(tmp_path, task) as one:
        with pytest.raises(EnvironmentFault, match=rf"its size\('train'\) is {said}.*, not a whole number from 1 to"):
            await one.open()


@pytest.mark.slow
async def test_a_call_that_is_cancelled_ends_its_process_so_that_the_next_need_not_wait(tmp_path: Path) -> None:
    async with environment(tmp_path, "hangs", Limits(seconds=60.0, memory_mb=2048)) as one:
        await one.open()
        asked = asyncio.create_task(one.score("train", 0, ANSWER, 8))
        await asyncio.wait([asked], timeout=0.2)
        asked.cancel()
        await asyncio.wait([asked])
        async with asyncio.timeout(20):
            assert len(await one.prompt("train", 0)) == 2


async def test_the_folder_of_a_process_goes_with_it_and_that_of_a_killed_coordinator_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    left, foreign = (tmp_path / "temporary" / f"echo2-environment-{name}" for name in (f"{NO_PROCESS}-x", "other-x"))
    left.mkdir()
    foreign.mkdir()
    async with environment(tmp_path, "right") as one:
        await one.open()
        sweep()
        assert sorted((tmp_path / "temporary").glob("*")) != [foreign]
        assert not left.exists()
    assert list((tmp_path / "temporary").glob("*")) == [foreign]


async def test_a_task_demonstrates_answers_to_prompts_of_its_training_split(tmp_path: Path) -> None:
    async with environment(tmp_path, "reverse", make=EnvironmentProcess) as one:
        rows = await one.demonstrations(100, 1, 0.0, 0.0)
        assert rows == await one.demonstrations(100, 1, 0.0, 0.0)
        assert len({tuple(prompt) for prompt, _ in rows}) > 90
        assert all(answer == [*prompt[3::-1], EOS] for prompt, answer in rows)


async def test_a_task_without_demonstrations_says_so(tmp_path: Path) -> None:
    async with environment(tmp_path, "right") as one:
        with pytest.raises(TaskFault, match="demonstration raised NotImplementedError"):
            await one.demonstrations(1, 0, 0.0, 0.0)


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""
CHILD = """
import re
from echo2.coordinator.environments.limits import Limits, apply
apply(Limits())
print("the limits are set", flush=True)
re.match("(a+)+$", "a" * 60 + "b")  # never returns, and no other thread runs meanwhile
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_a_process_that_hangs_in_c_code_ends_with_its_daemon() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    child = os.pidfd_open(int(parent.stdout.readline()))
    try:
        parent.kill()
        ended, _, _ = select.select([child], [], [], 30)
        if not ended:
            signal.pidfd_send_signal(child, signal.SIGKILL)
        assert ended, "it went on without its parent"
    finally:
        parent.wait()
        parent.stdout.close()
        os.close(child)
