"""The room that hostile nodes can take from honest ones, simulated on a fake clock."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from echo2.coordinator.leases.answer_lengths import LEAST_GROUPS
from echo2.coordinator.leases.lease_lifetime import first_lifetime, longest_lifetime
from echo2.coordinator.leases.room_shares import Denial, Requester, Room, RoomShares
from echo2.p2p.limits.origin import Origin
from echo2.protocol.leases import Lease
from echo2.protocol.requests import Refusal
from tests.support.fleet import Fleet, key, origin_of, request_lease
from tests.support.group_world import ALICE, BOB, World, group

HONEST = 6
MINUTE = 60_000


def code_of(answer: Lease | Refusal) -> str:
    return answer.code if isinstance(answer, Refusal) else ""


def fleet(folder: Path, name: str, **terms: int) -> Fleet:
    folder = folder / name
    folder.mkdir()
    new_fleet = Fleet(World(folder, **({"batch_groups": 4, "per_node": 3} | terms)), step_ms=4_000)
    for number in range(HONEST):
        new_fleet.honest(key("honest", number), 6.0)
    return new_fleet


def share_of_calm(folder: Path, before: int, flood: Callable[[Fleet], None], minutes: int = 4) -> float:
    """Return the ratio of the learner's steps under a flood to those without it. `before`: minutes before it starts."""
    steps = []
    for name in ("calm", "flood"):
        run = fleet(folder, name)
        run.run(before * MINUTE)
        if name == "flood":
            flood(run)
        steps.append(run.run(minutes * MINUTE))
    assert steps[0] >= 40
    return steps[1] / steps[0]


@pytest.mark.parametrize(("before", "least"), [(2, 0.9), (0, 0.7)], ids=["nodes known before", "fresh run"])
@pytest.mark.slow
def test_a_thousand_keys_on_one_connection_do_not_stop_the_learner(tmp_path: Path, before: int, least: float) -> None:
    """On 439044d the flood takes every lease, and the learner makes 0.08 and 0.04 of the steps without it."""
    share = share_of_calm(tmp_path, before, lambda run: run.keys_on_one_connection(1_000, every=200))
    assert share >= least, f"{share:.2f} of the steps of a calm run, at least {least}"


@pytest.mark.slow
def test_keys_that_became_known_over_one_connection_do_not_take_the_room(tmp_path: Path) -> None:
    """Three groups make a key known. Before known keys were served round robin by party too, thirty such keys on one
    connection left the learner 0.06 of its steps."""

    def hoard(run: Fleet) -> None:
        for number in range(30):
            run.world.group_service.accounts.remark(
                key("crowd", number), "node.vouched", "as if it had worked", run.world.now
            )
        run.keys_on_one_connection(30, 125)

    assert share_of_calm(tmp_path, 4, hoard) >= 0.7


@pytest.mark.slow
def test_nodes_that_hand_in_at_the_last_second_do_not_stop_the_learner(tmp_path: Path) -> None:
    """On 439044d their own slowness extends their leases to the longest: 0.08 of the steps without them."""

    def flood(run: Fleet) -> None:
        for number in range(40):
            run.last_second(key("late", number))

    share = share_of_calm(tmp_path, 5, flood, minutes=5)
    assert share >= 0.8, f"{share:.2f} of the steps of a calm run"


@pytest.mark.slow
def test_no_honest_lease_expires_in_a_fleet_of_a_twentyfold_spread(tmp_path: Path) -> None:
    """No honest lease expires, neither in a new run nor for a new node as slow as the slowest."""
    run = Fleet(World(tmp_path, batch_groups=40, per_node=3, least_ms=1_000, most_ms=900_000), step_ms=1_000)
    seconds = [4.0 * 20 ** (number / 5) for number in range(6)]
    for number, one in enumerate(seconds):
        run.honest(key("node", number), one)
    run.run(16 * MINUTE)
    for number in range(2):
        run.honest(key("newcomer", number), seconds[-1])
    run.run(5 * MINUTE)
    world = run.world
    ranks = [world.group_service.accounts.of(key("node", number), world.now).rank for number in range(6)]
    leases = world.group_service.database.value("SELECT count(*) FROM leases WHERE node = ?", (key("node", 5),))
    expired = world.group_service.database.value("SELECT count(*) FROM leases WHERE state = 'expired'")
    assert ranks.count("proven") >= 4, ranks
    assert leases >= 14, "the slowest node was kept waiting"
    assert run.ends["late"] == expired == 0


@pytest.mark.slow
def test_a_slow_node_that_is_not_measured_does_not_hold_a_lease_for_longer_than_the_fleet_needs(tmp_path: Path) -> None:
    """On 439044d its lease lasts 300 s, however fast the others are."""
    run = Fleet(World(tmp_path, batch_groups=20, least_ms=1_000, per_node=3), step_ms=1_000)
    for number in range(4):
        run.honest(key("node", number), 5.0)
    run.run(5 * MINUTE)
    lease = run.ask(key("newcomer"), origin_of("newcomer"))
    assert 20_000 < lease.expires - lease.sent <= 4 * 6_500 + 5_000


