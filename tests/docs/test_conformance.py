"""The table of docs/trust-conformance.md: each test that it names exists."""

import re

from tests.support.paths import ROOT

NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def test_every_test_of_the_conformance_table_exists() -> None:
    named = NAMED.findall((ROOT / "docs/trust-conformance.md").read_text())
    missing = [
        (path, name) for path, name in named if f"def {name}(" not in (ROOT / "tests" / path).read_text()
    ]  # fmt: skip
    assert len(named) >= 15
    assert missing == []
