"""`echo2-coord ledger`: export, verification, replay, balances, entries and their proofs, the signed head."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from echo2.coordinator.command_line.command_options import CommandApp, Home

ledger_app = CommandApp(help="The ledger of accepted work.", no_args_is_help=True)


@ledger_app.command("export")
def ledger_export(
    folder: Annotated[Path, typer.Argument(help="The folder to write; an earlier export is continued.")],
    home: Home = Path("."),
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Also entries that no head covers yet.")] = False,
) -> None:
    """Export the ledger: entries, signed heads, Roots, RunSpec, Calibrations. Works while the coordinator runs."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.ledger_files import ledger_export
    from echo2.coordinator.market.market_replay import market_of
    from echo2.runtime.figures import number_of

    done = ledger_export.export(RunFolder(home), folder, unsigned=unsigned, market_of=market_of)
    entries, heads = number_of(done.entries, "entry"), number_of(done.heads, "head")
    print(f"written to {folder}: {entries} in {number_of(done.size, 'byte')}, {heads}")
    print(f"anybody verifies it with: echo2-coord ledger verify {folder}")


@ledger_app.command("verify")
def ledger_verify(
    source: Annotated[
        str, typer.Argument(help="An export, by `ledger export`, or the URL of a run's page.", show_default=False)
    ],
) -> None:
    """Verify an export, or the ledger that a page serves, without keys: chain, tree, heads, signatures, balances. Exits
    with 81 at the first fault."""
    from echo2.ledger import ledger_audit

    if "://" in source:
        from echo2.coordinator.ledger_files.page_client import PageClient
        from echo2.ledger.tile_audit import audit_tiles

        with contextlib.closing(PageClient(source)) as page:
            print("\n".join(audit_tiles(page.fetch).lines()))
    else:
        print("\n".join(ledger_audit.lines(ledger_audit.audit(Path(source)))))


@ledger_app.command("replay")
def ledger_replay(
    folder: Annotated[Path, typer.Argument(help="An export, by `ledger export`.", show_default=False)],
    state: Annotated[bool, typer.Option("--state", help="Print the state instead, as JSON.")] = False,
    page: Annotated[bool, typer.Option("--page", help="Print the page's ranking instead, as CSV.")] = False,
) -> None:
    """Compute weights, balances, standing, ranking and the market again from nothing but an export. Exits with 81 at
    the first entry that differs."""
    from echo2.coordinator.market.market_replay import market_of
    from echo2.ledger import export_replay

    replayed = export_replay.replay(folder, market_of)
    if state:
        print(replayed.state.as_bytes().decode(), end="")
    else:
        print("\n".join((export_replay.page_lines if page else export_replay.lines)(replayed)))


@ledger_app.command("find")
def ledger_find(
    what: Annotated[
        str, typer.Argument(help="A number, a lease's 32 digits, a peer id, or an idempotency key.", show_default=False)
    ],
    home: Home = Path("."),
) -> None:
    """Print entries, one line of JSON each. Works while the coordinator runs."""
    from echo2.coordinator.accounts import ledger_search
    from echo2.coordinator.accounts.ledger import Ledger
    from echo2.coordinator.database.database import Database
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.runtime.errors import LocalFault

    printed = False
    with Database.read(RunFolder(home).database) as database:
        for entry in ledger_search.find(Ledger(database), what):
            print(ledger_search.format_entry(entry))
            printed = True
    if not printed:
        raise LocalFault(f"no entry of the ledger is {what}, or names it")


@ledger_app.command("proof")
def ledger_proof(
    entry: Annotated[int, typer.Argument(min=1, max=(1 << 53) - 1, help="Its number.", show_default=False)],
    home: Home = Path("."),
) -> None:
    """Print the proof that an entry is under the newest signed head, as JSON. Works while the coordinator runs."""
    from echo2.coordinator.accounts import ledger_search
    from echo2.coordinator.database.database import Database
    from echo2.coordinator.database.run_folder import RunFolder

    with Database.read(RunFolder(home).database) as database:
        print(ledger_search.proof(database, entry))


@ledger_app.command("balance")
def ledger_balance(home: Home = Path(".")) -> None:
    """Print the balance of every account: milli-RE, or in a run of money 10^-9 of its currency. Works while the
    coordinator runs."""
    from echo2.coordinator.accounts.ledger import Ledger
    from echo2.coordinator.database.database import Database
    from echo2.coordinator.database.run_folder import RunFolder

    with Database.read(RunFolder(home).database) as database:
        for account, amount in Ledger(database).balances().items():
            print(f"{amount:>20}  {account}")


@ledger_app.command("head")
def ledger_head(home: Home = Path(".")) -> None:
    """Print the newest signed head as a checkpoint, which witnesses of transparency logs read."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.ledger_files import ledger_export

    print(ledger_export.newest_note(RunFolder(home)), end="")
