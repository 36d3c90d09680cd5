"""A node's market as its folder has it, for commands that run beside the daemon or without one."""

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from echo2.node.errors import BadConfig
from echo2.node.home import invite_for_reading, run_folder
from echo2.node.trust.market_store import FILE, MarketStore, StoredAnswer
from echo2.node.trust.trust_store import TrustStore
from echo2.protocol.authority import RunSpec
from echo2.runtime.units import unix_milliseconds


class JoinedRun(NamedTuple):
    """The run that was joined last. `spec`: its RunSpec; None: it is not here yet. `newest`: its newest answer about
    the market; None: there is none."""

    folder: Path
    spec: RunSpec | None
    newest: StoredAnswer | None

    @property
    def currency(self) -> str:
        """In which it pays; empty: it pays points, or its RunSpec is not here yet."""
        return "" if self.spec is None else self.spec.currency

    @property
    def name(self) -> str:
        """Its name, as far as it is known."""
        return "the run joined last" if self.spec is None else f"the run {self.spec.name}"


def joined_run(home: Path) -> JoinedRun | None:
    """Return the run that was joined last; None: none was. Raises `NodeError`, `LocalFault`."""
    try:
        invite = invite_for_reading(home)
    except BadConfig:
        return None
    folder = run_folder(home, invite.run)
    trusted = TrustStore(folder / "trust", invite.run, invite.root_hash, unix_milliseconds()).trusted
    spec = None if trusted.runspec is None else trusted.runspec.value
    newest = None
    if (folder / FILE).exists():
        with closing(MarketStore(folder / FILE)) as store:
            newest = store.newest()
    return JoinedRun(folder, spec, newest)
