"""The learner runs as a real child process behind its pipe, as in the daemon."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.learner.messages import DEVICE_LOST, Hyper, Open, Opened, Stepped
from echo2.runtime.child import Child, ChildDied, ChildError
from tests.support.tiny_learner import ask, batch, store

ARGV = [sys.executable, "-m", "echo2.coordinator.learner"]


def order(folder: Path, model: Path) -> Open:
    return Open(
        model=str(model),
        folder=str(folder),
        database=str(store(folder / "run.sqlite", [g for n in (1, 2) for g in batch(n).groups])),
        device="cpu",
        hyper=Hyper(),
        published="",
        published_version=0,
        published_root=b"",
        era=1,
        next_era=2,
        staleness=4,
    )


@pytest.fixture
def started(repository: Path) -> Callable[[], Awaitable[Child]]:
    async def start() -> Child:
        child = Child(ARGV, name="learner", env={"PYTHONPATH": str(repository)})
        await child.start()
        return child

    return start


@pytest.mark.slow
def test_a_rank_that_ends_as_its_device_failed_says_so_at_last(repository: Path) -> None:
    end = "import torch; from echo2.coordinator.learner.__main__ import _end;"
    end += "_end(RuntimeError('CUDA error: an illegal access\\nCUDA kernel errors might be reported later'))"
    ended = subprocess.run([sys.executable, "-c", end], capture_output=True, text=True, check=False, cwd=repository)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"{DEVICE_LOST}: the device failed: CUDA error: an illegal access"


async def test_the_process_opens_steps_and_refuses(
    tmp_path: Path, model_folder: Path, started: Callable[[], Awaitable[Child]]
) -> None:
    learner = await started()
    with pytest.raises(ChildError, match="NotOpen: open the learner first"):
        await learner.call("train", ask(batch(1)), Stepped)
    opened = await learner.call("open", order(tmp_path, model_folder), Opened)
    assert opened.export is not None
    with pytest.raises(ChildError, match="BadBatch: step 7 was asked for"):
        await learner.call("train", ask(batch(7)), Stepped)
    stepped = await learner.call("train", ask(batch(1)), Stepped)
    assert stepped.export is not None
    assert stepped.metrics["tokens"] == 60.0
    assert await learner.stop() == 0


@pytest.mark.slow
async def test_a_process_killed_in_a_step_continues_from_its_checkpoint(
    tmp_path: Path, model_folder: Path, started: Callable[[], Awaitable[Child]]
) -> None:
    first, beginning = await started(), order(tmp_path, model_folder)
    opened = await first.call("open", beginning, Opened)
    stepped = await first.call("train", ask(batch(1)), Stepped)
    under_way = asyncio.create_task(first.call("train", ask(batch(2)), Stepped))
    await asyncio.sleep(0)
    first.kill()
    with pytest.raises(ChildDied):
        await under_way
    published = msgspec.structs.replace(beginning, published=opened.export.snapshot, published_root=opened.export.root)
    second = await started()
    again = await second.call("open", published, Opened)
    assert again.step == 1
    assert stepped.export is not None
    edges = [msgspec.structs.replace(edge, hashed=None) for edge in stepped.export.edges]
    assert again.export == msgspec.structs.replace(stepped.export, edges=edges)
    assert await second.stop() == 0
