"""Input and output of the commands: settings, invite and passphrase, answers of the running node, texts for people."""

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import typer

from echo2.node.errors import BadConfig
from echo2.runtime.figures import size
from echo2.runtime.printable import printable
from echo2.runtime.units import minute

_BYTE_COUNTS: Final = {
    "received_bytes": "received", "sent_bytes": "sent", "payload_bytes": "fetched", "nbytes": "size",
    "memory_used": "memory_used", "memory": "memory", "reserve": "reserve",
}  # fmt: skip
"""Values that are bytes -> their names for people."""


def invite_text(invite: str | None, file: Path | None) -> str | None:
    """Return the invite of an argument, of a file or of standard input. Raises `BadConfig`."""
    from echo2.p2p.discovery.invite import MOST_INVITE_CHARACTERS

    if file is not None and invite is not None:
        raise BadConfig("an invite is given twice: name it, or its file by --invite-file")
    if file is None:
        return sys.stdin.read(MOST_INVITE_CHARACTERS).strip() if invite == "-" else invite
    try:
        return file.read_bytes()[:MOST_INVITE_CHARACTERS].decode(errors="replace").strip()
    except OSError as error:
        raise BadConfig(f"the invite's file {file} cannot be read ({error.strerror}): correct --invite-file") from error


def home_of(home: Path | None) -> Path:
    """Return the folder of a node, by the option `--home` or the settings."""
    from echo2.node.home_place import home_without_settings

    place = home_without_settings(home)
    return place if place is not None else Path(config_of().home)


def config_of(**flags: Any) -> Any:
    """Return the settings in force, with these flags. Raises `BadConfig`."""
    from echo2.node.config import load_config

    return load_config(flags)[0]


def passphrase() -> str | None:
    """Return the passphrase of the key, by the environment; None: it has none."""
    return os.environ.get("ECHO2_KEY_PASSPHRASE")


def ask_node(home: Path | None, **asked: Any) -> dict[str, Any]:
    """Return the answer of the running node to a command. Raises `NoDaemonAnswers`."""
    from echo2.node.control.owner_socket import ask_daemon
    from echo2.node.errors import NoDaemonAnswers

    place = home_of(home)
    try:
        return ask_daemon(place, **asked)
    except NoDaemonAnswers:
        from echo2.node.control.stored_fork import check_no_fork

        check_no_fork(place)
        raise


def show_verdict(home: Path | None, lease: str, as_json: bool, *, ask: bool = False) -> None:
    """Print the basis of a verdict. `ask`: whether another check of it is asked for."""
    from echo2.node.control.owner_socket import ask_verdict

    verdict = ask_verdict(home_of(home), lease, ask=ask)
    if not as_json:
        verdict["answers"] = [{**one, "at": minute(one["at"])} for one in verdict["answers"]]
    show(verdict, as_json)


def say(text: object) -> None:
    """Print one row for people: a coordinator's or a peer's words may be in it."""
    typer.echo(printable(text))


def show(answer: dict[str, Any], as_json: bool) -> None:
    """Print an answer of the node: a row for each value, or JSON, in which bytes are numbers."""
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for name, value in _with_units(answer).items():
        if isinstance(value, list):
            say(f"{name.replace('_', ' ')}: {'none' if not value else ''}")
            for text in _rows(value):
                say(f"  {text}")
        elif isinstance(value, dict):
            say(f"{name.replace('_', ' ')}: {_count_words(value)}")
        elif value not in (None, ""):
            say(f"{name.replace('_', ' ')}: {value}")


def _with_units(named: dict[str, Any]) -> dict[str, Any]:
    """Return values under their names, with the counts of bytes as people read them."""
    return {
        _BYTE_COUNTS.get(name, name): size(value) if name in _BYTE_COUNTS and value is not None else value
        for name, value in named.items()
    }


def _count_words(named: dict[str, Any]) -> str:
    return ", ".join(f"{value} {name}" for name, value in named.items() if value is not None) or "none"


def _rows(rows: list[Any]) -> list[str]:
    """Return texts as they are, and rows of named cells in columns, under their names; empty columns are left out."""
    if not rows or isinstance(rows[0], str):
        return rows
    used = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    rows = [_with_units({name: row[name] for name in used}) for row in rows]
    table = [[name.replace("_", " ") for name in rows[0]]]
    table += [["" if cell is None else str(cell) for cell in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in table]
