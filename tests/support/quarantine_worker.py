"""End quarantines in a process that kills itself at a statement: `quarantine_worker DATABASE NUMBER`."""

import os
import signal
import sys
from pathlib import Path

from echo2.coordinator.accounts.accounting import Accounting
from echo2.coordinator.database.database import Database
from echo2.runtime.units import DAY
from tests.support.day_judge import Judge


def main(path: Path, number: int) -> None:
    """Settle day 0; before SQLite's statement `number` of it, counted from 1, kill this process."""
    statements = 0

    def count(statement: str) -> None:
        nonlocal statements
        statements += 1
        if statements == number:
            os.kill(os.getpid(), signal.SIGKILL)

    with Database.open(path) as database:
        accounting = Accounting(database)
        database.connection.set_trace_callback(count)
        accounting.quarantine.settle(Judge(lambda node, day: node[0] == 0), DAY)
        database.connection.set_trace_callback(None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
