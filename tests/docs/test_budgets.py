"""The table of budgets in docs/operations.md: settings and constants of the code have the numbers that stand there."""

import re

import pytest

from echo2.coordinator.run.former_identity import FORMER_DESCRIPTORS, PER_VISITOR
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.coordinator.verdicts.token_storage import MOST_REFUSED
from echo2.runtime import descriptors
from tests.support.paths import ROOT

CONFIG = CoordinatorConfig()
BUDGETS = {
    "connections over libp2p": (CONFIG.network.connections, CONFIG.network.subnet_connections),
    "connections over HTTPS": (CONFIG.https.connections, CONFIG.https.address_connections),
    "connections to the page": (CONFIG.web.connections, CONFIG.web.address_connections),
    "connections to a former identity": (FORMER_DESCRIPTORS, PER_VISITOR),
    "open files of a daemon": (descriptors.MOST_DESCRIPTORS, descriptors.RESERVED_DESCRIPTORS),
    "disk for versions": (CONFIG.store.budget_bytes,),
    "disk for refused tokens of one party": (MOST_REFUSED,),
}


def documented() -> dict[str, tuple[int, ...]]:
    """Return the numbers of each row, in order."""
    section = (ROOT / "docs" / "operations.md").read_text().partition("## Budgets\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in section.splitlines() if row.startswith("|")]
    return {cells[0]: tuple(map(int, re.findall(r"\d+", cells[1]))) for cells in rows if len(cells) == 3}


@pytest.mark.parametrize("what", BUDGETS)
def test_a_budget_in_the_documents_is_that_of_the_code(what: str) -> None:
    assert documented()[what] == BUDGETS[what]


def test_all_connections_together_fit_into_the_open_files_of_a_daemon() -> None:
    wanted = [BUDGETS[what][0] for what in BUDGETS if what.startswith("connections")]
    assert descriptors.fit_connections(descriptors.MOST_DESCRIPTORS, *wanted) == tuple(wanted)
    assert sum(descriptors.fit_connections(1024, *wanted)) <= 1024 - descriptors.RESERVED_DESCRIPTORS
