"""A market that a coordinator runs: nodes ask, the cheapest work, others are told why not, and each epoch is paid."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.epochs import late_refusals
from echo2.coordinator.epochs.free_places import FREE_OF_PARTY
from echo2.coordinator.market.entries import EpochClosed, EpochOpened, Forfeited
from echo2.coordinator.market.epochs import payable
from echo2.ledger.drawn_beacons import DrawnBeacons
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.identity import peer_id
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import decode
from echo2.protocol.ledger_heads import LedgerHead
from echo2.protocol.market import MarketRequest
from echo2.protocol.sealed_asks import commitment
from echo2.runtime.units import DAY
from tests.support.group_world import ALICE, BOB, RUN, group
from tests.support.market_world import EPOCH, NANO, SALT, TERMS, MarketWorld, key_of, told

CAROL = key_of(3)


@pytest.fixture
def world(tmp_path: Path) -> MarketWorld:
    return MarketWorld(tmp_path)


def test_a_new_run_asks_nobody_before_an_epoch_is_open(world: MarketWorld) -> None:
    assert world.refusal().code == "no-ask"
    world.tick()
    coming = world.asks(ALICE).coming
    assert coming.epoch == 1
    assert world.asks(ALICE).place == "none"


def test_a_newcomer_is_active_at_once_and_paid_at_the_close(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10})
    answer = world.asks(ALICE)
    assert (answer.place, answer.rate) == ("active", 10_000)  # the estimate: a tenth of the need
    lease = world.lease()
    world.submit(group(lease))
    (receipt,) = world.decide_all()
    assert receipt.verdict == "accepted"
    assert (receipt.epoch, receipt.price) == (1, NANO // 100)  # its own cost: 0.1 per hour over 10 RE per hour
    assert world.pay(ALICE) == 0  # nothing moves at the verdict
    assert all(not one.postings for one in world.entries("lease."))
    world.open_with({ALICE: NANO // 10})
    assert world.pay(ALICE) == receipt.price * receipt.weight // 1000
    (closed,) = world.entries("epoch.closed")
    (row,) = msgspec.msgpack.decode(closed.facts, type=EpochClosed).nodes
    assert (row.node, row.work, row.active) == (peer_id(ALICE), receipt.weight, True)
    assert told(world.replayed()) == told(world.market.service.state)


def test_a_node_that_the_budget_does_not_reach_is_told_so(tmp_path: Path) -> None:
    world = MarketWorld(tmp_path, TERMS._replace(budget=1))
    world.open_with({ALICE: NANO // 10})
    assert world.asks(ALICE).why.startswith("the epoch's budget, 0.000000001 USD, does not reach to it")
    assert "the epoch's budget, 0.000000001 USD" in world.refusal().sentence


def test_a_node_above_the_highest_price_is_told_which_ask_is_not(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10, BOB: 2 * NANO})
    refused = world.refusal(node=BOB)
    assert refused.code == "not-active"
    assert "at 10 RE per hour its ask of 2.00 USD per hour is above" in refused.sentence
    assert "one of at most 0.10 per hour is not" in refused.sentence
    assert world.asks(BOB).place == "out"


def test_a_lottery_is_drawn_by_a_head_over_every_sealed_ask_before_one_is_opened(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10, BOB: NANO // 9})
    (drawn,) = world.entries("epoch.drawn")
    assert max(one.seq for one in world.entries("ask.sealed")) < drawn.seq
    assert drawn.seq < min(one.seq for one in world.entries("ask.opened"))
    heads = [
        (decode(decode_unverified(sealed).payload, LedgerHead), sealed)
        for (sealed,) in world.group_service.database.all("SELECT sealed FROM ledger_heads")
    ]
    assert drawn.seq - 1 in {head.size for head, _ in heads}
    check = DrawnBeacons(RUN, heads)
    for entry in world.entries():
        check.take(entry)


def test_a_crash_in_the_middle_of_an_epoch_changes_no_pay(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10})
    world.accepted()
    world.market.service.read()
    before = told(world.market.service.state)
    world.reopen(away=3_000)
    world.tick()
    assert told(world.market.service.state) == before
    world.accepted()
    world.now += EPOCH
    world.open_with({ALICE: NANO // 10})
    assert world.pay(ALICE) > 0
    assert told(world.replayed()) == told(world.market.service.state)


def work(world: MarketWorld, node: bytes, groups: int) -> None:
    """Let a node deliver groups, each in a second."""
    for _ in range(groups):
        lease = world.lease(node)
        world.now += 1_000
        world.submit(group(lease), node)
        world.decide_all()


ASKED = {ALICE: NANO // 5, BOB: NANO // 4, CAROL: 500 * NANO}


def measured(folder: Path) -> MarketWorld:
    """Return a world with two measured nodes, of which one is enough, and a dear one."""
    terms = TERMS._replace(epoch=3_600_000, least_need=400_000, budget=1_000 * NANO)
    world = MarketWorld(folder, terms, batch_groups=99)
    for _ in range(2):
        world.open_with(ASKED)
        for node in (ALICE, BOB):
            if world.asks(node).place == "active":
                work(world, node, 31)
        world.now += 3_600_000
    world.open_with(ASKED)
    return world


@pytest.mark.slow
def test_of_measured_nodes_the_cheapest_is_active_and_the_next_stands_by(tmp_path: Path) -> None:
    world = measured(tmp_path)
    answers = {node: world.asks(node) for node in ASKED}
    assert [one.place for one in answers.values()] == ["active", "standby", "out"]
    assert answers[ALICE].price is not None
    standby = answers[BOB].active_at
    assert standby is not None
    assert NANO // 5 * 9 // 10 < standby < NANO // 4
    refused = world.refusal(node=BOB)
    assert refused.code == "standby"
    assert refused.retry_after is not None
    assert "above the highest price" in world.refusal(node=CAROL).sentence
    assert world.lease(ALICE).node == ALICE
    assert world.pay(ALICE) > 0 < world.pay(BOB)
    assert world.pay(CAROL) == 0
    assert told(world.replayed()) == told(world.market.service.state)


def test_no_more_is_leased_than_an_epoch_pays_for(tmp_path: Path) -> None:
    budget = NANO // 100 * 167 // 1000  # what this node delivers in a minute, at its price
    world = MarketWorld(tmp_path, TERMS._replace(budget=budget))
    world.open_with({ALICE: NANO // 10})
    most = world.asks(ALICE).most
    assert 166 <= most <= 167
    world.accepted()
    world.accepted()
    assert world.refusal().code == "promised"
    world.now += EPOCH
    world.open_with({ALICE: NANO // 10})
    assert 0 < world.pay(ALICE) <= budget


def test_a_clock_that_jumps_either_way_neither_stops_epochs_nor_pays_twice(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10})
    world.accepted()
    paid = []
    for jump in (10 * DAY, -20 * DAY, 3_600_000, -3_600_000):
        world.now += jump
        opened = world.market.service.state.epoch
        for _ in range(200):
            world.now += 1_000
            world.asks(ALICE)
            world.tick()
        assert world.market.service.state.epoch > opened
        paid.append(world.pay(ALICE))
    assert paid[0] > 0
    assert len(set(paid)) == 1
    assert told(world.replayed()) == told(world.market.service.state)


def test_a_finished_run_closes_its_last_epoch_and_releases_with_time(tmp_path: Path) -> None:
    world = MarketWorld(tmp_path, batch_groups=99)
    world.open_with({ALICE: NANO // 10})
    for _ in range(12):
        world.accepted()
    world.tick(finished=True)
    earned = world.pay(ALICE)
    assert earned > 0
    assert world.market.service.state.open is None
    for _ in range(26):
        world.now += 3_600_000
        world.tick(finished=True)
    ledger, peer = world.group_service.ledger, peer_id(ALICE)
    assert ledger.balance(payable(peer)) == earned == world.pay(ALICE)
    entries = ledger.tip().entries
    world.now += DAY
    world.tick(finished=True)
    assert ledger.tip().entries == entries  # nothing is left to release
    assert world.refusal().code == "not-active"
    assert told(world.replayed()) == told(world.market.service.state)


@pytest.mark.slow
def test_an_epoch_ends_early_where_its_active_node_has_left(tmp_path: Path) -> None:
    world = measured(tmp_path)
    assert world.asks(ALICE).place == "active"
    began, before = world.now, world.market.service.state.epoch
    while world.asks(BOB).place != "active":
        assert world.now - began < 1_000_000
        world.now += 5_000
        world.tick()
    lasted = world.now - began
    assert world.market.service.state.epoch == before + 1
    assert 240_000 < lasted < 300_000  # until ALICE counts as gone, two looks, and the asks
    assert world.terms.epoch == 3_600_000 > lasted


def test_newcomers_that_leave_end_no_epoch(tmp_path: Path) -> None:
    """A key costs nothing, and an epoch that ends early costs every node its asks."""
    world = MarketWorld(tmp_path, TERMS._replace(epoch=3_600_000, least_need=400_000, budget=1_000 * NANO))
    world.open_with(ASKED)
    places = {node: world.asks(node).place for node in ASKED}
    assert places[ALICE] == "active" != places[CAROL]
    before = world.market.service.state.epoch
    for _ in range(100):
        world.now += 5_000
        for node in ASKED:
            if places[node] != "active":
                world.asks(node)
        world.tick()
    assert world.market.service.state.epoch == before


def test_an_operator_who_takes_a_paid_group_back_takes_its_pay(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10})
    lease = world.accepted()
    other = world.accepted()
    world.group_service.verdicts.second.reverse(lease.id, "operator", "a proof", world.now)
    world.tick()
    assert not world.entries("forfeited")  # its epoch is not closed
    world.reopen()
    world.now += EPOCH
    world.open_with({ALICE: NANO // 10})
    world.tick()
    (entry,) = world.entries("forfeited")
    fact = msgspec.msgpack.decode(entry.facts, type=Forfeited)
    (closed,) = world.entries("epoch.closed")
    (row,) = msgspec.msgpack.decode(closed.facts, type=EpochClosed).nodes
    assert (fact.lease, fact.lacking) == (lease.id, 0)
    assert abs(2 * fact.amount - row.pay) <= 1
    assert world.pay(ALICE) == row.pay - fact.amount
    world.reopen()
    world.tick()
    assert len(world.entries("forfeited")) == 1
    world.group_service.verdicts.second.reverse(other.id, "operator", "a proof", world.now)
    world.tick()
    assert world.pay(ALICE) <= 1
    assert world.group_service.ledger.balance("forfeit") + world.pay(ALICE) == row.pay
    assert told(world.replayed()) == told(world.market.service.state)


def test_an_epoch_names_no_node_without_an_ask(world: MarketWorld) -> None:
    for number in range(100):
        world.asks(key_of(1000 + number))  # keys are free, and an entry stays
    world.open_with({ALICE: NANO // 10})
    (opened,) = world.entries("epoch.opened")
    assert msgspec.msgpack.decode(opened.facts, type=EpochOpened).present == [peer_id(ALICE)]
    assert told(world.replayed()) == told(world.market.service.state)


def test_free_keys_of_a_party_gather_no_asks_with_each_epoch(world: MarketWorld) -> None:
    keys = list[bytes]()
    world.open_with({ALICE: NANO // 10})

    def of_party(node: bytes, **fields: object) -> str:
        return world.market.answer(node, MarketRequest(**fields), world.now, Origin("somewhere", "party")).refused

    for epoch in range(2, 6):
        while (coming := world.asks(ALICE).coming) is None:
            world.now += 1_000
            world.tick()
        fresh = [key_of(1000 + 10 * epoch + number) for number in range(FREE_OF_PARTY)]
        keys += fresh
        for node in fresh:
            assert not of_party(node, epoch=epoch, sealed=commitment(RUN, peer_id(node), epoch, NANO // 10, SALT))
        world.now = coming.closes + 1
        for node in fresh:
            assert not of_party(node, epoch=epoch, ask=NANO // 10, salt=SALT)
        for node in keys:
            of_party(node)
        world.pass_to(coming.opens, epoch)
    present = msgspec.msgpack.decode(world.entries("epoch.opened")[-1].facts, type=EpochOpened).present
    assert present == sorted([peer_id(ALICE), *map(peer_id, keys[-FREE_OF_PARTY:])])
    assert world.market.service.state.asks.keys() == set(present)
    assert told(world.replayed()) == told(world.market.service.state)


def test_many_forfeits_come_a_few_at_a_time_and_a_start_from_a_snapshot_knows_them(
    world: MarketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_refusals, "AT_ONCE", 2)
    world.open_with({ALICE: NANO // 10})
    leases = [world.accepted() for _ in range(5)]
    for lease in leases:
        world.group_service.verdicts.second.reverse(lease.id, "operator", "a proof", world.now)
    world.now += EPOCH
    world.open_with({ALICE: NANO // 10})
    written = len(world.entries("forfeited"))
    assert 0 < written < 5
    world.reopen()
    assert world.market.service.begun > 0
    counts = []
    while len(world.entries("forfeited")) < 5:
        world.tick()
        counts.append(len(world.entries("forfeited")))
        assert len(counts) < 10
    assert all(after - before <= 2 for before, after in zip([written, *counts], counts, strict=False))
    assert not world.market.late_refusals.waits
    assert told(world.replayed()) == told(world.market.service.state)


def test_free_keys_seal_few_asks(world: MarketWorld) -> None:
    world.tick()
    coming = world.asks(ALICE).coming
    assert coming is not None

    def seal(node: bytes, party: str) -> str:
        hash_ = commitment(RUN, peer_id(node), coming.epoch, NANO, SALT)
        request = MarketRequest(epoch=coming.epoch, sealed=hash_)
        return world.market.answer(node, request, world.now, Origin(peer_id(node), party)).refused

    answers = [seal(key_of(n), "192.0.2.0/24") for n in range(10)]
    assert answers.count("") == 4
    assert seal(key_of(0), "192.0.2.0/24") == ""  # the same once more
    answers += [seal(key_of(n), f"party {n}") for n in range(10, 100)]
    assert answers.count("") == 64
    assert "enough nodes without accepted work" in answers[-1]
    assert len(world.entries("ask.sealed")) == 64


def test_what_is_wrong_with_an_ask_is_told_and_the_ask_before_stands(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10})
    while (coming := world.asks(ALICE).coming) is None:
        world.now += 1_000
        world.tick()
    world.accepted()
    epoch = coming.epoch
    assert "hash" not in world.asks(ALICE).refused
    assert "once they are closed" in world.asks(ALICE, epoch=epoch, ask=NANO, salt=SALT).refused
    assert "no terms are announced" in world.asks(ALICE, epoch=epoch + 7, sealed=bytes(32)).refused
    world.asks(ALICE, epoch=epoch, sealed=commitment(RUN, peer_id(ALICE), epoch, NANO, SALT))
    world.now = coming.closes + 1
    answer = world.asks(ALICE, epoch=epoch, ask=NANO, salt=SALT)
    assert "rises by at most 25 %" in answer.refused
    assert answer.ask == NANO // 10


def test_a_start_from_a_snapshot_is_the_start_from_the_whole_ledger(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10, BOB: NANO // 20})
    work(world, ALICE, 3)
    world.now += EPOCH
    world.open_with({ALICE: NANO // 10, BOB: NANO // 20})
    found = world.market.service.snapshots.newest(RUN)
    assert found is not None
    state, entry = found
    assert entry < world.group_service.ledger.tip().entries
    assert state.measurements
    world.reopen()
    world.tick()
    assert told(world.market.service.state) == told(world.replayed())


def test_a_successor_of_a_key_has_its_ask_and_its_measurement(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10})
    work(world, ALICE, 3)
    world.now += EPOCH
    world.open_with({ALICE: NANO // 10})
    world.group_service.accounts.rotate(ALICE, BOB, world.now)
    answer = world.asks(BOB)
    assert answer.ask == NANO // 10
    assert answer.rate > 0
    assert world.asks(ALICE).ask is None
    assert told(world.replayed()) == told(world.market.service.state)


def test_a_node_that_takes_no_lease_in_a_whole_epoch_loses_its_place_and_gets_it_back_by_asking(
    world: MarketWorld,
) -> None:
    both = {ALICE: NANO // 10, BOB: NANO // 10}
    world.open_with(both)
    for node in both:
        world.accepted(node=node)
    world.now += EPOCH
    world.open_with(both)
    assert [world.asks(node).place for node in both] == ["active", "active"]
    world.accepted()
    world.now += EPOCH
    world.open_with(both)  # Bob asked about the market alone
    assert [world.asks(node).place for node in both] == ["active", "out"]
    world.accepted()
    assert world.refusal(node=BOB).code == "not-active"  # he asks for work
    world.now += EPOCH
    world.open_with(both)
    assert [world.asks(node).place for node in both] == ["active", "active"]


def test_nodes_of_a_run_that_gave_no_work_keep_their_places(world: MarketWorld) -> None:
    both = {ALICE: NANO // 10, BOB: NANO // 10}
    world.open_with(both)
    world.now += EPOCH
    world.open_with(both)
    assert [world.asks(node).place for node in both] == ["active", "active"]


def test_pay_of_a_key_that_was_replaced_is_released_to_it(tmp_path: Path) -> None:
    world = MarketWorld(tmp_path, batch_groups=99)
    world.open_with({ALICE: NANO // 10})
    work(world, ALICE, 12)
    world.now += EPOCH
    world.open_with({ALICE: NANO // 10})
    earned = world.pay(ALICE)
    assert world.group_service.ledger.balance(payable(peer_id(ALICE))) == 0 < earned
    world.group_service.accounts.rotate(ALICE, BOB, world.now)
    for _ in range(26):
        world.now += 3_600_000
        world.tick(finished=True)
    assert world.group_service.ledger.balance(payable(peer_id(ALICE))) == earned == world.pay(ALICE)
    assert peer_id(ALICE) not in world.market.service.state.tranches
    assert told(world.replayed()) == told(world.market.service.state)


@pytest.mark.parametrize("opened", [False, True])
def test_a_clock_set_forward_and_back_across_a_restart_stops_no_epoch(world: MarketWorld, opened: bool) -> None:
    if opened:
        world.open_with({ALICE: NANO // 10})
    began, before = world.now, world.market.service.state.epoch
    world.now += 365 * DAY
    world.tick()  # announces the next epoch in a year
    world.now = began + 1_000
    world.reopen()
    for _ in range(3 * EPOCH // 5_000):
        world.now += 5_000
        world.asks(ALICE)
        world.tick()
    assert world.market.service.state.epoch > before
    assert told(world.replayed()) == told(world.market.service.state)


def test_a_need_beyond_all_measure_opens_an_epoch(tmp_path: Path) -> None:
    world = MarketWorld(tmp_path, TERMS._replace(least_need=10**15))
    world.open_with({ALICE: NANO // 10})
    assert world.asks(ALICE).place == "active"


def test_before_any_group_is_accepted_a_node_has_one_lease_at_a_time(world: MarketWorld) -> None:
    world.open_with({ALICE: NANO // 10})
    lease = world.lease()
    assert world.refusal().code == "too-many-leases"
    world.submit(group(lease))
    world.decide_all()
    world.lease()
    world.lease()
