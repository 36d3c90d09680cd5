"""`echo2-coord redteam`: its options."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.attacks.command import play
from echo2.coordinator.command_line.checkout_commands import PASSED_APP
from echo2.coordinator.command_line.command_options import CommandApp
from echo2.runtime.logs import set_up_logging, to_stream

redteam_app = CommandApp(**PASSED_APP)


@redteam_app.command()
def redteam(
    quick: Annotated[bool, typer.Option("--quick", help="The main attacks, for a shorter time: some minutes.")] = False,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="A family, or a part of an attack's sentence; as often as needed.", show_default="all"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    home: Annotated[
        Path | None, typer.Option("--home", help="A run folder whose settings are tried.", show_default="none")
    ] = None,
) -> None:
    """Attack a coordinator of this machine, on loopback only, and report what held. Exits with 1 if a row broke."""
    set_up_logging(to_stream(), level="warning")  # what the product logs while it is attacked here is for nobody
    if not play(attack or [], quick=quick, as_json=as_json, home=home, console=Console(highlight=False)):
        raise SystemExit(1)


if __name__ == "__main__":
    redteam_app()
