"""The node's control socket (runtime/control_socket.py), with its errors translated to those of node/errors.py."""

from pathlib import Path
from typing import Any

from echo2.node.errors import BadConfig, NoDaemonAnswers, RefusedByRun, TryLater
from echo2.runtime import control_socket
from echo2.runtime.control_socket import (
    LINE_LIMIT,
    PATIENCE,
    Command,
    NoAnswer,
    NoDaemon,
    NotYours,
    Rejected,
    socket_path,
)

__all__ = ["LINE_LIMIT", "PATIENCE", "Command", "CommandServer", "ask_daemon", "socket_path"]


class CommandServer(control_socket.ControlSocket):
    """The server side of the socket. `commands`: name -> the coroutine that answers it."""

    def __init__(self, path: Path, commands: dict[str, Command]) -> None:
        super().__init__(path, commands, logger="node")

    async def run(self) -> None:
        """Serve until cancelled. Raises `BadConfig` if the socket's folder belongs to another user."""
        try:
            await super().run()
        except NotYours as error:
            raise BadConfig(str(error)) from error


def ask_daemon(home: Path, **asked: Any) -> dict[str, Any]:
    """Send one command to the daemon of `home` and return its answer. Raises `NoDaemonAnswers` if none runs or it does
    not answer, `BadConfig` if it belongs to another user, and `TryLater` if it refuses."""
    try:
        return control_socket.ask(home, **asked)
    except NoDaemon as error:
        raise NoDaemonAnswers(f"no node runs in {home}: start one with echo2-node run") from error
    except NotYours as error:
        raise BadConfig(f"the node in {home} belongs to another user: run the command as that user") from error
    except NoAnswer as error:
        raise NoDaemonAnswers(f"the node in {home} does not answer: look at its log") from error
    except Rejected as error:
        raise TryLater(str(error)) from error


def lease_of(text: str) -> bytes:
    """Return the id of a lease. Raises `BadConfig`."""
    try:
        lease = bytes.fromhex(text)
    except ValueError:
        lease = b""
    if len(lease) != 16:
        raise BadConfig(f"{text!r} names no lease: give its 32 hexadecimal digits, as in `echo2-node receipts list`")
    return lease


def ask_verdict(home: Path, lease: str, *, ask: bool = False) -> dict[str, Any]:
    """Return the basis of the verdict on a lease; `ask`: appeal it. Raises as `ask_daemon` does, `BadConfig` for a text
    that names no lease, and `RefusedByRun` where the coordinator refuses."""
    answer = ask_daemon(home, command="verdict", lease=lease_of(lease).hex(), ask=ask)
    if "refused" in answer:
        raise RefusedByRun(answer["refused"])
    return answer
