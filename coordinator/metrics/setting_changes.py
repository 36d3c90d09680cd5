"""Keep the changes of a run's settings in run.sqlite: when, from which step on, which key, old and new value.

Rules
1. The settings in force are a fact of run.sqlite. A difference from it is a change, also at a start: of a file that was
   edited by hand, of a variable, of a flag. So a change that a kill separates from its row gets it at the next start.
2. A change counts from a step that may be lost in a kill and made again. So a row that names a later step than the next
   one as the learner opens is set to that; so is a row of a start, which names none until then.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from echo2.coordinator.database.database import Database
from echo2.coordinator.metrics.views import SettingChange
from echo2.runtime.units import minute

FACT: Final = "settings"
SHOWN_CHANGES: Final = 20
"""Changes that the page and the commands show, the newest first."""
PUBLIC_SECTIONS: Final = ("run", "learner", "leases", "guard", "calibration")
"""Sections whose changes the page shows: the others name paths and hosts."""
_PRIVATE_KEY: Final = "learner.rendezvous"
"""The only key of these that names a host."""


def note_settings(database: Database, now: int, settings: Mapping[str, str], steps: Mapping[str, int | None]) -> None:
    """Store the settings in force, and a row of each that changed (rule 1). `now`: ms. `settings`: text by key.
    `steps`: first step by key; none for a key that is missing."""
    stored = database.fact(FACT)
    before = msgspec.json.decode(stored, type=dict[str, str]) if stored else dict(settings)
    with database.transaction():
        for key, new in settings.items():
            if new != (old := before.get(key, new)):  # a setting of a later program has no value before
                row = (now, steps.get(key), key, old, new)
                database.do("INSERT INTO setting_changes (at, step, key, old, new) VALUES (?, ?, ?, ?, ?)", row)
        if before != settings or not stored:
            database.set_fact(FACT, msgspec.json.encode(settings))


def settle_steps(database: Database, step: int) -> None:
    """Set the steps of rows by rule 2. `step`: the next one."""
    database.do("UPDATE setting_changes SET step = ? WHERE step IS NULL OR step > ?", (step, step))


def read_changes(database: Database, *, public: bool) -> list[SettingChange]:
    """Return the newest `SHOWN_CHANGES` changes, the newest first. `public`: only those that anybody may see."""
    of_sections = " OR ".join(f"key LIKE '{section}.%'" for section in PUBLIC_SECTIONS)
    shown = f"({of_sections}) AND key != '{_PRIVATE_KEY}'" if public else "TRUE"
    rows = database.all(
        f"SELECT at, step, key, old, new FROM setting_changes WHERE {shown} ORDER BY id DESC LIMIT ?", (SHOWN_CHANGES,)
    )
    return [SettingChange(at=at, step=step, key=key, old=old, new=new) for at, step, key, old, new in rows]


def lines_of(path: Path) -> list[str]:
    """Return the last changes as comments of TOML, the newest first. `path`: run.sqlite; empty while there is none."""
    if not path.exists():
        return []
    with Database.read(path) as database, database.reading():
        changes = read_changes(database, public=False)
    return [f"# {minute(one.at)}: {one.sentence()}" for one in changes]
