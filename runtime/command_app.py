"""Commands of a program, each of which reports its errors (runtime/cli_errors.py)."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer

Command = TypeVar("Command", bound=Callable[..., int | None])
Reported = Callable[[Callable[..., int | None]], Callable[..., None]]


class CommandApp(typer.Typer):
    """`reported`: decorator of the program's commands, `report_errors` of its name."""

    def __init__(self, reported: Reported, **options: Any) -> None:
        super().__init__(**options)
        self._reported = reported

    def command(self, *args: Any, **options: Any) -> Callable[[Command], Command]:
        register = super().command(*args, **options)

        def add(command: Command) -> Command:
            register(self._reported(command))
            return command

        return add
