"""`echo2-coord nodes`: standing, and the operator's remarks."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from echo2.coordinator.command_line import command_options
from echo2.coordinator.command_line.command_options import CommandApp, Home, Peer

nodes_app = CommandApp(help="Nodes: their standing, and your remarks on them.", no_args_is_help=True)


@nodes_app.command("ls")
def nodes_ls(
    home: Home = Path("."),
    rank: Annotated[Literal["new", "known", "proven"] | None, typer.Option(help="Only these.")] = None,
    out: Annotated[Literal["suspended", "banned"] | None, typer.Option(help="Only these.")] = None,
    most: Annotated[int, typer.Option(min=1, max=10_000, help="Nodes per page.")] = 50,
    page: Annotated[int, typer.Option(min=1, help="Number of the page.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> None:
    """List nodes and their standing, most recently seen first. Works while the coordinator runs."""
    import msgspec

    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.nodes import nodes_report

    rows = nodes_report.list_keys(RunFolder(home).database, command_options.now(), most, page, rank, out)
    print(msgspec.json.encode(rows).decode() if as_json else "\n".join(nodes_report.format_keys(rows)))


@nodes_app.command("show")
def nodes_show(
    node: Peer,
    home: Home = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> None:
    """Show one node: standing, reasons of its last groups, strikes, suspensions with their evidence."""
    import msgspec

    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.nodes import nodes_report

    key_report = nodes_report.describe_key(RunFolder(home).database, node, command_options.now())
    print(msgspec.json.encode(key_report).decode() if as_json else "\n".join(nodes_report.format_report(key_report)))


@nodes_app.command("evidence")
def nodes_evidence(node: Peer, home: Home = Path(".")) -> None:
    """Compare a node's groups of the last 24 hours with the others'. Evidence for you; no verdict follows."""
    from echo2.coordinator.command_line import over_time_report
    from echo2.coordinator.database.run_folder import RunFolder

    print("\n".join(over_time_report.report(RunFolder(home).database, node)))


@nodes_app.command("vouch")
def nodes_vouch(node: Peer, home: Home = Path("."), why: Annotated[str, typer.Option(help="A reason.")] = "") -> None:
    """Vouch for a node: its rank is known from now on, as after 3 accepted groups."""
    _remark(home, "vouch", node, why)


@nodes_app.command("ban")
def nodes_ban(node: Peer, why: Annotated[str, typer.Option(help="The node is told.")], home: Home = Path(".")) -> None:
    """Ban a node until you lift the ban. It keeps its earnings."""
    _remark(home, "ban", node, why)


@nodes_app.command("unban")
def nodes_unban(node: Peer, home: Home = Path("."), why: Annotated[str, typer.Option(help="A reason.")] = "") -> None:
    """Lift a node's ban, or end its suspension."""
    _remark(home, "unban", node, why)


@nodes_app.command("note")
def nodes_note(node: Peer, text: str, home: Home = Path(".")) -> None:
    """Add a note on a node. It stays in the ledger for ever, visible to every reader of the ledger."""
    _remark(home, "note", node, text)


@nodes_app.command("blot-team")
def nodes_blot_team(team: Annotated[str, typer.Argument(help="Its name.")], home: Home = Path(".")) -> None:
    """Delete a team's name, as of a person who wants it gone. Its work stays, under the ledger's commitment."""
    _remark(home, "blot-team", team, "")


def _remark(home: Path, word: str, node: str, why: str) -> None:
    from echo2.coordinator.nodes import operator_remarks

    print(operator_remarks.submit_remark(home, word, node, why, command_options.now()))
