"""On PYTHONPATH, makes a coordinator sign two histories of its ledger, and show each to some of its nodes.

`TWO_FACED` names a file, JSON: `honest` (peer ids that see the true history; all others see the other one). Without it
all see the true one. The other history is a copy of the ledger that has another entry from then on, and as many heads.
Each head of it is recorded in a file beside it.

`ASK_EVERY` has a node ask for heads every so many seconds: a test need not wait for the minutes of a real run.
"""

import os
import sys

if "echo2.coordinator.cli" in sys.orig_argv and "run" in sys.orig_argv and "TWO_FACED" in os.environ:
    import contextlib
    import copy
    import json
    import sqlite3
    import time
    from pathlib import Path

    from echo2.coordinator.accounts.head_signing import LedgerHeads
    from echo2.coordinator.accounts.ledger import Ledger
    from echo2.coordinator.accounts.ledger_service import LedgerService
    from echo2.coordinator.database.database import Database
    from echo2.ledger.ledger_entries import ESCROW
    from echo2.protocol.ledger_heads import LedgerRequest, LedgerResponse

    flag = Path(os.environ["TWO_FACED"])
    honest = LedgerService.answer
    others: list[tuple[Ledger, LedgerHeads]] = []

    def copied(real: LedgerHeads) -> tuple[Ledger, LedgerHeads]:
        """Return a second history that begins as a copy of the true one."""
        path = flag.with_name("other.sqlite")
        with (
            contextlib.closing(sqlite3.connect(real._database.path)) as source,
            contextlib.closing(sqlite3.connect(path)) as other,
        ):
            source.backup(other)
        database = Database.open(path)
        ledger = Ledger(database)
        return ledger, LedgerHeads(database, ledger, real.log, real._seal, real._note, every=real.every)

    def follow(real: LedgerHeads, ledger: Ledger, other: LedgerHeads) -> None:
        """Give the other history as many heads as the true one has."""
        newest, reached = real.newest(), other.newest()
        while newest is not None and (reached is None or reached.head.number < newest.head.number):
            ledger.issue_points(newest.head.issued, ledger.balance(ESCROW) + 1)
            other.sign(newest.head.issued)
            reached = other.newest()
            with flag.with_suffix(".heads").open("a") as file:
                file.write(f"{time.time()} {reached and reached.head.number}\n")

    def sees_the_truth(peer: str) -> bool:
        return not flag.exists() or peer in json.loads(flag.read_text())["honest"]

    async def two_faced(self: LedgerService, peer: str, request: LedgerRequest) -> LedgerResponse:
        if sees_the_truth(peer):
            return await honest(self, peer, request)
        if not others:
            others.append(copied(self._heads))
        follow(self._heads, *others[0])
        false = copy.copy(self)
        false._heads = others[0][1]
        return await honest(false, peer, request)

    LedgerService.answer = two_faced  # type: ignore[method-assign]

if "echo2.node.cli" in sys.orig_argv and "join" in sys.orig_argv and "ASK_EVERY" in os.environ:
    from echo2.node.rollouts import ledger_exchange

    ledger_exchange.ASK_EVERY = float(os.environ["ASK_EVERY"])  # type: ignore[misc]
