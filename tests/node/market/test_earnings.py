"""The report of a node's earnings: by epoch in money, by day in points, with what is not known."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from echo2.ledger.epoch_facts import ClosedNode
from echo2.node.config import NodeConfig
from echo2.node.control import earnings_report, payout_orders
from echo2.node.errors import BadConfig, TryLater
from echo2.node.market import earnings, payee_file
from echo2.node.market.earnings import EarningsSources, Electricity
from echo2.node.market.earnings_sources import read
from echo2.node.market.payee_file import PayeeRecord
from echo2.node.trust.market_store import FILE, MarketStore, StoredAnswer
from echo2.node.trust.pay_witness import OwnEpoch
from echo2.protocol.leases import Receipt
from echo2.protocol.market import EpochTerms, MarketResponse, PayeeResponse
from echo2.runtime.units import DAY
from tests.support.fake_coordinator import START
from tests.support.paid_node import PRICE, PaidNode

HOUR = 3_600_000
TERMS = EpochTerms(epoch=21, closes=1, opens=2, milliseconds=HOUR // 4, need=1, reserve=60_000)
ANSWER = MarketResponse(
    currency="USD", coming=None, running=TERMS, ask=120_000_000, rate=4_500_000, place="standby", rank=2,
    active_at=90_000_000, accrued=4 * 10**9, unvested=10**9, payable=12_500_000_000,
)  # fmt: skip
TOLD = PayeeResponse(rail="bank", currency="USD", minimum=5 * 10**9, fee=250_000_000)


def receipt(number: int, **changes: Any) -> Receipt:
    fields: dict[str, Any] = {
        "run": bytes(32), "node": bytes(32), "lease": bytes([number]) * 16, "era": 1, "version": 1,
        "submission_hash": bytes(32), "verdict": "accepted", "code": "ok", "reason": "", "trainable": True,
        "weight": 6_678, "entry": 100 + number, "entry_hash": bytes(32), "at": START + number * HOUR,
    }  # fmt: skip
    return Receipt(**fields | changes)


def epoch(number: int, pay: int = 30_000_000) -> tuple[OwnEpoch, MarketResponse]:
    row = ClosedNode("me", 33_333, 900_000, 840_000, pay, pay // 5, True)
    closed = START + number * HOUR // 4
    own = OwnEpoch(number, 1000 + number, closed - HOUR // 4, closed, row, pay - pay // 5, pay // 5)
    return own, msgspec.structs.replace(ANSWER, price=33_333, most=1_000_000)


def known(**changes: Any) -> EarningsSources:
    return EarningsSources(
        run="the run demo", currency="USD", receipts=[receipt(1, epoch=20), receipt(2, epoch=21)],
        epochs=[epoch(number, 30_000_000 + number) for number in range(1, 21)], market=StoredAnswer(START, ANSWER),
        payee=PayeeRecord(told=TOLD), electricity=Electricity(350, 320_000_000), lacks=[],
    )._replace(**changes)  # fmt: skip


def test_before_a_node_has_joined_nothing_is_claimed_about_pay() -> None:
    lacks = ["what the run pays: the run has not answered a node here yet"]
    new = known(currency="", receipts=[], epochs=[], market=None, lacks=lacks, joined=False)
    assert earnings.lines(new, explain=False) == [
        "the run demo: nothing is known of its pay yet",
        "not known here: what the run pays: the run has not answered a node here yet",
    ]


def test_a_node_in_a_market_sees_its_money_its_place_and_its_outlook() -> None:
    assert earnings.lines(known(), explain=False) == [
        "the run demo pays in USD",
        "payable 12.50 USD, held back 4.00 USD, not vested yet 1.00 USD, as the run told at 2023-11-14 22:13 UTC",
        "standing by in epoch 21 at rank 2: with an ask of at most 0.09/h it would be active (`echo2-node config set "
        "ask 0.09/h`); the ask 0.12/h stands",
        "the rate of this node that counts is 4500 RE per hour",
        "20 closed epochs, proved by the ledger, paid 0.60000021 USD; 1 accepted groups, 6.678 RE, wait for "
        "their epoch's close or its proof",
        "forecast while it works: 0.120000042 USD per hour, and from 0.120000008 USD to 0.120000076 USD with a "
        "chance of 80 % (from its last 20 epochs)",
        "electricity: 350 W while it works",
        "cost of it: 0.32 per kWh, 0.112 per hour of work, so an ask below 0.112/h does not pay for it",
        "of the forecast 0.008000042 USD per hour are left after electricity",
        "payments by bank; least payment 5.00 USD, fee of the payee 0.25 USD",
    ]


def test_each_term_of_the_pay_is_explained_with_its_entry() -> None:
    rows = earnings.lines(known(), explain=True)
    at = rows.index(
        "epoch 20, closed at 2023-11-15 03:13 UTC by entry 1020: 0.000033333 USD per RE x 900 RE = 0.03000002 USD; "
        "0.006000004 USD of it vests over 24 hours"
    )
    assert rows[at + 1 : at + 3] == [
        "  work: 1 receipt, entries 101 to 101; leased for 14 min 0 s",
        "  promised: 0.000033333 USD per RE for at most 1000 RE",
    ]


def test_work_beyond_the_promise_and_run_off_are_said() -> None:
    own, promised = epoch(1)
    assert own.row is not None
    own = own._replace(row=msgspec.structs.replace(own.row, active=False))
    rows = earnings.lines(known(epochs=[(own, msgspec.structs.replace(promised, most=800_000))]), explain=True)
    assert "  promised: 0.000033333 USD per RE for at most 800 RE: work beyond that is not paid" in rows
    assert any("per RE x 800 RE of 900 RE = " in row for row in rows)
    assert rows[-1 - len(earnings.WORDS)] == "  run-off: paid at the price before"
    empty = earnings.lines(known(epochs=[(own._replace(row=None), None)]), explain=True)
    assert empty[-1 - len(earnings.WORDS)].endswith("by entry 1001: nothing was paid")


def test_plain_values_have_every_term() -> None:
    values = json.loads(json.dumps(earnings.plain(known())))
    assert values["balances"] == {"at": START, "payable": 12_500_000_000, "accrued": 4 * 10**9, "unvested": 10**9}
    assert values["epochs"][-1]["receipts"] == [{"lease": "01" * 16, "entry": 101, "work": 6_678}]
    assert values["epochs"][-1]["pay"] == 30_000_020
    assert values["forecast"]["chance"] == "17/21"
    assert (values["electricity"]["per_hour"], values["payments"]["minimum"]) == (112_000_000, 5 * 10**9)
    assert json.loads(json.dumps(earnings.plain(known(market=None, payee=PayeeRecord()))))["balances"] is None


def test_a_node_in_a_run_of_points_sees_its_work_by_day() -> None:
    receipts = [receipt(number) for number in range(1, 20)] + [receipt(30, code="quarantine")]
    points = known(currency="", receipts=receipts, epochs=[], market=None)
    rows = earnings.lines(points, explain=True)
    assert rows[0] == "the run demo pays points, credited at the verdict: 20 accepted groups, 133.56 RE"
    assert (
        rows[1] == "a point is the work of one reference rollout (RE); a group of this node earned 6.678 RE on average"
    )
    assert rows[2].startswith("forecast while it works: 6.678 RE per hour, and from 6.678 RE to 6.678 RE")
    assert rows[3] == "electricity: 350 W while it works: a point takes 52.4 Wh, its work so far 7 kWh"
    assert rows[4] == "cost of it: 0.32 per kWh, 0.112 per hour of work, 0.016771488 per point"
    assert (
        rows[-1 - len(earnings.WORDS)] == "2023-11-16: 1 group, 6.678 RE, 6.678 RE of it in quarantine at the verdict"
    )
    assert sum(day["work"] for day in earnings.days_of(receipts)) == 133_560
    assert earnings.days_of(receipts)[0]["day"] == "2023-11-14"
    assert earnings.days_of([receipt(1, at=DAY - 1), receipt(2, at=DAY)])[1]["day"] == "1970-01-02"


def test_too_few_periods_and_no_tariff_are_said() -> None:
    rows = earnings.lines(known(epochs=[epoch(1)], electricity=None, lacks=["newer balances: none"]), explain=False)
    assert "no forecast: it needs 9 epochs of work" in rows
    assert any(row.startswith("electricity: set `watts`") for row in rows)
    assert rows[-1] == "not known here: newer balances: none"


def config(home: Path, **settings: Any) -> NodeConfig:
    return NodeConfig(home=home, **settings)


def test_without_a_daemon_all_comes_from_the_disk_and_the_rest_is_said(tmp_path: Path) -> None:
    node = PaidNode(tmp_path)
    for number in range(3):
        node.receive(number)
    node.prove()
    node.promise(PRICE, 10_000)
    rows = earnings_report.report(config(node.home, tariff="0.32", watts=350), explain=True, as_json=False)
    assert rows[0] == "the run a run pays in USD"
    assert any(row.startswith("active in epoch 1 at 0.000001 USD per RE") for row in rows)
    assert any("0.000001 USD per RE x 3 RE = 0.000003 USD" in row for row in rows)
    assert "  work: 3 receipts, entries " in "\n".join(rows)
    assert rows[-2:] == [
        "not known here: least payment and fee: `echo2-node payout show` asks for them",
        "not known here: newer balances: no node runs here",
    ]
    (values,) = earnings_report.report(config(node.home), explain=False, as_json=True)
    assert json.loads(values)["epochs"][0]["pay"] == 3 * PRICE


def test_a_proof_that_does_not_hold_is_said_and_not_counted(tmp_path: Path) -> None:
    node = PaidNode(tmp_path)
    node.receive()
    node.prove()
    store = node.folder / "ledger.sqlite"
    with closing(sqlite3.connect(store, isolation_level=None)) as database:
        database.execute("UPDATE epochs SET size = size + 1")
    there = read(config(node.home))
    assert (there.epochs, len(there.pending)) == ([], 1)
    assert there.lacks[0].startswith("epoch 1: entry ")


def test_a_home_that_joined_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="no run was joined"):
        earnings_report.report(config(tmp_path), explain=False, as_json=False)


def test_a_run_that_was_never_asked_lacks_its_balances(tmp_path: Path) -> None:
    node = PaidNode(tmp_path)
    assert any("has not been asked yet" in sentence for sentence in read(config(node.home)).lacks)
    with closing(MarketStore(node.folder / FILE)) as store:
        store.put_answer(ANSWER, START)
    payee_file.write(node.folder, PayeeRecord(told=TOLD))
    assert read(config(node.home)).lacks == []
    assert payout_orders.describe_payee(node.home)[-1].startswith("payments by bank")


def test_a_daemon_that_cannot_ask_the_run_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = PaidNode(tmp_path)

    def refuse(home: Path, **asked: Any) -> dict[str, Any]:
        raise TryLater("the coordinator does not answer: no route")

    monkeypatch.setattr(earnings_report, "ask_daemon", refuse)
    rows = earnings_report.report(config(node.home), explain=False, as_json=False)
    assert rows[-1] == "not known here: newer balances: the coordinator does not answer: no route"
