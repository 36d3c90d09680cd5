"""`echo2-coord market quote` reads the ledger of a run, which may be at work; `market simulate` needs no run."""

import re
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.coordinator.market.entries import FACTS, StatedEnd
from echo2.coordinator.run.setup import Run
from tests.support import market
from tests.support.run_folders import make_run, write_model


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", write_model(tmp_path / "model"))


def said(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, ["market", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def test_a_quote_follows_from_the_ledger_of_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(market, "RUN", run.id)
    book = market.told()
    with Database.open(run.folder.database) as database, database.transaction():
        for entry in book.entries:
            facts = msgspec.msgpack.decode(entry.facts, type=FACTS.get(entry.kind, StatedEnd))
            Ledger(database).append(entry.at, entry.kind, entry.key, facts, entry.postings)
    code, out, err = said("quote", "--home", run.folder.path, "--need", "60", "--budget", "0.5")
    assert (code, err) == (0, "")
    assert "as it would open now" in out
    assert "2 closed epochs spent" in out
    assert ", with your terms: a need of 60 RE/h" in out
    assert "0.5 for 15 minutes" in out
    assert out.splitlines()[-1].startswith(
        "payments by points, of 5.00 USD at least and 100.00 per node and day at most"
    )
    for words, says in (
        (("--reserve", "0"), "--reserve is 0: a market needs its highest price per RE, above 0 and at most 1000000"),
        (("--reserve", "999999999"), "--reserve is 999999999: a market needs its highest price per RE"),
        (("--budget", "0"), "--budget is 0: a market needs the amount that an epoch may pay"),
        (("--budget", "9999999999"), "--budget is '9999999999': write an amount"),
        (("--reserve", "NaN"), "--reserve is 'NaN': write an amount"),
    ):
        code, out, err = said("quote", "--home", run.folder.path, *words)
        assert (code != 0, out) == (True, "")
        assert says in err
    for words in (("--need", "0"), ("--need", "1"), ("--need", "1000000000", "--budget", "999999999")):
        code, out, err = said("quote", "--home", run.folder.path, *words)
        assert (code, err) == (0, "")
        assert re.search(r"\de[-+]\d", out) is None


def test_a_run_without_a_market_is_told_so(run: Run) -> None:
    Database.open(run.folder.database).close()
    code, out, err = said("quote", "--home", run.folder.path)
    assert (code != 0, out) == (True, "")
    assert "no epoch of a market was opened in this ledger" in err


def test_a_market_is_tried_without_a_run() -> None:
    code, out, _ = said("simulate", "--nodes", "6", "--epochs", "1", "--seeds", "1", "--budget", "0.05")
    assert code == 0
    assert "half the budget" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--ask", "free"), "--ask is 'free'"),
        (("--reserve", "-1"), "--reserve is '-1'"),
        (("--budget", "1e9"), "--budget"),
        (("--ask", "0"), "--ask is 0: a cost per hour lies from 0.000001 to 100000"),
        (("--reserve", "0"), "--reserve is 0: a market needs"),
        (("--budget", "0"), "--budget is 0: a market needs"),
    ],
)
def test_an_amount_that_is_none_is_named(words: tuple[str, ...], says: str) -> None:
    code, out, err = said("simulate", *words)
    assert (code != 0, out) == (True, "")
    assert says in err
