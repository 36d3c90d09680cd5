"""Ask this owner's daemon over its control socket, with the errors of node/errors.py."""

from pathlib import Path
from typing import Any, Final

from echo2.node.errors import BadConfig, NoDaemonAnswers, NodeError, RefusedByRun, TrustFailure, TryLater
from echo2.node.home import LEFT
from echo2.runtime import control_client
from echo2.runtime.control_client import NoAnswer, NoDaemon, NotYours, Rejected
from echo2.runtime.network_disk import disk_of

_BY_EXIT: Final[dict[int | None, type[NodeError]]] = {
    kind.exit: kind for kind in (BadConfig, RefusedByRun, TrustFailure)
}

_SOCKET_OF_ONE_MACHINE: Final = (
    "on this machine (a node on another one that has this folder takes commands there alone)"
)
"""Advice where a home may be on a network disk: a socket is of one machine."""


def ask_daemon(home: Path, **asked: Any) -> dict[str, Any]:
    """Send one command to the daemon of `home` and return its answer. Raises `NoDaemonAnswers` if none runs or it does
    not answer, `BadConfig` if it belongs to another user, and, where it refuses, the error that it names: `TryLater`
    unless a person must put something right."""
    try:
        return control_client.ask(home, **asked)
    except NoDaemon as error:
        none = "the last run was left" if (home / LEFT).exists() else "no run was joined yet"
        start = "`echo2-node run`" if (home / "invite").exists() else f"`echo2-node join INVITE`; {none}"
        elsewhere = f" {_SOCKET_OF_ONE_MACHINE}" if disk_of(home).is_shared else ""
        raise NoDaemonAnswers(f"no node runs in {home}{elsewhere}: start one with {start}") from error
    except NotYours as error:
        raise BadConfig(f"the node in {home} belongs to another user: run the command as that user") from error
    except NoAnswer as error:
        raise NoDaemonAnswers(f"the node in {home} does not answer: look at its log") from error
    except Rejected as error:
        raise _BY_EXIT.get(error.exit, TryLater)(str(error)) from error


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
    if "refused" in answer:  # of a daemon that began before an update
        raise RefusedByRun(answer["refused"])
    return answer
