"""`echo2-node config set ask`: what the owner is told, with and without a daemon, in a run of money and of points."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from echo2.node.control import ask_orders
from echo2.node.control.ask_orders import check, consequences, rises
from echo2.node.errors import TryLater
from echo2.node.home import run_folder
from echo2.node.trust.market_store import FILE, MarketStore
from echo2.node.trust.trust_store import TrustStore
from echo2.protocol.market import MarketResponse
from echo2.protocol.sealed_asks import LEAST_ASK, MOST_ASK, BadAsk
from tests.support.fake_coordinator import START, FakeCoordinator

ASK = 120_000_000


def home_of(folder: Path, standing: int | None = None, **spec: Any) -> Path:
    """Return the home of a node that joined a run, whose ask `standing` stands there."""
    coordinator, home = FakeCoordinator(folder / "run"), folder / "home"
    home.mkdir()
    invite = coordinator.invite()
    (home / "invite").write_text(invite.to_text())
    at = run_folder(home, invite.run)
    store = TrustStore(at / "trust", invite.run, invite.root_hash, START)
    store.update_roots(coordinator.roots, START)
    store.update_runspec(coordinator.sealed_runspec(**spec))
    if standing is not None:
        with closing(MarketStore(at / FILE)) as market:
            market.put_answer(MarketResponse(currency="USD", coming=None, running=None, ask=standing), START)
    return home


def paying(folder: Path, standing: int | None = None) -> Path:
    return home_of(folder, standing, price_mode="market", currency="USD")


def test_a_rise_above_a_quarter_is_told_before_it_is_sent() -> None:
    assert rises(200_000_000, 100_000_000) == (
        "the ask 0.10/h stands, and an ask rises by at most 25 % per epoch: it reaches 0.20/h in 4 epochs, the next "
        "one at 0.125/h"
    )
    assert rises(ASK, 100_000_000) == "the ask 0.10/h stands; 0.12/h is sealed for the next epoch"
    assert rises(100_000_000, ASK) == "the ask 0.12/h stands; 0.10/h is sealed for the next epoch"
    assert rises(ASK, ASK) == "the ask 0.12/h stands already"
    assert rises(ASK, None) == "it is sealed for the next epoch, as 0.12/h"
    assert "in 114 epochs" in rises(MOST_ASK, LEAST_ASK)


def test_without_a_daemon_it_counts_from_the_next_start_on(tmp_path: Path) -> None:
    home = paying(tmp_path, standing=100_000_000)
    rows = consequences(home, check(home, "0.12/h"), "0.12/h")
    assert rows == ["no node runs here: it counts from the next start on", rises(ASK, 100_000_000)]


def test_an_ask_that_is_removed_leaves_the_standing_one(tmp_path: Path) -> None:
    home = paying(tmp_path, standing=ASK)
    assert "stays in force" in consequences(home, check(home, None), None)[1]


def test_a_run_of_points_needs_no_ask_and_work_goes_on(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    (sentence,) = consequences(home, check(home, "0.12 EUR/h"), "0.12 EUR/h")
    assert sentence.startswith("the run a run pays points and needs no ask: work goes on as before")


def test_before_any_run_was_joined_an_ask_is_kept(tmp_path: Path) -> None:
    assert check(tmp_path, "0.12/h") is None
    assert "no run was joined here yet" in consequences(tmp_path, None, "0.12/h")[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [("0.12 EUR/h", "the run pays in USD, not in EUR"), ("-1/h", "is no ask"), ("NaN/h", "is no ask"),
     ("100001/h", "lies from"), ("9" * 30 + "/h", "lies from"),
     ("0.0000000001/h", "more than nine decimals"), ("0.12", "is no ask")],
)  # fmt: skip
def test_a_bad_ask_is_refused_before_anything_is_written(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadAsk, match=said):
        check(paying(tmp_path), text)


def test_the_daemon_hears_of_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[dict[str, Any]] = []
    monkeypatch.setattr(ask_orders, "ask_daemon", lambda home, **asked: heard.append(asked) or {})
    home = paying(tmp_path)
    rows = consequences(home, check(home, "0.12/h"), "0.12/h")
    assert (heard, rows[0]) == ([{"command": "ask", "text": "0.12/h"}], "the running node has taken it")

    def refuse(home: Path, **asked: Any) -> dict[str, Any]:
        raise TryLater("the run pays in USD, not in EUR")

    monkeypatch.setattr(ask_orders, "ask_daemon", refuse)
    with pytest.raises(TryLater):
        consequences(home, check(home, "0.12/h"), "0.12/h")
