"""Refuse a run's folder of which another build of echo2 made a file, earlier or later than this one.

This build reads one form of each file (runtime/sqlite_form.py). All files are looked at before the first of them is
written, so that an owner is told of all at once, and the folder stays as that build left it.
"""

from pathlib import Path
from typing import Final

from echo2.node.durable_file import other_build
from echo2.node.errors import BadConfig
from echo2.node.rollouts import outbox, turn_store
from echo2.node.trust import ledger_store, market_store
from echo2.runtime import sqlite_form
from echo2.weights import store

SCRIPTS: Final = {
    "outbox.sqlite": outbox.SCHEMA,
    "ledger.sqlite": ledger_store.SCHEMA,
    "turns.sqlite": turn_store.SCHEMA,
    market_store.FILE: market_store.SCHEMA,
    "store/index.sqlite": store.SCHEMA,
}
"""SQLite file of a run's folder -> the statements that make it."""


def check_form(folder: Path) -> None:
    """Check that this build reads the files of a run's folder, and write to none. Raises `BadConfig`. A file that
    cannot be read at all is the matter of its own opening."""
    other = [name for name, script in SCRIPTS.items() if sqlite_form.is_of_another_build(folder / name, script)]
    if other:
        raise BadConfig(other_build(folder, other))
