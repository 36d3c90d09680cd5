"""Deliveries are measured from acknowledgements: the pure core, and the service and requests around it."""

import sys
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.metrics.broadcast_stats import (
    LEAST_BYTES,
    MOST_TAKES,
    MOST_WITHOUT_WORK,
    VERSIONS,
    BroadcastStats,
)
from echo2.coordinator.metrics.views import BroadcastView
from echo2.coordinator.nodes.node_registry import SAVE_CONTACTS_MS
from echo2.p2p.identity import peer_id
from echo2.protocol.broadcast_messages import Acknowledgement, PayloadTransfer, TransferSource
from echo2.protocol.requests import Hello
from tests.support.group_world import ALICE, BOB, T0, World, group

MB = 1_000_000
HELLO = Hello(protocols=(1, 1), software="echo2 1", name="a", engine="e", device="d", tasks=[], record=b"")


def sender(peer: str, nbytes: int, began: int, ended: int) -> TransferSource:
    return TransferSource(peer=peer, nbytes=nbytes, began=began, ended=ended)


def acknowledgement(
    version: int = 1, *, heard: int = 0, complete: int = 0, applied: int = 0, by: list[TransferSource] | None = None,
    **changes: int,
) -> Acknowledgement:  # fmt: skip
    """Return an acknowledgement; times in ms ago."""
    taken = [PayloadTransfer(payload_hash=bytes(32), took=heard - complete, senders=by)] if by else []
    fields = {"era": 1, "version": version, "heard": heard, "complete": complete, "applied": applied} | changes
    return Acknowledgement(**fields, taken=taken)


def told(*acknowledgements: tuple[str, Acknowledgement, int]) -> BroadcastStats:
    """Return the figures of version 1, announced at T0, after acknowledgements (node, message, milliseconds later)."""
    broadcasts = BroadcastStats()
    broadcasts.on_announcement(1, 1, T0)
    for node, message, later in acknowledgements:
        broadcasts.on_acknowledgement(node, message, T0 + later, here_since=T0 - 1, admitted=True)
    return broadcasts


def test_times_are_those_of_arrival_less_the_reported_elapsed_time() -> None:
    message = acknowledgement(heard=1900, complete=700, applied=100, by=[sender("source", 5, 1800, 700)])
    view = told(("a", message, 2000)).view("source")
    (take,) = view.takes
    assert (take.heard, take.complete, take.applied) == (0.1, 1.3, 1.9)
    assert [(feed.peer, feed.nbytes, feed.began, feed.ended) for feed in take.feeds] == [("source", 5, 0.2, 1.3)]
    assert (view.version, view.median, view.applied, view.samples) == (1, 1.3, 1.9, 1)


def test_a_time_before_the_announcement_is_moved_to_it() -> None:
    (take,) = told(("a", acknowledgement(heard=1 << 52, complete=1 << 52), 2000)).view("s").takes
    assert (take.heard, take.complete, take.applied) == (0.0, 0.0, 2.0)


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=40))
def test_median_quantiles_and_slowest_are_those_of_the_nodes(times: list[int]) -> None:
    view = told(*[(f"n{number}", acknowledgement(), time) for number, time in enumerate(times)]).view("s")
    ordered = sorted(time / 1000 for time in times)
    assert view.slowest == ordered[-1]
    assert None not in (view.median, view.p90, view.p95)
    assert ordered[0] <= view.median <= view.p90 <= view.p95 <= view.slowest  # type: ignore[operator]
    assert sum(time <= view.p90 for time in ordered) >= 0.9 * len(ordered)  # type: ignore[operator]
    assert view.samples == len(times)


def test_the_first_acknowledgement_of_a_node_counts() -> None:
    view = told(("a", acknowledgement(), 500), ("a", acknowledgement(), 9000)).view("s")
    assert (view.slowest, view.samples) == (0.5, 1)


def test_a_head_sent_again_does_not_move_the_announcement() -> None:
    broadcasts = told()
    broadcasts.on_announcement(1, 1, T0 + 60_000)
    broadcasts.on_acknowledgement("a", acknowledgement(), T0 + 61_000, here_since=T0, admitted=True)
    assert broadcasts.view("s").slowest == 61.0


UNCOUNTED: dict[str, tuple[dict[str, object], bool]] = {
    "a node that joined later": ({"here_since": T0 + 1}, False),
    "a node that never said hello": ({"here_since": None}, False),
    "a version of another era": ({"message": acknowledgement(era=2)}, False),
    "a version that does not exist": ({"message": acknowledgement(2)}, False),
    "a node of which no work was accepted, which is shown": ({"admitted": False}, True),
}


