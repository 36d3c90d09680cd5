"""The daemon's end of the node's control socket (runtime/control_socket.py), with the errors of node/errors.py."""

from pathlib import Path

from echo2.node.errors import BadConfig, own_code
from echo2.runtime import control_socket
from echo2.runtime.control_client import NotYours
from echo2.runtime.control_socket import Command


class CommandServer(control_socket.ControlSocket):
    """The server side of the socket. `commands`: name -> the coroutine that answers it."""

    def __init__(self, path: Path, commands: dict[str, Command]) -> None:
        super().__init__(path, commands, logger="node", own_code=own_code)

    async def run(self) -> None:
        """Serve until cancelled. Raises `BadConfig` if the socket's folder belongs to another user."""
        try:
            await super().run()
        except NotYours as error:
            raise BadConfig(str(error)) from error
