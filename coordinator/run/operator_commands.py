"""Send an operator's command to the coordinator of a run folder; coordinator/training/operator_socket.py answers it."""

from pathlib import Path
from typing import Any

from echo2.coordinator.settings.named_home import with_home
from echo2.p2p.errors import Unreachable
from echo2.runtime import control_client
from echo2.runtime.control_client import NoAnswer, NoDaemon, NotYours, Rejected
from echo2.runtime.errors import LocalFault


def command(home: Path, name: str, **facts: Any) -> dict[str, Any]:
    """Send one command and return its answer. Raises `Unreachable`, `LocalFault`."""
    try:
        return control_client.ask(home, command=name, **facts)
    except NoDaemon as error:
        start = with_home("echo2-coord run", home)
        raise Unreachable(f"no coordinator runs in {home}: start one with `{start}`") from error
    except NotYours as error:
        raise LocalFault(f"the coordinator in {home} belongs to another user: run the command as that user") from error
    except NoAnswer as error:
        raise Unreachable(f"the coordinator in {home} does not answer: look at its log") from error
    except Rejected as error:
        raise LocalFault(str(error)) from error
