"""The daemon's local socket: one JSON object a line, {"command": ...} -> {"ok": true, ...} or {"ok": false, "error"}.

Rules
1. A Unix socket, mode 0600, in a folder of this user: whoever may open it is the owner. No TCP port, so that no
   web page can reach it.
2. A line is bounded; a client that says nothing for `PATIENCE` seconds is dropped.
3. The path must fit into a socket address: a home folder that is too deep gets a short folder in the system's place for
   temporary files, or in /tmp where that is too deep as well, mode 0700, named for the user and the home.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import structlog

from node.errors import BadConfig, TryLater

LINE_LIMIT: Final = 64 << 10
PATIENCE: Final = 30.0
_LONGEST_PATH: Final = 100
"""Bytes; Linux takes 107, macOS 103."""

Command = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

_log = structlog.get_logger("node")


def socket_path(home: Path) -> Path:
    """Where the daemon of `home` listens."""
    path = home.absolute() / "control.sock"
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:16]
    short = Path(f"echo2-{os.geteuid()}") / f"{digest}.sock"
    path = tempfile.gettempdir() / short
    return path if len(os.fsencode(path)) <= _LONGEST_PATH else "/tmp" / short


class ControlServer:
    """`commands`: name -> what answers it."""

    def __init__(self, path: Path, commands: dict[str, Command]) -> None:
        self._path, self._commands = path, commands

    async def run(self) -> None:
        """Serve until cancelled. The home's lock is held: a socket that is there is a dead one's."""
        self._make_room()
        server = await asyncio.start_unix_server(self._serve, self._path, limit=LINE_LIMIT)
        self._path.chmod(0o600)
        try:
            async with server:
                await server.serve_forever()
        finally:
            self._path.unlink(missing_ok=True)

    def _make_room(self) -> None:
        folder = self._path.parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_uid != os.geteuid():
            raise BadConfig(f"{folder} belongs to another user: choose a shorter --home")
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                while line := await reader.readline():
                    writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                    await writer.drain()
        except (TimeoutError, ValueError, ConnectionError) as error:
            _log.debug("control client dropped", reason=str(error))
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(line)
        except (ValueError, RecursionError):
            return {"ok": False, "error": "not a line of JSON"}
        name = asked.get("command") if isinstance(asked, dict) else None
        command = self._commands.get(name) if isinstance(name, str) else None
        if command is None:
            return {"ok": False, "error": f"no such command; there are {', '.join(sorted(self._commands))}"}
        try:
            return {"ok": True, **await command(asked)}
        except (TypeError, ValueError) as error:
            return {"ok": False, "error": str(error)}


def ask_daemon(home: Path, **asked: Any) -> dict[str, Any]:
    """One command to the daemon of `home`, from another process. Raises `TryLater` when none runs, or it refuses."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(PATIENCE)
        try:
            line.connect(str(socket_path(home)))
            line.sendall(json.dumps(asked).encode() + b"\n")
            with line.makefile("rb") as stream:
                answer = json.loads(stream.readline() or b"{}")
        except (FileNotFoundError, ConnectionError) as error:
            raise TryLater(f"no node runs in {home}: start one with echo2-node run") from error
        except PermissionError as error:
            raise TryLater(f"the node in {home} belongs to another user") from error
        except (TimeoutError, ValueError) as error:
            raise TryLater(f"the node in {home} does not answer") from error
    if not answer.pop("ok", False):
        raise TryLater(answer.get("error", "the daemon gave no answer"))
    return dict(answer)
