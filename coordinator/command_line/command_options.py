"""The parts that all commands share: the program's name, options, the clock, and the end by an error.

An error is one line on stderr and an exit code (runtime/cli_errors.py, coordinator/command_line/exit_table.py).
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from echo2.coordinator.command_line.exit_table import own_code
from echo2.runtime.cli_errors import report_errors
from echo2.runtime.command_app import CommandApp as ReportingApp
from echo2.runtime.named_folder import FOLDER
from echo2.runtime.units import unix_milliseconds

PROGRAM: Final = "echo2-coord"

Home = Annotated[Path, typer.Option("--home", **FOLDER, envvar="ECHO2_COORD_HOME", help="The run folder.")]
Peer = Annotated[str, typer.Argument(metavar="NODE", help="Its peer id: 12D3Koo...", show_default=False)]
LeaseId = Annotated[str, typer.Argument(metavar="LEASE", help="Its 32 hexadecimal digits.", show_default=False)]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting, as often as needed.")
]

errors_reported = report_errors(PROGRAM, own_code)
CommandApp = partial(ReportingApp, errors_reported)


def now() -> int:
    """Return the time of a command, in milliseconds: its only clock."""
    return unix_milliseconds()


def settings_of(sets: list[str] | None, **sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings given on the command line, by section; options that were not given are left out."""
    from echo2.coordinator.settings.config import from_assignments

    given = from_assignments(sets or [])
    for section, values in sections.items():
        given.setdefault(section, {}).update({key: value for key, value in values.items() if value is not None})
    return given
