"""Ask a daemon over its local socket, and where that socket lies (the rules of runtime/control_socket.py)."""

import errno
import hashlib
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any, Final

ANSWER_SECONDS: Final = 30.0
NAME: Final = "control.sock"
"""File name of a socket that lies in its home."""
_LONGEST_PATH: Final = 100
"""Bytes; Linux takes 107, macOS 103."""


class ControlFault(Exception):
    """A command did not reach its daemon, or was refused; the message says why."""


class NoDaemon(ControlFault):
    """No daemon listens for this home."""


class NotYours(ControlFault):
    """The socket, or its folder, belongs to another user."""


class NoAnswer(ControlFault):
    """The daemon is there and does not answer."""


class Rejected(ControlFault):
    """The daemon refuses the command. `exit`: exit code of the command that asked; None: it is worth another try."""

    def __init__(self, sentence: str, code: int | None) -> None:
        super().__init__(sentence)
        self.exit = code


def socket_path(home: Path) -> Path:
    """Return where the daemon of `home` listens."""
    path = home.absolute() / NAME
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:16]
    short = Path(f"echo2-{os.geteuid()}") / f"{digest}.sock"
    path = tempfile.gettempdir() / short
    return path if len(os.fsencode(path)) <= _LONGEST_PATH else "/tmp" / short


def is_ours_alone(folder: Path) -> bool:
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


def ask(home: Path, **asked: Any) -> dict[str, Any]:
    """Send one command to the daemon of `home`, from another process, and return the answer. Raises `ControlFault`."""
    path = socket_path(home)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        try:
            if path.name != NAME and not is_ours_alone(path.parent):
                raise NotYours(str(home))
            connection.connect(str(path))
            connection.sendall(json.dumps(asked).encode() + b"\n")
            with connection.makefile("rb") as stream:
                answer = json.loads(stream.readline() or b"{}")
        except (FileNotFoundError, NotADirectoryError, ConnectionError) as error:
            raise NoDaemon(str(home)) from error
        except PermissionError as error:
            raise NotYours(str(home)) from error
        except (TimeoutError, ValueError) as error:
            raise NoAnswer(str(home)) from error
        except OSError as error:
            if error.errno != errno.ESTALE:  # on NFS: another machine's daemon has removed its socket
                raise
            raise NoDaemon(str(home)) from error
    if not answer.pop("ok", False):
        raise Rejected(answer.get("error", "the daemon gave no answer"), answer.get("exit"))
    return dict(answer)
