"""The exact examples of the design, and one with the cap on owners worked out by hand, as ledgers of a market: both
replayers have the same result."""

import sys
from fractions import Fraction
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.market import epochs
from echo2.coordinator.market.entries import EpochClosed
from echo2.coordinator.market.market_replay import ReplayedMarket
from echo2.ledger.ledger_entries import canonical
from echo2.ledger.ledger_replay import LedgerReplay
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import RoleKeys, Root
from tests.support.example_ledger import ExampleLedger
from tests.support.generated_ledger import memory
from tests.support.market import DESIGN, NANO, QUARTER, RUN
from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "tests" / "replayer"))

from market_rules import Market
from replay import Replay, unpack

IDS = {letter.decode(): peer_id(letter * 32) for letter in DESIGN}
LETTERS = {node: letter for letter, node in IDS.items()}
ASKS = {letter.decode(): int(ask * NANO) for letter, (ask, _) in DESIGN.items()}
RATES = {letter.decode(): 1000 * rate for letter, (_, rate) in DESIGN.items()}
"""Milli-RE per hour."""
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
OWN_ROOT = Root(
    run=RUN, serial=1, roles={"ledger": RoleKeys(keys=[public_bytes(KEY)], threshold=1)}, expires=1, issued=0
)


def played(incumbents: str, **terms: Any) -> ExampleLedger:
    """Measure the six nodes in a first epoch, in which the incumbents are active; then let all deliver for a quarter of
    an hour. `terms`: of the second epoch; `owners`: letters of one owner's nodes."""
    usual = {"milliseconds": QUARTER, "reserve": 60_000, "newcomers": 50, "present": IDS.values()}
    ledger = ExampleLedger(1, memory(), RUN, KEY, market=True)
    for letter in incumbents:
        ledger.put(epochs.benchmark(ledger.now, IDS[letter], RATES[letter]))
    ledger.epoch(asked(incumbents), **usual, need=10**15)
    deliver(ledger, 30, 3_600)
    ledger.settle()
    terms["owners"] = {IDS[letter]: b"x" for letter in terms.get("owners", "")}
    ledger.epoch(asked("".join(ASKS.keys() - set(incumbents))), **(usual | {"need": 20_000_000} | terms))
    deliver(ledger, 1, QUARTER)
    ledger.settle()
    return ledger


def asked(letters: str) -> dict[str, int]:
    return {IDS[letter]: ASKS[letter] for letter in sorted(letters)}


def deliver(ledger: ExampleLedger, count: int, length: int) -> None:
    """End leases of all six nodes beside one another, each brought at the end of its time, at the node's own rate."""
    begin = ledger.now
    for letter, node in IDS.items():
        ledger.now = begin
        for _ in range(count):
            ledger.lease(node, RATES[letter] * length // 3_600_000, length)


def rows(ledger: ExampleLedger) -> dict[str, tuple[int, int]]:
    """Return price and pay of the active nodes of the last epoch, by letter, in the order of activation; both replayers
    agree on the whole ledger."""
    first = LedgerReplay([OWN_ROOT], ReplayedMarket(RUN))
    second = Replay([unpack(encode(OWN_ROOT))], Market(RUN))
    for entry in ledger.ledger.entries():
        first.take(entry)
        second.take(canonical(*entry[:6]), entry.hash)
    assert second.state().encode() == first.state().as_bytes()
    (closed,) = ledger.ledger.entries_with_prefix("epoch:2:closed")
    told = msgspec.msgpack.decode(closed.facts, type=EpochClosed).nodes
    return {LETTERS[row.node]: (row.price, row.pay) for row in told if row.active}


def test_without_incumbents_the_three_cheapest_are_active_at_the_cost_of_the_next() -> None:
    assert list(rows(played("")).items()) == [
        ("B", (33_333, 37_500_000)), ("D", (38_888, 136_111_111)), ("A", (38_888, 87_500_000))
    ]  # fmt: skip


def test_an_incumbent_stays_before_a_cheaper_one() -> None:
    assert list(rows(played("AF")).items()) == [
        ("B", (32_142, 36_160_714)), ("A", (38_888, 87_500_000)), ("D", (36_944, 129_305_555))
    ]  # fmt: skip


def test_a_need_that_takes_all_pays_the_reserve_price_to_the_one_without_whom_it_lacks() -> None:
    assert rows(played("", need=60_000_000)) == {
        "A": (50_000, 112_500_000), "B": (50_000, 56_250_000), "C": (60_000, 600_000_000),
        "D": (50_000, 175_000_000), "E": (50_000, 18_750_000), "F": (50_000, 225_000_000),
    }  # fmt: skip


def test_of_one_owner_no_more_than_his_share_counts() -> None:
    """Two fifths of the need are 8,000 RE/h. In order: B counts 4,500; D 8,000, with which the owner of A and D has his
    share; A nothing; F 8,000: these three reach 20,000. Without B, C is the first with whom the others do (25,500):
    50,000. Without D, A would count 8,000 and use up the share at once: D's price is A's cost. Without F it is C again
    (22,000). D and F deliver more than counts, and are paid for 2,000 RE."""
    price = Fraction(300_000_000, 9_000)
    assert list(rows(played("", cap=400, owners="AD")).items()) == [
        ("B", (50_000, 56_250_000)), ("D", (int(price), int(price * 2_000))), ("F", (50_000, 100_000_000))
    ]  # fmt: skip
