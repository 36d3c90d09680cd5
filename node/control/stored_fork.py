"""A fork of the ledger that this node found, for commands while no daemon runs: one ended for it, and none starts."""

from contextlib import closing
from pathlib import Path
from typing import Final

from echo2.node.errors import BadConfig, TrustFailure
from echo2.node.home import invite_of_joined_run, run_folder
from echo2.node.trust.ledger_store import LedgerStore, fork_sentence

FILE: Final = "ledger.sqlite"


def check_no_fork(home: Path) -> None:
    """Raise `TrustFailure` with the evidence if the node has found two histories of the ledger of the run that it
    joined last."""
    try:
        path = run_folder(home, invite_of_joined_run(home).run) / FILE
    except BadConfig:
        return
    if path.exists():
        with closing(LedgerStore(path)) as store:
            stored = store.fork()
        if stored is not None:
            raise TrustFailure(fork_sentence(stored))
