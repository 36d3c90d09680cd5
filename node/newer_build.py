"""A run's refusal of this build, kept in the run's folder until the run welcomes the node.

`echo2-node update` shows it.
"""

from pathlib import Path
from typing import Final

from echo2.protocol.refusals import TOO_OLD
from echo2.protocol.requests import Refusal
from echo2.runtime.files import writing

FILE: Final = "newer-build"


def record(folder: Path, refusal: Refusal) -> None:
    """Keep the sentence of a refusal, if it asks for a newer build. Raises `DiskFull`."""
    if refusal.code in TOO_OLD:
        with writing(folder / FILE) as file:
            file.write(refusal.sentence.encode())


def forget(folder: Path) -> None:
    """Forget a refusal: the run has welcomed this build."""
    (folder / FILE).unlink(missing_ok=True)


def update_request(folder: Path) -> str:
    """Return the sentence by which the run asked for a newer build; empty: it did not."""
    path = folder / FILE
    return path.read_text("utf-8", errors="replace") if path.exists() else ""
