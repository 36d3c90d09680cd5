"""The commands `service install|uninstall|status`, which both programs have."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from echo2.runtime.command_app import CommandApp, Reported
from echo2.runtime.errors import LocalFault
from echo2.runtime.printable import printable
from echo2.runtime.service_unit import Service

ServiceOf = Callable[[Path | None], Service]
"""Returns the service of a home under the program's own name; None: the home that a command without --home has. Raises
the program's errors where there is nothing to run in it."""

Home = Annotated[Path | None, typer.Option("--home", help="The home, or run folder, of `run`.", show_default=False)]
OfHome = Annotated[Path | None, typer.Option("--home", help="Only if it runs this home.", show_default="any")]
ServiceName = Annotated[str, typer.Option("--name", metavar="WORD", help="Name of the service, if there are several.")]


def service_app(program: str, service_of: ServiceOf, reported: Reported) -> CommandApp:
    """Return the commands of a program. `reported`: its decorator of commands (runtime/cli_errors.py)."""
    app = CommandApp(
        reported, help="Run it in the background: by systemd, or by launchd on macOS.", no_args_is_help=True
    )

    @app.command("install")
    def install(home: Home = None, name: ServiceName = "") -> None:
        """Start it now, and from now on at boot or log-in. A second time it reports what changed."""
        from dataclasses import replace

        from echo2.runtime import own_service
        from echo2.runtime.systemd_launchd import manager_here

        manager = manager_here(program)
        service = replace(service_of(home), name=_name(program, name))
        _print(own_service.install(manager, service, os.environ))

    @app.command("uninstall")
    def uninstall(home: OfHome = None, name: ServiceName = "") -> None:
        """Stop it cleanly, and remove the service. Its home stays."""
        from echo2.runtime import own_service
        from echo2.runtime.systemd_launchd import manager_here

        _print(own_service.uninstall(manager_here(program), _name(program, name), _absolute(home)))

    @app.command("status")
    def status(home: OfHome = None, name: ServiceName = "") -> int:
        """Show the service, its home and its state. Exits with 0 if it is up."""
        from echo2.runtime import own_service
        from echo2.runtime.systemd_launchd import manager_here

        rows, code = own_service.describe(manager_here(program), program, _name(program, name), _absolute(home))
        _print(rows)
        return code

    return app


def _name(program: str, word: str) -> str:
    if word and not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", word):
        raise LocalFault(f"--name {word!r} should be a word of a-z, 0-9 and hyphens")
    return f"{program}-{word}" if word else program


def _absolute(home: Path | None) -> Path | None:
    return None if home is None else home.absolute()


def _print(rows: list[str]) -> None:
    for row in rows:
        typer.echo(printable(row))
