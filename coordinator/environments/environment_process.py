"""One process of an environment, started with its limits in an empty folder and an empty environment.

The folder is deleted with the process. That of a coordinator that was killed is deleted by the next one (`sweep`): its
name has the coordinator's process id.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

from coordinator.environments.limits import ANSWER, PRINTED, Limits
from coordinator.environments.messages import OpenTask, TaskOpened
from runtime.child import Child, Confined, python_path

HOST = "coordinator.environments.environment_host"
FOLDERS = "echo2-environment-"
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

    async def open(self, order: OpenTask) -> TaskOpened:
        """Start the process and open a task. Raises ChildDied, ChildError, TimeoutError."""
        await self.start()
        return await self.call("open", order, TaskOpened, timeout=self.limits.opening)

    async def end(self) -> None:
        """End the process, and delete its folder."""
        if self._process is not None:
            self.kill()
            await self.exited
        shutil.rmtree(self._folder, ignore_errors=True)


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
