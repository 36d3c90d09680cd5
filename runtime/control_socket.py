"""The local socket of a daemon: a line {"command": ...} is answered {"ok": true, ...} or {"ok": false, "error": ...}.

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
import errno
import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import structlog

LINE_LIMIT: Final = 64 << 10
PATIENCE: Final = 30.0
_NAME: Final = "control.sock"
"""File name of a socket that lies in its home."""
_LONGEST_PATH: Final = 100
"""Bytes; Linux takes 107, macOS 103."""

Command = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class ControlFault(Exception):
    """A command did not reach its daemon, or was refused; the message says why."""


class NoDaemon(ControlFault):
    """No daemon listens for this home."""


class NotYours(ControlFault):
    """The socket, or its folder, belongs to another user."""


class NoAnswer(ControlFault):
    """The daemon is there and does not answer."""


class Rejected(ControlFault):
    """The daemon refuses the command."""


def socket_path(home: Path) -> Path:
    """Return where the daemon of `home` listens."""
    path = home.absolute() / _NAME
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:16]
    short = Path(f"echo2-{os.geteuid()}") / f"{digest}.sock"
    path = tempfile.gettempdir() / short
    return path if len(os.fsencode(path)) <= _LONGEST_PATH else "/tmp" / short


def _bind(listener: socket.socket, path: Path) -> None:
    """Bind a socket that its owner alone can open, from its first moment on (rule 1)."""
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)


def _is_ours(folder: Path) -> bool:
    return folder.stat().st_uid == os.geteuid()


def _is_ours_alone(folder: Path) -> bool:
    """Tell whether a folder in a place where others write is a folder, this user's, and closed to all others (rule
    3)."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EACCES):
            return False
        raise
    try:
        status = os.fstat(opened)
        return status.st_uid == os.geteuid() and not status.st_mode & 0o077
    finally:
        os.close(opened)


class ControlSocket:
    """The daemon's end of the socket. `commands`: name -> its handler. `logger`: the name of the daemon's log.
    `listening`: set once commands are accepted."""

    def __init__(self, path: Path, commands: dict[str, Command], *, logger: str) -> None:
        self._path, self._commands = path, commands
        self._log = structlog.get_logger(logger)
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled, or return at once by rule 4. The caller holds the home's lock, so an existing socket
        is a dead daemon's and is replaced. Raises `NotYours`."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            try:
                self._make_room()
                _bind(listener, self._path)
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
        if not (_is_ours(folder) if self._path.name == _NAME else _is_ours_alone(folder)):
            in_home = "run this as that user, or choose another --home"
            elsewhere = "have it removed, or choose a --home with a shorter path"
            raise NotYours(f"{folder} belongs to another user: {in_home if self._path.name == _NAME else elsewhere}")
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await asyncio.wait_for(reader.readline(), PATIENCE):
                writer.write(json.dumps(await self._answer(request)).encode() + b"\n")
                await asyncio.wait_for(writer.drain(), PATIENCE)
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


def ask(home: Path, **asked: Any) -> dict[str, Any]:
    """Send one command to the daemon of `home`, from another process, and return the answer. Raises `ControlFault`."""
    path = socket_path(home)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        try:
            if path.name != _NAME and not _is_ours_alone(path.parent):
                raise NotYours(str(home))
            connection.connect(str(path))
            connection.sendall(json.dumps(asked).encode() + b"\n")
            with connection.makefile("rb") as stream:
                answer = json.loads(stream.readline() or b"{}")
        except (FileNotFoundError, ConnectionError) as error:
            raise NoDaemon(str(home)) from error
        except PermissionError as error:
            raise NotYours(str(home)) from error
        except (TimeoutError, ValueError) as error:
            raise NoAnswer(str(home)) from error
    if not answer.pop("ok", False):
        raise Rejected(answer.get("error", "the daemon gave no answer"))
    return dict(answer)
