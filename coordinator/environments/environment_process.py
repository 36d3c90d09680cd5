"""One process of an environment, started with its limits in an empty folder and an empty environment."""

import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

from coordinator.environments.limits import ANSWER, PRINTED, Limits
from coordinator.environments.messages import OpenTask, TaskOpened
from runtime.child import Child, Confined, python_path

HOST = "coordinator.environments.environment_host"
_SURROUNDINGS = {"PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1", "LANG": "C.UTF-8", "HF_HUB_OFFLINE": "1"}
"""One hash seed for all processes: tasks may iterate over sets."""


class EnvironmentProcess(Child):
    """A process of coordinator/environments/environment_host.py, not started yet."""

    def __init__(self, limits: Limits, *, module: str = HOST) -> None:
        """`module`: whose main serves the calls."""
        self.limits = limits
        self._folder = Path(tempfile.mkdtemp(prefix="echo2-environment-"))
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
