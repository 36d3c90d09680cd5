"""`echo2-coord backup` and `restore`: copies of run.sqlite."""

from pathlib import Path
from typing import Annotated

import typer

from echo2.coordinator.command_line import command_options
from echo2.coordinator.command_line.command_options import Home, errors_reported

backup_app = typer.Typer()


@backup_app.command()
@errors_reported
def backup(
    file: Annotated[Path, typer.Argument(help="The copy to write; an existing file stays.", show_default=False)],
    home: Home = Path("."),
) -> None:
    """Copy run.sqlite, which has the ledger, and verify the copy. Works while the coordinator runs."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.ledger_files import ledger_backup

    copied = ledger_backup.backup(RunFolder(home), file, command_options.now())
    print(f"{file} has {copied.sentence()}")
    print("keys, Roots, RunSpec, model and checkpoints are other files of the run folder: copy them too")


@backup_app.command()
@errors_reported
def restore(
    file: Annotated[Path, typer.Argument(help="A copy, by `backup`.", show_default=False)],
    home: Home = Path("."),
) -> None:
    """Put a copy in the place of run.sqlite, while no coordinator runs. Entries made after the copy are lost."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.ledger_files import ledger_backup

    copied = ledger_backup.restore(RunFolder(home), file, command_options.now())
    print(f"run.sqlite is restored, with {copied.sentence()}")
    print("for an hour after the next start no head is signed: if a node holds a later one, the run pauses and says so")
    print("payments in money wait until you have run `echo2-coord payout restored`")
