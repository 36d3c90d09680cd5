"""Ask the running coordinator whether payments wait for its nodes (coordinator/publishing/head_witnesses.py).

Rules
1. run.sqlite and `payouts/` may be of a machine that was rolled back as a whole. Only nodes that have told the running
   process of their heads show that they are not. So without a coordinator that runs, payments wait.
2. The operator may go on without them: by a plan that says so (`unwitnessed`), in its file and in the ledger.
"""

import asyncio
from pathlib import Path
from typing import Final, NamedTuple

from echo2.coordinator.run import operator_commands
from echo2.p2p.errors import Unreachable

GO_ON: Final = (
    "if you know that this run folder is the newest, `echo2-coord payout plan --unwitnessed` goes on, and the ledger "
    "says so"
)


class Witnessed(NamedTuple):
    """The nodes' part in payments. `wait`: why they wait, a sentence; empty: they do not. `newest`: number of the
    newest LedgerHead that a node told the running coordinator; 0: none."""

    wait: str
    newest: int


async def ask(home: Path) -> Witnessed:
    """Ask the coordinator of a run folder. Raises `LocalFault`."""
    try:
        answer = await asyncio.to_thread(operator_commands.command, home, "witnesses")
    except Unreachable as error:
        return Witnessed(f"no node can tell whether run.sqlite is an older copy, as {error}", 0)
    return Witnessed(str(answer["wait"]), int(answer["newest"]))
