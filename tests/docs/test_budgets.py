"""The table of limits in docs/reference/limits.md: made from the numbers of the code, and each row has its place."""

import re

import pytest

from echo2.coordinator.run.former_identity import FORMER_DESCRIPTORS
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.runtime import descriptors
from tests.docs.limit_table import LIMITS, PAGE, Limit, with_table
from tests.support.paths import ROOT

CONFIG = CoordinatorConfig()
OWN = {
    "p2p/limits/token_bucket.py": "the counter itself",
    "p2p/limits/bandwidth.py": "what this machine sends",
    "p2p/libp2p/trio_bridge.py": "calls of this process",
    "p2p/peer/peer.py": "what this machine asks of others",
}
"""Modules that count, but nothing that others do here, and what they count."""


def test_the_documents_have_the_table_that_the_code_makes() -> None:
    document = PAGE.read_text()
    assert with_table(document) == document, "run python -m tests.docs.limit_table"


@pytest.mark.parametrize("limit", LIMITS, ids=[f"{limit.name}, {limit.per}" for limit in LIMITS])
def test_each_limit_says_all_and_is_where_it_says(limit: Limit) -> None:
    assert all(limit)
    places = re.findall(r"`([^`]+)`", limit.place)
    assert places
    for place in places:
        if place.endswith(".py"):
            assert (ROOT / place).exists() or (ROOT / "p2p" / "limits" / place).exists(), place
        else:
            section, key = place.split(".")
            assert getattr(getattr(CONFIG, section), key) is not None


def test_each_module_that_counts_what_others_do_is_in_the_table() -> None:
    """A bucket or a number of places that no row names is a limit that nobody can look up."""
    named = " ".join(limit.place for limit in LIMITS)
    counting = re.compile(r"\b(?:TokenBuckets?|CapacityLimiter|Semaphore)\(")
    for root in ("p2p", "coordinator"):
        for path in sorted((ROOT / root).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            if counting.search(path.read_text()) and place not in OWN:
                assert place in named or path.name in named, place


def test_no_limit_stands_twice() -> None:
    assert len({(limit.name, limit.per) for limit in LIMITS}) == len(LIMITS)


def test_all_connections_together_fit_into_the_open_files_of_a_daemon() -> None:
    wanted = [CONFIG.network.connections, CONFIG.https.connections, CONFIG.web.connections, FORMER_DESCRIPTORS]
    assert descriptors.fit_connections(descriptors.MOST_DESCRIPTORS, *wanted) == tuple(wanted)
    assert sum(descriptors.fit_connections(1024, *wanted)) <= 1024 - descriptors.RESERVED_DESCRIPTORS
