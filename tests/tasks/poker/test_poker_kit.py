"""The kit passes the shortest game, hostile answers in each turn included."""

import pytest

from echo2.tasks import check
from echo2.tasks.check import Extent


def test_kuhn_passes_the_kit() -> None:
    pytest.importorskip("pokerkit", reason="needs the extra poker")
    assert check.check("poker:kuhn", Extent(prompts=20, seconds=5.0, opening=30.0, paid=20)) == []
