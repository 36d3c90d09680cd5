"""A node as a service of the user's service manager (runtime/own_service.py)."""

from typing import Final

from echo2.node.config import NodeConfig
from echo2.node.home import invite_of_joined_run
from echo2.runtime.python_command import module_command
from echo2.runtime.service_unit import Service

STOP_SECONDS: Final = 30
"""Seconds until a node that is to stop is killed: it ends within 8 (node/daemon.py, rule 2a)."""


def service_of(config: NodeConfig) -> Service:
    """Return the service that continues the run joined last in a home. Raises `BadConfig` where none was joined, and
    `LocalFault` for a damaged invite."""
    home = config.home.absolute()
    invite_of_joined_run(home)
    command = module_command("echo2.node.cli", "run", "--home", str(home))
    return Service(
        "echo2-node", "echo2-node", "echo2 node", tuple(command), home, STOP_SECONDS,
        gives_way=config.priority != "normal",
    )  # fmt: skip
