"""A market on the page and in the API: and nothing of it in a run that pays in points."""

import csv
import io
import json

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.market_views import SupplyPoint
from echo2.coordinator.web import csv_export, market_chart, page, prometheus
from echo2.coordinator.web.formatting import amount
from echo2.coordinator.web.site import application
from tests.support import pictures
from tests.support.fixed_run import FixedRun
from tests.support.site_visits import Drawn, Visit, fetched

HOSTILE = "<script>alert(1)</script>"
RUNNING = pictures.MARKET.running
assert RUNNING is not None


def words(html: str) -> str:
    return " ".join(Drawn(html).words.split())


def test_the_page_of_a_market_has_its_figures_and_says_where_they_are_from() -> None:
    text = words(page.page(pictures.PAID))
    for wanted in (
        "0.4123 USD earned in epoch 52 of at most 1.25",
        "clearing price0.0214",
        "never above0.06",
        "ends in13 min 20 s",
        "spent in closed epochs14.30 USD",
        "epoch 51 paid0.3012 of 1.25",
        "a step costs about0.0003681",
        "Payments by bank: at least 5.00 USD each, less waits in the ledger; at most 100.00 per node within 24 hours; "
        "fee of the payee 0.25",
        "follows from the public ledger as of entry 40,213",
        "0.0214 active 1",
        "standby 2",
        "0.0837 3.91 k RE",
        "61.5",
    ):
        assert wanted in text, wanted
    assert "Points" not in text


def test_a_run_that_pays_in_points_shows_nothing_of_a_market() -> None:
    html = page.page(pictures.BUSY)
    assert "Points" in words(html)
    for word in ("Market", "clearing", "Balance"):
        assert word not in words(html)
    assert b"echo2_market" not in prometheus.exposition(pictures.BUSY)
    assert not [
        line for line in status.lines(pictures.BUSY) if line.startswith(("market", "budget", "spent", "a step"))
    ]
    assert "market" not in csv_export.of_nodes(pictures.BUSY.nodes)


def test_the_curve_is_drawn_with_the_need_and_the_clearing_price_and_told_in_words() -> None:
    chart = market_chart.supply_chart(RUNNING, "USD")
    assert chart.summary == (
        "Supply curve: 113 k RE per hour are offered, at 0.00201 to 0.0554 USD per 1,000 RE. "
        "Needed are 60 k RE per hour. The clearing price is 0.0214 USD per 1,000 RE."
    )
    curve = next(line for line in chart.lines if line.name == "offers")
    assert curve.path.startswith("M0 ")
    assert curve.path.count("L") == 2 * len(RUNNING.supply) - 1
    assert [line.name for line in chart.lines if line.faint] == ["need"]
    html = page.page(pictures.PAID)
    assert f'aria-label="{chart.summary}"' in html


def test_one_absurd_ask_does_not_flatten_the_curve_of_all_others() -> None:
    absurd = SupplyPoint(rate=RUNNING.supply[-1].rate + 1_000_000, cost=2_000_000_000)
    chart = market_chart.supply_chart(msgspec.structs.replace(RUNNING, supply=[*RUNNING.supply, absurd]), "USD")
    assert [tick.label for tick in chart.y_ticks] == ["0", "0.02", "0.04", "0.06", "0.08"]
    offers = next(line for line in chart.lines if line.name == "offers")
    assert (offers.end[1], offers.value) == (0.0, "2 k")


def test_an_epoch_without_offers_and_a_run_between_epochs_can_be_drawn() -> None:
    bare = msgspec.structs.replace(RUNNING, supply=[], clearing=None, earned=None, active=0, short=60_000_000)
    market = msgspec.structs.replace(pictures.MARKET, running=bare, last=None, step_cost=None)
    text = words(page.page(msgspec.structs.replace(pictures.PAID, market=market)))
    assert "1.25 USD to be shared in epoch 52" in text
    assert "not offered60 k RE/h" in text
    between = msgspec.structs.replace(market, running=None, closes=pictures.PAID.now + 30_000)
    state = msgspec.structs.replace(pictures.PAID, market=between)
    assert "No epoch runs. Asks for the next one are taken for 30 s." in words(page.page(state))
    assert "no epoch runs" in "\n".join(status.lines(state))


