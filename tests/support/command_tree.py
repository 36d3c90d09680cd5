"""The command lines of the two programs, as their own parsers know them."""

import importlib
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from echo2.coordinator.command_line.checkout_commands import APPS, app_of

PROGRAMS: Final = {"echo2-node": "echo2.node.cli", "echo2-coord": "echo2.coordinator.cli"}
_ABSTRACT: Final = re.compile(r"\.\.\.|[A-Z<>$|{}]|^\[.*\]$|^-$")
"""What marks a word as a placeholder: a command in a document may leave a value open."""


def command_tree(program: str) -> Any:
    """Return a program's commands (click's, as typer builds them), with the apps of the checkout in them."""
    import typer.main

    tree: Any = typer.main.get_command(importlib.import_module(PROGRAMS[program]).app)
    for passed in APPS if program == "echo2-coord" else ():
        *groups, name = passed.split()
        place = tree
        for group in groups:
            place = place.commands[group]
        assert place.commands[name].params == [], f"{passed} reads its words itself"
        place.commands[name] = typer.main.get_command(app_of(passed))
    return tree


def complaint(words: list[str], command: Any) -> str | None:
    """Return the fault that the command's own parser finds in a command line, the program's name first; None: none.

    `a|b` names two subcommands. A line that names a command without its arguments is a name, not a call: nothing is
    required. Placeholders (`FILE`, `<invite>`, `$X`, `...`) stand for any value.
    """
    given = [word for before, word in pairwise(words) if word != "--help" and (word != "..." or before[:2] == "--")]
    while (children := getattr(command, "commands", None)) and given:
        names = given[0].split("|")
        if given[0].startswith("-") or not all(re.fullmatch(r"[a-z][a-z-]*", name) for name in names):
            break
        for name in names:
            if name not in children:
                return f"no command {name}"
            if len(names) > 1 and (wrong := complaint([name, *given[1:]], children[name])):
                return wrong
        command, given = children[names[0]], given[1:]
    return None if getattr(command, "commands", None) else _parse(command, given)


def _parse(command: Any, given: list[str]) -> str | None:
    import typer
    from typer.exceptions import TyperException

    context = typer.Context(command)
    try:
        values, extra, _ = command.make_parser(context).parse_args(_with_value(command, given))
        for parameter in command.params:
            value = values.get(parameter.name)
            if value and not parameter.callback and not any(map(_ABSTRACT.search, _texts(value))):
                parameter.process_value(context, value)
    except TyperException as error:
        return str(error)
    return f"an argument too many: {extra[0]}" if extra else None


def _with_value(command: Any, given: list[str]) -> list[str]:
    """Return the words, with a placeholder behind a last option that wants a value: a document may name it bare."""
    options = [one for one in command.params if one.param_type_name == "option" and not one.is_flag]
    return [*given, "VALUE"] if given and any(given[-1] in one.opts for one in options) else given


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
