"""One process of an environment, started with its limits in an empty folder and an empty environment.

The folder is looked at each `FOLDER_POLL_SECONDS` seconds: beyond its bounds (work_folders.py) the process is killed.
So it may hold more by as much as can be written meanwhile. The folder is deleted with the process.
"""

import asyncio
import os
import site
from typing import Final

import msgspec

from echo2.coordinator.environments.limits import MOST_ANSWER_BYTES, MOST_PRINTED_BYTES, Limits
from echo2.coordinator.environments.messages import OpenTask, TaskOpened
from echo2.coordinator.environments.work_folders import BOUNDS, delete_folder, is_full, make_folder
from echo2.runtime.child import Child, Confined
from echo2.runtime.python_command import module_command

HOST = "echo2.coordinator.environments.environment_host"
FOLDER_POLL_SECONDS: Final = 1.0
_SURROUNDINGS = {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "HF_HUB_OFFLINE": "1"}
"""One hash seed for all processes: tasks may iterate over sets."""


def _search_path() -> dict[str, str]:
    """Return the variables by which the child finds the packages that this process finds. HOME, which is another folder
    there, would move the user's own site."""
    user = {"PYTHONUSERBASE": site.getuserbase()} if site.ENABLE_USER_SITE else {"PYTHONNOUSERSITE": "1"}
    path = os.environ.get("PYTHONPATH")
    return {**user, "PYTHONPATH": path} if path else user


class EnvironmentProcess(Child):
    """A process of coordinator/environments/environment_host.py, not started yet."""

    def __init__(self, limits: Limits, *, module: str = HOST) -> None:
        """`module`: whose main serves the calls."""
        self.limits = limits
        self._folder = make_folder()
        places = {"HOME": str(self._folder), "TMPDIR": str(self._folder)}
        super().__init__(
            module_command(module, msgspec.json.encode(limits).decode()),
            name="environment",
            env={**_SURROUNDINGS, **places, **_search_path()},
            confined=Confined(self._folder, MOST_ANSWER_BYTES, MOST_PRINTED_BYTES),
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
        await asyncio.to_thread(delete_folder, self._folder)

    async def _look(self) -> None:
        """Kill the process once its folder is too full."""
        while not self.has_ended:
            if await asyncio.to_thread(is_full, self._folder):
                self.kill(BOUNDS)
                return
            await asyncio.sleep(FOLDER_POLL_SECONDS)
