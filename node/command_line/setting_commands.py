"""The commands about settings, and about what others see of a node."""

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from echo2.node.command_line.node_answers import ask_node, config_of, say
from echo2.node.command_line.node_options import Home, Json, NodeApp
from echo2.node.errors import BadConfig

config_app = NodeApp(help="Settings: a flag overrides ECHO2_..., which overrides the file.", no_args_is_help=True)
privacy_app = NodeApp(help="What others see of this node.", no_args_is_help=True)


class NumbersAsArguments(TyperCommand):
    """A command that reads a word such as -1 or -0.5/h as an argument, so that its own sentence about the value is
    printed. Any other word with a hyphen in front is an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a call; `ctx` is click's context of it."""
        ctx.ignore_unknown_options = any(re.match(r"-\.?\d", word) for word in args)
        return super().parse_args(ctx, args)


@privacy_app.command("show")
def privacy_show(home: Home = None, as_json: Json = False) -> None:
    """Show what is public of the running node, and what the run's operator sees of it."""
    from echo2.node.control import privacy_report

    config = config_of(home=home)
    status, seen = ask_node(home, command="status"), ask_node(home, command="privacy")
    if as_json:
        return typer.echo(json.dumps(seen))
    for text_line in privacy_report.lines(config, status, seen):
        say(text_line)


@privacy_app.command("forget")
def privacy_forget(home: Home = None) -> None:
    """Take name, team and device of this node off the run's page, now and later. Its key and its work stay."""
    from echo2.node.config_file import set_key
    from echo2.node.control import privacy_report
    from echo2.node.errors import NoDaemonAnswers

    place = config_of(home=home).home
    for key, value in (("name", ""), ("team", ""), ("show_hardware", "false")):
        set_key(key, value, os.environ, place)
    try:
        ask_node(place, command="privacy", forget=True)
    except NoDaemonAnswers:
        applied = False
    else:
        applied = True
    for text_line in privacy_report.forgotten(applied):
        say(text_line)


@config_app.command("path")
def config_path_command(home: Home = None) -> None:
    """Show the path of the user's settings file; with --home, of that home's own one, which goes before it."""
    from echo2.node.config import home_file
    from echo2.node.home_place import config_path

    typer.echo(config_path() if home is None else home_file(home))


@config_app.command("get")
def config_get(
    key: Annotated[str | None, typer.Argument(help="One key; absent: all.")] = None,
    origin: Annotated[bool, typer.Option("--origin", help="Show the source of each value.")] = False,
    home: Home = None,
) -> None:
    """Show the settings now in force, of the node in a home."""
    from echo2.node.config import list_settings

    for text_line in list_settings(key, origin=origin, home=home):
        say(text_line)


@config_app.command("set", cls=NumbersAsArguments)
def config_set(
    key: Annotated[str, typer.Argument(help="One key, as in `config get`, or KEY=VALUE.", show_default=False)],
    value: Annotated[
        str | None, typer.Argument(help="Its value, as in `config set ask 0.12/h`.", show_default=False)
    ] = None,
    home: Home = None,
) -> None:
    """Write one setting, and say to which file. ask, tariff and watts belong to one node, that of --home; so does any
    other setting if --home is given. The running node takes an ask at once; all others count from its next start."""
    if value is None:
        key, equals, value = key.partition("=")
        if not equals:
            raise BadConfig(f"write a value behind {key}, as in `echo2-node config set uplink 8`")
    _write_setting(key, value, home)


@config_app.command("unset")
def config_unset(
    key: Annotated[str, typer.Argument(help="One key, as in `config get`.", show_default=False)], home: Home = None
) -> None:
    """Remove one setting from the home's file, or else from the user's."""
    _write_setting(key, None, home)


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of all settings, for editors and programs."""
    from echo2.node.config import NodeConfig

    typer.echo(json.dumps(NodeConfig.model_json_schema(), indent=1))


def _write_setting(key: str, value: str | None, home: Path | None) -> None:
    from echo2.node.config_file import removal_hint, write_setting
    from echo2.node.control.ask_orders import check, consequences
    from echo2.protocol.sealed_asks import BadAsk
    from echo2.runtime.settings import SettingsFault

    at = config_of(home=home).home
    try:
        run = check(at, value) if key == "ask" else None
        written = write_setting(key, value, os.environ, home)
    except (SettingsFault, BadAsk) as error:
        if hint := removal_hint(key, value, home):
            raise SettingsFault(f"{error}{hint}") from error
        raise
    after = ["it counts from the next start of the node on"]
    if key == "ask":
        after = consequences(at, run, value or written.config.ask)
    elif key in ("tariff", "watts"):
        after = ["`echo2-node earnings` counts with it from now on"]
    for text_line in [*written.lines(), *after]:
        say(text_line)
