"""One process of an environment, started with its limits in an empty folder and an empty environment.

The folder is looked at each `LOOK` seconds: beyond `FOLDER` bytes or `FILES` files the process is killed. So it may
hold more by as much as can be written meanwhile. The folder is deleted with the process. That of a coordinator that was
killed is deleted by the next one (`sweep`): its name has the coordinator's process id.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from coordinator.environments.limits import ANSWER, PRINTED, Limits
from coordinator.environments.messages import OpenTask, TaskOpened
from runtime.child import Child, Confined, python_path

HOST = "coordinator.environments.environment_host"
FOLDERS = "echo2-environment-"
FOLDER: Final = 512 << 20
"""Most bytes on the disk in the folder of a process."""
FILES: Final = 10_000
"""Most files and folders in it."""
LOOK: Final = 1.0
_SURROUNDINGS = {"PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1", "LANG": "C.UTF-8", "HF_HUB_OFFLINE": "1"}
"""One hash seed for all processes: tasks may iterate over sets."""


class EnvironmentProcess(Child):
    """A process of coordinator/environments/environment_host.py, not started yet."""

    def __init__(self, limits: Limits, *, module: str = HOST) -> None:
        """`module`: whose main serves the calls."""
        self.limits = limits
        self._folder = Path(tempfile.mkdtemp(prefix=f"{FOLDERS}{os.getpid()}-"))
        places = {"HOME": str(self._folder), "TMPDIR": str(self._folder)}
        super().__init__(
            [sys.executable, "-m", module, msgspec.json.encode(limits).decode()],
            name="environment",
            env=python_path(_SURROUNDINGS | places),
            confined=Confined(self._folder, ANSWER, PRINTED),
        )
        self._looking: asyncio.Task[None] | None = None

    async def open(self, order: OpenTask) -> TaskOpened:
        """Start the process and open a task. Raises ChildDied, ChildError, TimeoutError."""
        await self.start()
        self._looking = asyncio.create_task(self._look())
        return await self.call("open", order, TaskOpened, timeout=self.limits.opening)

    async def end(self) -> None:
        """End the process, and delete its folder."""
        if self._looking is not None:
            self._looking.cancel()
        if self._process is not None:
            self.kill()
            await self.exited
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _look(self) -> None:
        """Kill the process once its folder is too full."""
        while not self.has_ended:
            if await asyncio.to_thread(is_full, self._folder):
                self.kill(f"its folder has more than {FOLDER} bytes, or {FILES} files")
                return
            await asyncio.sleep(LOOK)


def is_full(folder: Path) -> bool:
    """Tell whether a folder, with those in it, has more than `FOLDER` bytes or `FILES` files; neither follows links."""
    files, size, below = 0, 0, [str(folder)]
    while below:
        with contextlib.suppress(OSError), os.scandir(below.pop()) as entries:  # what is deleted meanwhile is not there
            for entry in entries:
                files, size = files + 1, size + 512 * entry.stat(follow_symlinks=False).st_blocks
                if files > FILES or size > FOLDER:
                    return True
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
    return False


def sweep() -> None:
    """Delete the folders of coordinators that no longer run."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*-*"):
        owner = folder.name.removeprefix(FOLDERS).partition("-")[0]
        if owner.isdigit() and not _runs(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
