"""`echo2-coord verdict`: one verdict shown, made again, reversed."""

from pathlib import Path
from typing import Annotated

import typer

from echo2.coordinator.command_line.command_options import Home, LeaseId, errors_reported

verdict_app = typer.Typer(help="Verdicts on groups, by the lease.", no_args_is_help=True)


@verdict_app.command("show")
@errors_reported
def verdict_show(lease: LeaseId, home: Home = Path(".")) -> None:
    """Show a verdict: statistic, threshold, Calibration, stored evidence, further checks. Works at any time."""
    from echo2.coordinator.command_line import replay_report
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.submissions import verdict_commands

    place = RunFolder(home)
    print("\n".join(verdict_commands.show(place, replay_report.classes_of(place), lease)))


@verdict_app.command("rerun")
@errors_reported
def verdict_rerun(lease: LeaseId, home: Home = Path(".")) -> None:
    """Have a verdict checked again by another scorer process, within 24 hours. Needs the running coordinator."""
    from echo2.coordinator.submissions import verdict_commands

    print(verdict_commands.submit(home, "rerun", lease))


@verdict_app.command("reverse")
@errors_reported
def verdict_reverse(
    lease: LeaseId, why: Annotated[str, typer.Option(help="The node is told.")], home: Home = Path(".")
) -> None:
    """Reverse a verdict: pay a refused group, or take an accepted one back. Needs the running coordinator."""
    from echo2.coordinator.submissions import verdict_commands

    print(verdict_commands.submit(home, "reverse", lease, why))
