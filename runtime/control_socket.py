"""The local socket of a daemon: a line {"command": ...} is answered {"ok": true, ...} or {"ok": false, "error": ...}.
"exit" beside an error: the exit code of the command that asked; absent: it is worth another try.

Rules
1. It is a Unix socket, mode 0600, in a folder of this user: only processes of its owner can open it. There is no TCP
   port, so no web page can reach it.
2. A line has at most `LINE_LIMIT` bytes. It arrives within `PATIENCE` seconds of the answer before it, and an answer is
   taken within as many; else the connection ends. A command takes as long as it needs: it is not ended halfway.
3. The path must fit into a socket address. If the home's path is too long, the socket lies in the system's folder for
   temporary files, or in /tmp if that is too long as well. There it has a folder of its own, mode 0700; the names hold
   the user's id and the home's hash. Others may write beside that folder: it is opened without following a link, and
   used only if it is this user's alone, by the daemon and by whoever asks it.
4. Where the socket cannot be created (some file systems hold none), the daemon runs without commands, and the log
   says so.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import structlog

from echo2.runtime.cli_errors import OwnCode, exit_code
from echo2.runtime.control_client import ANSWER_SECONDS, NAME, is_ours_alone
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit

LINE_LIMIT: Final = 64 << 10

Command = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def bind_for_owner(listener: socket.socket, path: Path) -> None:
    """Bind a socket that its owner alone can open, from its first moment on (rule 1)."""
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)


def _is_ours(folder: Path) -> bool:
    return folder.stat().st_uid == os.geteuid()


class ControlSocket:
    """The daemon's end of the socket. `commands`: name -> its handler. `logger`: the name of the daemon's log.
    `own_code`: exit code of an error of the daemon's own. `listening`: set once commands are accepted."""

    def __init__(
        self, path: Path, commands: dict[str, Command], *, logger: str, own_code: OwnCode = lambda error: None
    ) -> None:
        self._path, self._commands, self._own_code = path, commands, own_code
        self._log = structlog.get_logger(logger)
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled, or return at once by rule 4. The caller holds the home's lock, so an existing socket
        is a dead daemon's and is replaced. Raises `LocalFault` if the folder belongs to another user."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            try:
                self._make_room()
                bind_for_owner(listener, self._path)
            except OSError as error:
                self._log.warning("commands cannot reach this daemon", socket=str(self._path), reason=str(error))
                return
            async with await asyncio.start_unix_server(self._serve, sock=listener, limit=LINE_LIMIT) as server:
                self.listening.set()
                await server.serve_forever()
        finally:
            listener.close()
            with contextlib.suppress(OSError):  # a socket that could not be created need not be removed
                self._path.unlink()

    def _make_room(self) -> None:
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (_is_ours(folder) if self._path.name == NAME else is_ours_alone(folder)):
            in_home = "run this as that user, or choose another --home"
            elsewhere = "have it removed, or choose a --home with a shorter path"
            raise LocalFault(f"{folder} belongs to another user: {in_home if self._path.name == NAME else elsewhere}")
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await asyncio.wait_for(reader.readline(), ANSWER_SECONDS):
                writer.write(json.dumps(await self._answer(request)).encode() + b"\n")
                await asyncio.wait_for(writer.drain(), ANSWER_SECONDS)
        except (TimeoutError, ValueError, ConnectionError) as error:
            self._log.debug("control client dropped", reason=str(error))
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, request: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(request)
        except (ValueError, RecursionError):
            return {"ok": False, "error": "the request is not a line of JSON"}
        name = asked.get("command") if isinstance(asked, dict) else None
        command = self._commands.get(name) if isinstance(name, str) else None
        if command is None:
            return {"ok": False, "error": f"no such command; there are {', '.join(sorted(self._commands))}"}
        try:
            return {"ok": True, **await command(asked)}
        except (TypeError, ValueError) as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:
            if (code := exit_code(error, self._own_code)) is Exit.INTERNAL:
                raise
            return {"ok": False, "error": str(error), "exit": code}
