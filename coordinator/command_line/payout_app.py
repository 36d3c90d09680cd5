"""`echo2-coord payout`: plan, approve, send and reconcile payments in money; report what became of them."""

from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from echo2.coordinator.command_line import command_options
from echo2.coordinator.command_line.command_options import CommandApp, Home

payout_app = CommandApp(help="Payments in money. Without --yes each command only shows what it would do.",
                         no_args_is_help=True)  # fmt: skip
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this, only show what would be done.")]
T = TypeVar("T")


def _result_of(work: Coroutine[Any, Any, T]) -> T:
    import asyncio  # a fifth of what `--help` takes, if it stood above

    return asyncio.run(work)


@payout_app.command("plan")
def payout_plan(
    home: Home = Path("."),
    yes: Yes = False,
    unwitnessed: Annotated[
        bool, typer.Option("--unwitnessed", help="Go on before nodes confirmed the ledger; it says so for ever.")
    ] = False,
) -> None:
    """Plan payments of what the ledger has as payable: a file, and an entry of the ledger."""
    from echo2.coordinator.payouts import payout_commands

    lines = payout_commands.plan(home, command_options.now, do=yes, unwitnessed=unwitnessed)
    print("\n".join(_result_of(lines)))


@payout_app.command("approve")
def payout_approve(
    plan: Annotated[Path, typer.Argument(help="The folder of the plan.", show_default=False)],
    place: Annotated[Path, typer.Option("--keys", help="The folder with the payout keys.")] = Path("."),
    file: Annotated[
        str | None, typer.Option(metavar="SHA256", help="Of the plan's file, if you were told it: another is refused.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Sign a plan with the payout keys in a folder. Needs no run folder and no network."""
    from echo2.coordinator.payouts import payout_approvals
    from echo2.coordinator.run import keys

    print("\n".join(payout_approvals.approve(plan, place, keys.passphrase(), file, do=yes)))


@payout_app.command("send")
def payout_send(home: Home = Path("."), yes: Yes = False) -> None:
    """Send the newest plan, within the limits per day and node. Says every reason that forbids it."""
    from echo2.coordinator.payouts import payout_commands

    print("\n".join(_result_of(payout_commands.send(home, command_options.now, do=yes))))


@payout_app.command("reconcile")
def payout_reconcile(
    home: Home = Path("."),
    yes: Yes = False,
    cancel: Annotated[str | None, typer.Option(metavar="KEY", help="Have the provider stop this payment.")] = None,
    settle: Annotated[
        str | None, typer.Option(metavar="KEY=OUTCOME", help="Your answer: confirmed or returned, as you found out.")
    ] = None,
    why: Annotated[str, typer.Option(help="How you found out; the ledger keeps it.")] = "",
) -> None:
    """Ask what became of payments that were sent; never sends one under another key."""
    from echo2.coordinator.payouts import payout_commands
    from echo2.runtime.errors import LocalFault

    if cancel is not None and settle is not None:
        raise LocalFault("--cancel and --settle are two commands: give one")
    now = command_options.now
    if cancel is not None:
        lines = _result_of(payout_commands.cancel(home, now, cancel, do=yes))
    elif settle is not None:
        lines = _result_of(payout_commands.settle(home, now, settle, why, do=yes))
    else:
        lines = _result_of(payout_commands.reconcile(home, now, do=yes))
    print("\n".join(lines))


@payout_app.command("restored")
def payout_restored(
    home: Home = Path("."),
    yes: Yes = False,
    plan: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Put the payments of this plan back into the ledger.")
    ] = None,
    why: Annotated[str, typer.Option(help="How you compared the provider's statement with the ledger.")] = "",
) -> None:
    """Put payments back that a restored ledger lacks (--plan). Then say that it has every one that went out (--why):
    until then nothing is planned or sent."""
    from echo2.coordinator.payouts import payout_commands
    from echo2.runtime.errors import LocalFault

    if plan is not None and why:
        raise LocalFault(
            "--plan and --why are two commands: first put back what is lacking, then say that all is there"
        )
    if plan is not None:
        print("\n".join(_result_of(payout_commands.put_back(home, plan, command_options.now, do=yes))))
        return
    print("\n".join(payout_commands.record_restoration(home, why, do=yes)))


@payout_app.command("report")
def payout_report(home: Home = Path(".")) -> None:
    """Show what was paid, what is open, and each question that you must answer. Works while the coordinator runs."""
    from echo2.coordinator.payouts import payout_commands

    print("\n".join(payout_commands.report(home, command_options.now)))
