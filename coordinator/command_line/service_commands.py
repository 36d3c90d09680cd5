"""`echo2-coord service`: the coordinator of a run folder as a service of the user's service manager."""

import os
from pathlib import Path
from typing import Final

from echo2.coordinator.command_line.command_options import PROGRAM, errors_reported
from echo2.runtime.python_command import module_command
from echo2.runtime.service_app import service_app
from echo2.runtime.service_unit import Service

STOP_SECONDS: Final = 180
"""Most seconds for a coordinator's end in order: the step that has begun is not completed, its files are."""


def _service(home: Path | None) -> Service:
    """Return the service of a run folder. Raises `LocalFault`, `Untrusted` where there is no run in it."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.run import setup
    from echo2.coordinator.settings import config

    place = RunFolder((home or Path(os.environ.get("ECHO2_COORD_HOME") or ".")).absolute())
    config.load(place.config)
    setup.read_documents(place)
    command = module_command("echo2.coordinator.cli", "run", "--home", str(place.path))
    return Service(PROGRAM, PROGRAM, "echo2 coordinator", tuple(command), place.path, STOP_SECONDS)


service_commands = service_app(PROGRAM, _service, errors_reported)
