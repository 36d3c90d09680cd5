"""Stand-in for the running coordinator that payments ask what its nodes told it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from echo2.coordinator.payouts import payment_witnesses
from echo2.coordinator.payouts.payment_witnesses import Witnessed


@dataclass
class Nodes:
    """What nodes told the coordinator since its start: as a rule that they hold every head of the ledger."""

    wait: str = ""
    newest: int = 1 << 53


@pytest.fixture(autouse=True)
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """The nodes of the run, whose word a test may change."""
    told = Nodes()

    async def ask(home: Path) -> Witnessed:
        return Witnessed(told.wait, told.newest)

    monkeypatch.setattr(payment_witnesses, "ask", ask)
    return told