def test_a_node_that_cannot_finish_in_the_longest_lease_is_told_so(tmp_path: Path) -> None:
    """On 439044d it gets leases for ever, each of which expires."""
    world = World(tmp_path, batch_groups=20, most_ms=60_000)
    for _ in range(3):
        lease = world.lease()
        world.now += 100_000
        world.group_service.tick(world.now)
        assert world.refused(group(lease)).code == "late"
    refusal = world.refusal()
    assert refusal.code == "too-slow"
    assert "takes this node 100 s, and the longest lease of this run lasts 60 s" in refusal.sentence
    assert refusal.retry_after is not None
    world.now += refusal.retry_after
    world.lease()


def test_a_node_that_says_that_no_group_fits_into_the_longest_lease_never_gets_one(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=20, most_ms=60_000)
    assert world.lease(key("first"), takes=1_000_000).id, "how long answers are is not known yet"
    sampled = []
    while len(sampled) < LEAST_GROUPS:
        lease = world.accepted(BOB)
        sampled.append(len(group(lease).rollouts[0].tokens))
    share = sum(sampled) / len(sampled) / world.group_service.terms.limit
    assert share < 0.9
    refusal = world.refusal(takes=int(61_500 / share))
    assert refusal.code == "too-slow"
    assert "takes this node 61.4" in refusal.sentence or "takes this node 61.5" in refusal.sentence
    assert "the longest lease of this run lasts 60" in refusal.sentence
    assert refusal.retry_after == 3_600_000
    lease = world.lease(takes=int(59_000 / share))
    assert lease.expires - lease.sent == 60_000, "answers end before the limit"


