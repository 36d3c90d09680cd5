"""Folders that an option of a command names."""

from pathlib import Path
from typing import Any, Final

import typer


def named_folder(text: str) -> Path:
    """Return the folder that a text of a command line names. An empty text, as of an unset variable, would name the
    folder where the command runs: it is refused. Raises `BadParameter`."""
    if not text:
        raise typer.BadParameter('the name of the folder is empty ("." names the one where you are)')
    return Path(text)


FOLDER: Final[dict[str, Any]] = {"parser": named_folder, "metavar": "PATH"}
"""The arguments of an option that names a folder."""
