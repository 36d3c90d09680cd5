"""Commands whose options and work lie in `benchmarks/`: each passes its words on to an app there.

Outside a checkout such a command is refused in one sentence, `--help` after it included (runtime/checkout.py).
"""

from typing import Any, Final

import typer

from echo2.coordinator.command_line.command_options import PROGRAM
from echo2.runtime.checkout import load_from_checkout

APPS: Final = {
    "redteam": ("benchmarks.attacks.redteam_app", "redteam_app"),
    "simulate": ("benchmarks.plays.simulate_app", "simulate_app"),
    "market simulate": ("benchmarks.plays.market_simulate_app", "market_simulate_app"),
}
"""Command -> the module of its app, and the app's name in it."""
PASSED_ON: Final[dict[str, Any]] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings of a command that reads none of its words."""
PASSED_APP: Final[dict[str, Any]] = {
    "add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False,
}  # fmt: skip
"""Settings of the app that reads them: those of the whole program."""


def app_of(command: str) -> typer.Typer:
    """Return the app of a command of `APPS`. Raises `LocalFault`."""
    module, name = APPS[command]
    app: typer.Typer = getattr(load_from_checkout(module, f"{PROGRAM} {command}"), name)
    return app


def pass_on(context: typer.Context, command: str) -> None:
    """Run the app of a command with the words after it. Raises `LocalFault`, and `SystemExit` at the app's end."""
    app_of(command)(args=context.args, prog_name=f"{PROGRAM} {command}")
