"""The commands about what a node has: earnings, receipts, its key, and the account to which its pay goes."""

import json
from pathlib import Path
from typing import Annotated

import typer

from echo2.node.command_line.node_answers import ask_node, config_of, passphrase, say, show
from echo2.node.command_line.node_options import Home, Json, NodeApp, Yes
from echo2.node.errors import BadConfig
from echo2.runtime.exit_codes import Exit
from echo2.runtime.terminal_question import ask_agreement

record_app = NodeApp()
receipts_app = NodeApp(help="The run's signed answers to this node's work.", no_args_is_help=True)
keys_app = NodeApp(help="The identity of this node.", no_args_is_help=True)
payout_app = NodeApp(help="The account to which this node's pay goes.", no_args_is_help=True)


@record_app.command()
def earnings(
    explain: Annotated[
        bool, typer.Option("--explain", help="Each term of the newest epochs, or days, with its ledger entry.")
    ] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show what this node has earned, what it may expect, and why it stands by, if it does."""
    from echo2.node.control.earnings_report import report

    for text_line in report(config_of(home=home), explain=explain, as_json=as_json):
        say(text_line)


@receipts_app.command("list")
def receipts_list(
    home: Home = None,
    as_json: Json = False,
    most: Annotated[int, typer.Option("--most", min=1, help="How many, newest first.")] = 50,
) -> None:
    """List this node's groups and the run's answers."""
    from echo2.node.rollouts.receipts import lines, list_submissions

    rows = list_submissions(config_of(home=home).home, most)
    for text_line in map(json.dumps, rows) if as_json else lines(rows):
        say(text_line)


@receipts_app.command("fetch")
def receipts_fetch(home: Home = None, as_json: Json = False) -> None:
    """Let the running node fetch the proofs of receipts that have none yet."""
    show(ask_node(home, command="fetch"), as_json)


@receipts_app.command("verify")
def receipts_verify(home: Home = None) -> int:
    """Check every Receipt, and its proof in the ledger, against the run's ledger key, offline."""
    from echo2.node.rollouts.receipts import verify_receipts

    checked = verify_receipts(config_of(home=home).home, passphrase())
    for fault in checked.faults:
        say(fault)
    typer.echo(checked.sentence())
    return Exit.TRUST if checked.faults else Exit.OK


@keys_app.command("show")
def keys_show(home: Home = None) -> None:
    """Show the public key and peer id of this node."""
    from echo2.node.key_change import own_key
    from echo2.p2p.identity import peer_id, public_bytes

    public = public_bytes(own_key(config_of(home=home).home, passphrase()))
    typer.echo(f"node  {peer_id(public)}\nkey   {public.hex()}")


@keys_app.command("backup")
def keys_backup(
    copy: Annotated[Path, typer.Argument(help="The copy that it writes; an existing file stays.", show_default=False)],
    home: Home = None,
) -> None:
    """Copy this node's key: who has it has the node's standing."""
    from echo2.node.key_change import backup

    typer.echo("\n".join(backup(config_of(home=home).home, copy, passphrase())))


@keys_app.command("rotate")
def keys_rotate(
    home: Home = None,
    give_up: Annotated[
        bool,
        typer.Option("--give-up", help="Also if the last rotation was not heard, or today: nothing follows then."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Replace this node's key while the node is stopped. Its standing follows; the old key is worth nothing then."""
    from echo2.node.key_change import own_key, rotate
    from echo2.p2p.identity import peer_id, public_bytes
    from echo2.runtime.units import unix_milliseconds

    old = peer_id(public_bytes(own_key(config_of(home=home).home, passphrase())))
    ends = f"End the key {old}, whose points stay on the page under it, and work under a new one?"
    if not yes and not ask_agreement(ends, default=False):
        raise BadConfig("the key is not replaced")
    typer.echo("\n".join(rotate(config_of(home=home).home, passphrase(), unix_milliseconds(), give_up=give_up)))


@keys_app.command("dispute")
def keys_dispute(home: Home = None) -> None:
    """Say that somebody else replaced this node's key: within 72 hours its balance stays with it.

    The next start of the node tells the run. The balance is then paid to the account that was in force before."""
    from echo2.node.key_change import dispute

    typer.echo("\n".join(dispute(config_of(home=home).home, passphrase())))


@payout_app.command("set")
def payout_set(
    account: Annotated[str, typer.Argument(help="As the run's rail reads it.", show_default=False)], home: Home = None
) -> None:
    """Name the account to which this node's pay goes. It counts 24 hours later; until then the one before is paid."""
    from echo2.node.control.payout_orders import name

    for text_line in name(config_of(home=home).home, account):
        say(text_line)


@payout_app.command("show")
def payout_show(home: Home = None) -> None:
    """Show which account is in force, which one follows and when, the least payment and the fee."""
    from echo2.node.control.payout_orders import describe_payee

    for text_line in describe_payee(config_of(home=home).home):
        say(text_line)
