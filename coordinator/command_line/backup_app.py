"""`echo2-coord backup`, `restore` and `restored`: copies of a run, and of run.sqlite alone."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from echo2.coordinator.command_line import command_options
from echo2.coordinator.command_line.command_options import CommandApp, Home

backup_app = CommandApp()


@backup_app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; an existing one stays.", show_default=False)],
    home: Home = Path("."),
    database: Annotated[bool, typer.Option("--database", help="Only run.sqlite, which has the ledger.")] = False,
) -> None:
    """Copy all that a restore needs into one file, and verify it. Works while the coordinator runs. Keys are encrypted
    under a passphrase: ECHO2_BACKUP_PASSPHRASE, or a question."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.ledger_files import ledger_backup, run_backup

    if database:
        copied = ledger_backup.backup(RunFolder(home), file, command_options.now())
        print(f"{file} has {copied.sentence()}")
        print("keys, model and checkpoints are not in it: `backup` without --database copies all")
        return
    run_backup.check(RunFolder(home), file)
    done = run_backup.backup(RunFolder(home), file, _passphrase(new=True), command_options.now())
    print(f"{file} has {done.files} files, {done.nbytes / 1e6:,.1f} MB, and {done.copied.sentence()}")
    print("without its passphrase nobody restores it, you included; the files of your tasks outside are not in it")


@backup_app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A copy, by `backup`.", show_default=False)],
    home: Home = Path("."),
) -> None:
    """Make a run folder from a backup, in a folder that is new or empty. Of a copy by `backup --database`, put
    run.sqlite back, while no coordinator runs. Later work is lost."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.ledger_files import ledger_backup, run_backup

    if ledger_backup.is_database(file):
        copied = ledger_backup.restore(RunFolder(home), file, command_options.now())
        print(f"run.sqlite is restored, with {copied.sentence()}")
    else:
        copied = run_backup.restore(file, home, _passphrase(new=False), command_options.now())
        print(f"{home} is restored, with {copied.sentence()}")
        print(
            "it signs nothing yet, as its keys are still encrypted: once the other coordinator has stopped for good, "
            f"run `echo2-coord restored --home {home}`"
        )
    print("for an hour after the next start no head is signed: if a node holds a later one, the run pauses and says so")
    print("payments in money wait until you have run `echo2-coord payout restored`")


@backup_app.command("restored")
def confirm_restored(
    home: Home = Path("."),
    yes: Annotated[bool, typer.Option("--yes", help="The other coordinator has stopped for good.")] = False,
) -> None:
    """Confirm that the other coordinator of a restored run has stopped for good: the copy gets its keys."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.ledger_files import run_backup
    from echo2.runtime.errors import LocalFault
    from echo2.runtime.terminal_question import ask_agreement

    run_backup.sealed_keys(RunFolder(home))
    question = "Two coordinators with one key make nodes stop for good. Has the other one stopped, and will it stay so?"
    if not (yes or ask_agreement(question, default=False)):
        raise LocalFault("nothing is changed: stop the other coordinator first")
    run_backup.confirm(RunFolder(home), _passphrase(new=False), command_options.now())
    print(f"the keys are in place: start it with `echo2-coord run --home {home}`")


def _passphrase(*, new: bool) -> str:
    """Return the passphrase of a backup. `new`: ask for it twice. Raises `LocalFault`."""
    from echo2.coordinator.run.keys import BACKUP_PASSPHRASE_VARIABLE
    from echo2.runtime.errors import LocalFault

    if given := os.environ.get(BACKUP_PASSPHRASE_VARIABLE):
        return given
    if not sys.stdin.isatty():
        raise LocalFault(f"a backup has a passphrase, for the keys in it: set {BACKUP_PASSPHRASE_VARIABLE}")
    asked: str = typer.prompt("Passphrase of the backup", hide_input=True, confirmation_prompt=new)
    return asked