def test_a_card_of_one_row_finishes_its_first_group_of_long_answers(tmp_path: Path) -> None:
    """16 rollouts of 2,500 of at most 8,192 tokens at 35 tokens per second. On e6c7481c its lease lasts 900 s."""
    world = World(tmp_path, batch_groups=20, first_ms=first_lifetime(8_192), most_ms=longest_lifetime(8_192, 16))
    lease = world.lease(takes=16 * 8_192 * 1_000 // 35)
    world.now += 16 * 2_500 * 1_000 // 35
    world.group_service.tick(world.now)
    world.submit(group(lease))
    assert lease.expires > world.now > lease.sent + 900_000


def test_a_node_that_was_cut_off_for_a_while_is_no_slow_one(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=20, least_ms=10_000, most_ms=60_000)
    for _ in range(3):
        world.accepted()
    cut_off = [world.lease() for _ in range(3)]
    world.now += 600_000
    world.group_service.tick(world.now)
    assert [world.refused(group(lease)).code for lease in cut_off] == ["late"] * 3
    lease = world.lease()
    assert lease.expires - lease.sent == 10_000


def test_new_nodes_get_a_tenth_beside_known_ones_and_never_the_last_tenth(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=10)
    for _ in range(4):
        world.accepted(ALICE)
    given = [number for number in range(40) if isinstance(request_lease(world, f"new {number}"), Lease)]
    assert len(given) == 23, "of 26 groups all but a tenth of the whole of 30"
    assert [code_of(request_lease(world, "alice", ALICE)) for _ in range(4)] == ["", "", "", "no-room"]
    assert code_of(request_lease(world, "one more")) == "no-room"


@pytest.mark.parametrize(("newcomers", "most"), [(0.01, 25), (0.3, 17), (0.5, 15)])
def test_the_share_of_new_nodes_is_a_setting(tmp_path: Path, newcomers: float, most: int) -> None:
    world = World(tmp_path, batch_groups=10, newcomers=newcomers)
    for _ in range(4):
        world.accepted(ALICE)
    given = [number for number in range(40) if isinstance(request_lease(world, f"new {number}"), Lease)]
    assert len(given) == most, "of 26 groups all but that share of the whole of 30, or the share, if that is more"


def test_known_nodes_leave_new_ones_their_tenth_while_those_wait(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=2)
    for _ in range(4):
        world.accepted(ALICE)
    leases = [world.lease(ALICE), world.lease(ALICE)]
    assert code_of(request_lease(world, "new")) == "no-room"
    for lease in leases:
        world.submit(group(lease))
    world.decide_all()
    assert world.group_service.draw(world.now) is not None
    assert [code_of(request_lease(world, "alice", ALICE)) for _ in range(2)] == ["", "no-room"]
    assert code_of(request_lease(world, "new")) == "", "one group was left to it"


def test_one_connection_of_new_keys_holds_a_ninth_of_an_empty_room(tmp_path: Path) -> None:
    world = World(tmp_path, batch_groups=30)
    answers = [request_lease(world, "crowd", key("crowd", number)) for number in range(100)]
    assert sum(isinstance(one, Lease) for one in answers) == 10
    assert {code_of(one) for one in answers} == {"", "new-connection"}


def test_it_goes_round_by_subnet_where_more_new_nodes_wait_than_there_is_room_for(tmp_path: Path) -> None:
    """40 connections in one subnet get as many leases as 6 in another."""
    world = World(tmp_path, batch_groups=2)
    crowd = [(f"many {number}", "198.51.100.0/24") for number in range(40)]
    crowd += [(f"few {number}", "203.0.113.0/24") for number in range(6)]
    leases = [request_lease(world, f"first {number}") for number in range(6)]
    served: list[str] = []
    for _ in range(10):
        for connection, party in crowd:
            if isinstance(answer := request_lease(world, connection, party=party), Lease):
                served.append(party)
                leases.append(answer)
        oldest = leases.pop(0)
        world.submit(group(oldest), oldest.node)
        world.decide_all()
        world.group_service.draw(world.now)
    assert len(served) >= 8
    assert abs(served.count("198.51.100.0/24") - served.count("203.0.113.0/24")) <= 1, served


@pytest.mark.slow
def test_slow_nodes_share_a_tenth_of_the_room(tmp_path: Path) -> None:
    run = Fleet(World(tmp_path, batch_groups=10, least_ms=1_000, per_node=3), step_ms=20_000)
    for number in range(3):
        run.honest(key("node", number), 3.0)
    for number in range(8):
        run.honest(key("slow", number), 60.0)
    run.run(5 * MINUTE)
    query, open_counts = "SELECT coalesce(sum(groups), 0) FROM shares WHERE share = 'slow'", list[int]()
    for _ in range(20):
        run.run(5_000)
        open_counts.append(run.world.group_service.database.value(query))
    assert 3 <= max(open_counts) <= 7, "a tenth of 30 groups, up to a quarter of those that are free"
    assert run.asks["slow-share"] > 0


def test_a_repeated_lease_request_costs_a_search_and_counts_against_no_limit(tmp_path: Path) -> None:
    """Commit 439044d does so too."""
    drawn = itertools.count()
    world = World(tmp_path, per_node=1, entropy=lambda size: next(drawn).to_bytes(size, "big"))
    ask = world.ask()
    first = world.group_service.lease(ALICE, ask, world.now)
    before = next(drawn)
    for _ in range(100):
        assert world.group_service.lease(ALICE, ask, world.now) == first
    assert next(drawn) == before + 1, "nothing was made anew"
    assert world.refusal().code == "too-many-leases"


@pytest.mark.slow
def test_many_keys_of_one_subnet_do_not_lengthen_the_waits_of_others(tmp_path: Path) -> None:
    """On 439044d every node makes one request per second. With one queue the last of 1,000 would wait for 200 s."""
    world = World(tmp_path, batch_groups=1)
    for number in range(3):
        request_lease(world, f"first {number}")
    waits = [request_lease(world, f"crowd {number}", party="198.51.100.0/24") for number in range(1_000)]
    alone = request_lease(world, "alone")
    assert isinstance(waits[-1], Refusal)
    assert (waits[-1].retry_after, alone.retry_after) == (200_000, 400), "the others of its subnet count as one party"


@pytest.mark.parametrize(("chance", "given"), [(1.0, 0), (0.5, 4), (0.0, 8)])
def test_room_lent_to_new_keys_beyond_their_tenth_is_taken_from_known_ones_as_far_as_it_brings_groups(
    chance: float, given: int
) -> None:
    shares = RoomShares()
    known = Requester(ALICE, "known", Origin("a", "10.0.1.0/24"), 0, 0, 1.0, 100)
    room = Room(whole=20, left=0, new=10, slow=0, chance=chance)
    assert room.lent_in_vain(room.part(0.1)) == given
    answers = []
    for held in range(given + 1):
        answers.append(shares.denial_for(known, room._replace(left=-held), MINUTE))
    assert [answer is None for answer in answers] == [True] * given + [False]
    new = Requester(b"n" * 32, "new", Origin("n", "10.0.2.0/24"), 0, 0, 0.0, 1)
    assert shares.denial_for(new, room, MINUTE) is not None, "new keys get none of it"


@pytest.mark.parametrize(
    ("node", "buffered", "share"), [(ALICE, 0, 18), (BOB, 0, 10), (ALICE, 10, 9), (BOB, 10, 5), (BOB, 20, 1)]
)
def test_while_nodes_wait_each_has_its_share_by_rate_or_an_equal_one_of_what_is_not_buffered(
    node: bytes, buffered: int, share: int
) -> None:
    shares, room = RoomShares(), Room(whole=20, left=5, new=0, slow=0, buffered=buffered)
    rates = {ALICE: 0.9, BOB: 0.1}

    def holding(key: bytes, held: int) -> Requester:
        return Requester(key, "known", Origin(key.hex(), key.hex()), held, 0, rates[key], 100)

    for other in rates:
        assert shares.denial_for(holding(other, 0), room, MINUTE) is None
    shares.waits(holding(BOB, 0), 2 * MINUTE, MINUTE)
    assert shares.denial_for(holding(node, share - 1), room, MINUTE) is None
    assert shares.denial_for(holding(node, share), room, MINUTE) == Denial(
        "rate-share", {"held": share, "share": share}
    )
