"""The kinds of the market's entries: golden vectors, limits of their numbers, and their page."""

import json
from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.market.entries import (
    FACTS,
    AskOpened,
    AskSealed,
    BalanceMoved,
    Benchmarked,
    EpochAnnounced,
    EpochClosed,
    EpochDrawn,
    EpochOpened,
    Forfeited,
    OwnersGrouped,
    Settled,
)
from echo2.coordinator.market.epoch_terms import MOST_PRICE
from echo2.ledger.balance_waits import BalanceDisputed
from echo2.ledger.epoch_facts import ClosedNode
from echo2.protocol.sealed_asks import MOST_ASK, commitment
from tests.support.documents import tables
from tests.support.paths import ROOT

NODE = "12D3KooWA4Xop1JaT3MHxwYMkCepYsv4iPVopMXwCz5iHYdBfeSB"
OTHER = "12D3KooW9tHtTS3incZYiykw4u5G4frbjVFqhkmJX12gSNCVeH3e"
RUN, SALT = bytes(range(32)), bytes(range(16))
EXAMPLES: dict[str, msgspec.Struct] = {
    "measured": Benchmarked(node=NODE, rate=4_500_000),
    "ask.sealed": AskSealed(node=NODE, epoch=7, hash=commitment(RUN, NODE, 7, 140_000_000, SALT)),
    "ask.opened": AskOpened(node=NODE, epoch=7, ask=140_000_000, salt=SALT),
    "epoch.announced": EpochAnnounced(
        epoch=7, closes=1_700_000_000_000, milliseconds=900_000, need=20_000_000, reserve=60_000,
        budget=300_000_000, newcomers=50, cap=400, run_off=900_000,
    ),
    "owners.grouped": OwnersGrouped(epoch=7, owners=[(OTHER, b"t" * 8), (NODE, b"t" * 8)]),
    "epoch.drawn": EpochDrawn(epoch=7, beacon=bytes(range(32))),
    "epoch.opened": EpochOpened(epoch=7, forfeits=3_000, present=[OTHER, NODE]),
    "epoch.closed": EpochClosed(
        epoch=7, since=1_700_000_000_012, short=0, binding=False,
        nodes=[ClosedNode(NODE, 33_333, 1_125_000, 900_000, 37_500_000, 7_500_000, True)],
    ),
    "vested": Settled(epoch=7, amounts=[(NODE, 50)]),
    "released": Settled(epoch=7, amounts=[(NODE, 1_600)]),
    "forfeited": Forfeited(node=NODE, lease=bytes(16), amount=3_000, lacking=1, why="a false group"),
    "balance.disputed": BalanceDisputed(node=OTHER, successor=NODE),
    "balance.moved": BalanceMoved(node=OTHER, successor=NODE, accrued=80, unvested=20, payable=1_500),
}  # fmt: skip
"""Kind -> facts as they could be."""


def test_each_kind_has_an_example_and_a_golden_vector(repository: Path) -> None:
    vector = json.loads((repository / "tests/vectors/market.json").read_text())
    assert vector["facts"] == {kind: msgspec.msgpack.encode(facts).hex() for kind, facts in EXAMPLES.items()}
    assert set(EXAMPLES) == set(FACTS)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_facts_are_read_as_they_were_written(kind: str) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(EXAMPLES[kind]), type=FACTS[kind]) == EXAMPLES[kind]


def test_the_hash_of_a_sealed_ask_is_pinned(repository: Path) -> None:
    vector = json.loads((repository / "tests/vectors/market.json").read_text())["ask"]
    run, salt = bytes.fromhex(vector["run"]), bytes.fromhex(vector["salt"])
    hash_ = commitment(run, vector["node"], vector["epoch"], vector["ask"], salt)
    assert hash_.hex() == vector["hash"]


def test_every_price_fits_into_64_bits() -> None:
    assert MOST_PRICE < 1 << 53
    # the dearest critical cost before the reserve price limits it never reaches an entry
    assert MOST_ASK * 1000 * 20 // 19 < 1 << 63


def test_the_page_names_each_kind_with_all_its_facts() -> None:
    page = (ROOT / "docs/protocol/ledger.md").read_text()
    (rows,) = [rows for header, *rows in tables(page) if header[0] == "Kind of market entry"]
    documented = {row[0].strip("`"): row[2] for row in rows}
    assert set(documented) == set(FACTS)
    for kind, text in documented.items():
        for name in FACTS[kind].__struct_fields__:
            assert f"`{name}`" in text, f"{kind} lacks {name}"
    for name in ClosedNode.__struct_fields__:
        assert f"`{name}`" in documented["epoch.closed"]
