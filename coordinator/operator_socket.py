"""The operator's commands at a running coordinator, over the run folder's local socket: `pause`, `resume`, `keys`,
`remark`.

The page is for anybody who can open it; this socket is for the owner of the run folder alone.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from coordinator.training.run_watch import Watch
from runtime.control_socket import ControlSocket, NotYours, socket_path
from runtime.errors import LocalFault

MOST_WHY = 300
"""Characters of the operator's reason, which the page shows."""


class OperatorSocket:
    """Serves the commands. `home`: the run folder. `renew`: take the folder's newest Root; its serial. `remark`: write
    what the operator says of a key (coordinator/accounts/operator_remarks.py): word, peer id, reason; what is so
    then."""

    def __init__(
        self,
        home: Path,
        watch: Watch,
        renew: Callable[[], Awaitable[int]] | None = None,
        remark: Callable[[str, str, str], Awaitable[str]] | None = None,
    ) -> None:
        self._watch = watch
        self._renew = renew
        self._remark = remark
        commands: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "keys": self._keys,
            "remark": self._remarked,
        }
        self.server = ControlSocket(socket_path(home), commands, logger="coordinator")

    async def run(self) -> None:
        """Serve until cancelled. Raises `LocalFault` where the socket's folder belongs to another user."""
        try:
            await self.server.run()
        except NotYours as error:
            raise LocalFault(f"{error}: move the run to a folder with a shorter path") from error

    async def _pause(self, asked: dict[str, Any]) -> dict[str, Any]:
        why = asked.get("why", "")
        if not isinstance(why, str) or len(why) > MOST_WHY:
            raise ValueError(f"the reason is a text of at most {MOST_WHY} characters")
        self._watch.stop(why.encode(errors="replace").decode())  # a shell may pass bytes that are no UTF-8
        await self._watch.durable()
        return {"paused": True}

    async def _resume(self, asked: dict[str, Any]) -> dict[str, Any]:
        was_paused = self._watch.resume()
        await self._watch.durable()
        return {"paused": False, "was_paused": was_paused}

    async def _keys(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._renew is None:
            raise ValueError("this program does not take other keys while it runs")
        try:
            return {"serial": await self._renew()}
        except LocalFault as error:
            raise ValueError(str(error)) from error

    async def _remarked(self, asked: dict[str, Any]) -> dict[str, Any]:
        words = [asked.get(name) for name in ("word", "node", "why")]
        if self._remark is None or not all(isinstance(word, str) for word in words):
            raise ValueError("a remark is a word, a node's peer id and a reason")
        try:
            return {"said": await self._remark(*map(str, words))}
        except LocalFault as error:
            raise ValueError(str(error)) from error
