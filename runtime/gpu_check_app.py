"""The command `gpu-check`, which both programs have. A program imports what computes only when it runs."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from echo2.runtime.command_app import CommandApp
from echo2.runtime.printable import printable

Measure = Callable[[str, bool, bool, Path | None], Iterable[str]]
"""Measures a device, quickly or not; returns the table's lines, as JSON or not, and writes them to a file too."""


def add_gpu_check(app: CommandApp, measure: Measure) -> None:
    """Add the command to a program."""

    @app.command()
    def gpu_check(
        device: Annotated[str, typer.Option("--gpu", help="auto, or a device: cuda:1, xpu, mps, cpu.")] = "auto",
        quick: Annotated[bool, typer.Option("--quick", help="A smaller model, and less exact figures.")] = False,
        write: Annotated[
            Path | None, typer.Option("--write", help="Write the table to a file too, without paths and host name.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
    ) -> None:
        """Measure in two minutes what a device can do for echo2: a table with goals, and what helps where one is
        missed."""
        for text_line in measure(device, quick, as_json, write):
            typer.echo(printable(text_line))
