"""The demo of payments with real processes, and the second replayer on the ledger that it leaves."""

import io
import re
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from echo2.coordinator.demo import demo
from echo2.coordinator.demo.demo_settings import DemoOptions
from echo2.coordinator.market.market_replay import market_of
from echo2.ledger.export_replay import replay
from echo2.runtime.exit_codes import Exit
from tests.support.second_replayer import replayed_apart

pytestmark = pytest.mark.slow


def test_nodes_with_asks_are_paid_once_each_by_a_provider_that_fails_and_both_replayers_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = io.StringIO()
    code = demo.play(DemoOptions(pay=True, keep=True), None, Console(file=text, width=200, highlight=False)).code
    print(text.getvalue())
    assert code == Exit.OK, text.getvalue()
    assert " right, 0 wrong" in text.getvalue()
    assert "1 returned;" in text.getvalue()
    assert re.search(r"[1-9]\d* lost", text.getvalue())
    (folder,) = tmp_path.glob("echo2-demo-*")
    assert replayed_apart(folder / "export") == replay(folder / "export", market_of).state.as_bytes()
