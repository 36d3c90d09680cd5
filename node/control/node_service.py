"""A node as a service of the user's service manager (runtime/own_service.py)."""

from typing import Final

from echo2.node.config import NodeConfig
from echo2.node.home import invite_of_joined_run
from echo2.runtime.python_command import module_command
from echo2.runtime.service_unit import Service

GROUP_SECONDS: Final = 180
"""Seconds for the groups under way at a stop, beside the setting `drain`; then the outbox is delivered at the next
start."""


def service_of(config: NodeConfig) -> Service:
    """Return the service that continues the run joined last in a home. Raises `BadConfig` where none was joined, and
    `LocalFault` for a damaged invite."""
    home = config.home.absolute()
    invite_of_joined_run(home)
    command = module_command("echo2.node.cli", "run", "--home", str(home))
    return Service(
        "echo2-node", "echo2-node", "echo2 node", tuple(command), home, int(config.drain) + GROUP_SECONDS,
        gives_way=config.priority != "normal",
    )  # fmt: skip