@pytest.mark.parametrize("who", UNCOUNTED)
def test_an_acknowledgement_without_a_measurement_is_not_counted(who: str) -> None:
    change, shown = UNCOUNTED[who]
    facts = {"node": "b", "message": acknowledgement(), "now": T0 + 90_000, "here_since": T0, "admitted": True} | change
    broadcasts = told(("a", acknowledgement(), 500))
    broadcasts.on_acknowledgement(**facts)  # type: ignore[arg-type]
    view = broadcasts.view("s")
    assert (view.slowest, view.samples, broadcasts.reach()) == (0.5, 1, 0.5)
    assert [take.node for take in view.takes] == (["a", "b"] if shown else ["a"])


def test_any_number_of_unknown_nodes_takes_bounded_memory_and_excludes_no_known_one() -> None:
    broadcasts = told()
    for number in range(MOST_WITHOUT_WORK + 50):
        broadcasts.on_acknowledgement(f"new {number}", acknowledgement(), T0 + 1, here_since=T0, admitted=False)
    broadcasts.on_acknowledgement("honest", acknowledgement(), T0 + 700, here_since=T0, admitted=True)
    view = broadcasts.view("s")
    assert (view.samples, view.slowest) == (1, 0.7)
    assert "honest" in {take.node for take in view.takes}
    assert len(view.takes) == MOST_TAKES
    assert view.unshown == MOST_WITHOUT_WORK + 1 - MOST_TAKES


def test_only_the_last_versions_are_kept() -> None:
    broadcasts = BroadcastStats()
    for version in range(30):
        broadcasts.on_announcement(1, version, T0 + 1000 * version)
        broadcasts.on_acknowledgement(
            "a", acknowledgement(version), T0 + 1000 * version + version, here_since=T0, admitted=True
        )
    view = broadcasts.view("s")
    assert (view.samples, view.version, view.slowest) == (VERSIONS, 29, 0.029)
    broadcasts.on_acknowledgement("b", acknowledgement(29 - VERSIONS), T0 + 99_000, here_since=T0, admitted=True)
    assert broadcasts.view("s") == view


def test_the_view_shows_the_newest_acknowledged_version() -> None:
    broadcasts = told(("a", acknowledgement(), 500))
    broadcasts.on_announcement(1, 2, T0 + 5000)
    assert broadcasts.view("s").version == 1
    broadcasts.on_acknowledgement("b", acknowledgement(2), T0 + 5100, here_since=T0, admitted=True)
    assert (broadcasts.view("s").version, [take.node for take in broadcasts.view("s").takes]) == (2, ["b"])


def test_without_measurements_the_figures_are_none_and_not_zero() -> None:
    assert told().view("s") == BroadcastView(source="s")
    assert told().reach() is None
    assert told().uplinks() == {}


def test_several_payloads_of_a_peer_are_one_transfer_and_no_node_sends_to_itself() -> None:
    message = Acknowledgement(
        era=1, version=1, heard=900, complete=100, applied=0,
        taken=[
            PayloadTransfer(
                payload_hash=bytes(32), took=400, senders=[sender("s", 5, 900, 500), sender("a", 9, 900, 1)]
            ),
            PayloadTransfer(payload_hash=b"1" * 32, took=400, senders=[sender("idle", 0, 900, 1)]),
            PayloadTransfer(payload_hash=b"2" * 32, took=400, senders=[sender("s", 7, 500, 100)]),
        ],
    )  # fmt: skip
    (take,) = told(("a", message, 1000)).view("s").takes
    assert [(feed.peer, feed.nbytes, feed.began, feed.ended) for feed in take.feeds] == [("s", 12, 0.1, 0.9)]


def test_an_uplink_is_the_total_rate_of_simultaneous_transfers() -> None:
    # One after the other at 4 MB/s, then four at once at 1 MB/s each: the same uplink.
    alone = [(f"n{i}", acknowledgement(by=[sender("u", 4 * MB, 1000, 0)]), 1000 * (i + 1)) for i in range(4)]
    together = [(f"n{i}", acknowledgement(by=[sender("u", 4 * MB, 4000, 0)]), 4000) for i in range(4)]
    assert told(*alone).uplinks()["u"] == pytest.approx(4 * MB, rel=0.35)
    assert told(*together).uplinks()["u"] == pytest.approx(4 * MB)