@pytest.mark.parametrize("place", ["node name", "device", "currency", "place"])
def test_text_from_strangers_is_never_markup_in_a_market(place: str) -> None:
    row = pictures.PAID_NODES[0]
    assert row.pay is not None
    change = {
        "node name": {"nodes": [msgspec.structs.replace(row, name=HOSTILE)]},
        "device": {"nodes": [msgspec.structs.replace(row, device=HOSTILE)]},
        "currency": {"market": msgspec.structs.replace(pictures.MARKET, currency=HOSTILE)},
        "place": {"nodes": [msgspec.structs.replace(row, pay=msgspec.structs.replace(row.pay, place=HOSTILE))]},
    }[place]
    drawn = Drawn(page.page(msgspec.structs.replace(pictures.PAID, **change)))
    assert HOSTILE in drawn.words
    scripts = [attrs for tag, attrs in drawn.tags if tag == "script"]
    assert scripts == [attrs for tag, attrs in Drawn(page.page(pictures.PAID)).tags if tag == "script"]


def test_the_csv_of_nodes_has_exact_amounts_and_runs_no_formula() -> None:
    row = msgspec.structs.replace(pictures.PAID_NODES[0], name="=1+1")
    (told,) = csv.DictReader(io.StringIO(csv_export.of_nodes([row], market=True)))
    assert told["name"] == "'=1+1"
    assert (told["market_place"], told["market_price"], told["market_payable"]) == ("active", "21400", "2301450000")
    curve = list(csv.reader(io.StringIO(csv_export.of_supply(pictures.MARKET))))
    assert curve[0] == ["rate", "cost"]
    assert len(curve) == 1 + len(RUNNING.supply)
    assert csv_export.of_supply(None) == "rate,cost\r\n"


def test_the_metrics_of_a_market_are_in_units_of_its_currency() -> None:
    families = text_string_to_metric_families(prometheus.exposition(pictures.PAID).decode())
    samples = {
        (one.name, *one.labels.values()): one.value
        for family in families for one in family.samples if one.name.startswith("echo2_market")
    }  # fmt: skip
    assert samples["echo2_market_info", "USD"] == 1
    assert samples["echo2_market_spent",] == 14.302100005
    assert samples["echo2_market_clearing_price",] == 0.0000214
    assert samples["echo2_market_nodes", "standby"] == 6
    assert samples["echo2_market_last_paid",] == 0.3012004


def test_status_tells_spend_against_budget_and_the_price_of_a_step() -> None:
    text = "\n".join(status.lines(pictures.PAID))
    assert "market   epoch 52, 800 s left; 14 nodes active, 6 stand by; need 60000 RE/h, prices up to 0.0000214" in text
    assert "budget   about 0.412345678 of 1.25 USD in this epoch" in text
    assert "spent    14.302100005 USD in all closed epochs; the last paid 0.3012004 of 1.25 to 13 nodes" in text
    assert "a step   about 0.000368133 USD" in text
    assert "payments by bank, of 5.00 USD at least and 100.00 per node and day at most; fee of the payee 0.25" in text


async def test_the_description_of_the_api_names_every_field_of_the_answers(visit: Visit) -> None:
    session = await visit(application(FixedRun(pictures.PAID)))
    _, _, body = await fetched(session, "/api/v1/openapi.json")
    described = json.loads(body)
    schemas = described["components"]["schemas"]
    _, _, answer = await fetched(session, "/api/v1/run")
    run = json.loads(answer)
    assert set(run) == set(schemas["RunState"]["properties"])
    assert set(run["market"]["running"]) == set(schemas["OpenMarket"]["properties"])
    assert set(run["nodes"][0]["pay"]) == set(schemas["NodePay"]["properties"])
    assert msgspec.json.decode(answer, type=type(pictures.PAID)) == pictures.PAID


@pytest.mark.parametrize(
    ("units", "text"),
    [
        (0, "0.00"), (1, "0.000000001"), (21_400, "0.0000214"), (12_345_678, "0.01235"), (500_000_000, "0.50"),
        (1_250_000_000, "1.25"), (10**15, "1,000,000.00"), (-21_400, "-0.0000214"),
    ],
)  # fmt: skip
def test_amounts_are_rounded_for_people(units: int, text: str) -> None:
    assert amount(units) == text