def test_the_cost_of_estimating_a_stars_uplink_grows_linearly() -> None:
    """One peer sends to all nodes at the same time. On 439044d twice the nodes made four times the calls."""

    def calls(nodes: int) -> int:
        broadcasts = told(
            *[(f"n{n}", acknowledgement(complete=n, by=[sender("u", MB, 1000 + n, n)]), 1000) for n in range(nodes)]
        )
        counted = 0

        def count(frame: object, event: str, what: object) -> None:
            nonlocal counted
            counted += event == "call"

        sys.setprofile(count)
        try:
            broadcasts.uplinks()
        finally:
            sys.setprofile(None)
        return counted

    assert calls(400) <= 3 * calls(200)


def test_a_few_bytes_are_no_sample_of_an_uplink() -> None:
    assert told(("a", acknowledgement(by=[sender("u", LEAST_BYTES - 1, 10, 0)]), 50)).uplinks() == {}
    assert told(("a", acknowledgement(by=[sender("u", MB, 10, 10)]), 50)).uplinks() == {}


@pytest.mark.parametrize("claimed", [LEAST_BYTES, 10**15], ids=["next to nothing", "a petabyte"])
def test_one_false_report_among_three_hardly_moves_an_uplink(claimed: int) -> None:
    honest = [(f"n{i}", acknowledgement(by=[sender("u", MB, 1000, 0)]), 1000) for i in range(3)]
    lie = ("liar", acknowledgement(by=[sender("u", claimed, 1000, 0)]), 1000)
    assert told(*honest).uplinks()["u"] == pytest.approx(3 * MB)
    assert told(*honest, lie).uplinks()["u"] == pytest.approx(4 * MB)  # one more mouth, whatever it says it ate


def test_a_false_report_changes_the_figures_of_no_other_node() -> None:
    honest = [(f"n{i}", acknowledgement(complete=100, by=[sender("s", MB, 900, 100)]), 1000 + i) for i in range(9)]
    lies: list[Callable[[], Acknowledgement]] = [
        lambda: acknowledgement(heard=1 << 52, complete=1 << 52, applied=1 << 52),
        lambda: acknowledgement(by=[sender("n1", 1 << 50, 1 << 52, 0)]),
        acknowledgement,
    ]
    before = told(*honest)
    for lie in lies:
        after = told(*honest, ("liar", lie(), 86_400_000))
        rest = [take for take in after.view("s").takes if take.node != "liar"]
        assert rest == before.view("s").takes
        assert after.view("s").median == pytest.approx(before.view("s").median, abs=0.0011)
        assert after.reach() == pytest.approx(before.reach(), abs=0.0011)


# --- the capacity model ----------------------------------------------------------------------------------------------


def test_the_capacity_model_uses_the_acknowledged_delivery_times(world: World) -> None:
    group_service = world.group_service
    for node in (ALICE, BOB):
        group_service.registry.register(node, HELLO, None, world.now - 1000)
    lease = world.lease(ALICE)
    world.now += 500
    world.submit(group(lease))
    world.decide_all()
    alone = world.capacity(1.0).turnaround_seconds
    group_service.broadcasts.on_announcement(1, 9, world.now)
    group_service.acknowledge(BOB, acknowledgement(9), world.now + 60_000)  # no work of BOB was ever accepted
    assert world.capacity(1.0).turnaround_seconds == alone
    group_service.acknowledge(ALICE, acknowledgement(9), world.now + 2_500)
    assert alone is not None
    assert world.capacity(1.0).turnaround_seconds == pytest.approx(alone + 2.5)
    assert [take.node for take in group_service.broadcasts.view("s").takes] == [peer_id(ALICE), peer_id(BOB)]


def test_an_acknowledgement_counts_as_contact(world: World) -> None:
    world.group_service.registry.register(ALICE, HELLO, None, T0)
    world.group_service.acknowledge(ALICE, acknowledgement(), T0 + 5000)
    world.group_service.registry.save(T0 + SAVE_CONTACTS_MS)
    assert world.rows()[0].last_seen == T0 + 5000


def test_the_view_has_at_most_the_nodes_that_the_page_shows() -> None:
    acks = [(f"n{i}", acknowledgement(by=[sender(f"p{j}", 5, 3, 1) for j in range(32)]), 100 + i) for i in range(500)]
    view = told(*acks).view("s")
    assert len(view.takes) == MOST_TAKES
    assert view.takes[-1].complete < 0.15
    assert len(msgspec.json.encode(view)) < 200_000
