"""Two daemons of one key: which one gets leases, for how long, and what each is told."""

import secrets
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.nodes.key_fence import FENCE_NOTICE_MS, FENCED_RETRY_MS, HOLDER_LIVE_MS, HOUR, KeyFence
from echo2.coordinator.nodes.sightings import Sightings
from echo2.coordinator.submissions.request_handler import RequestHandler
from echo2.p2p.discovery.peer_records import RecordIssuer
from echo2.p2p.envelope import seal
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import TaskReference
from echo2.protocol.leases import Lease, LeaseReport
from echo2.protocol.requests import Hello, Request, Response
from echo2.protocol.steps import StepRequest
from tests.support.group_world import ALICE, BOB, KEYS, RUN, T0, World, control_of, group, opened

ALICE_KEY = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
HELLO = Hello(
    protocols=(1, 1), software="echo2 0.1", name="alice", engine="transformers/float32/cpu", device="a CPU",
    tasks=[TaskReference(name="reverse", version=1)],
    record=RecordIssuer(ALICE_KEY, RUN).issue([f"/ip4/127.0.0.1/tcp/4001/p2p/{peer_id(ALICE)}"], T0),
)  # fmt: skip


class Daemon:
    """A daemon with Alice's key. `after`: what its home has of the daemons before it."""

    def __init__(self, place: "Place", after: tuple["Daemon", ...] = (), *, old: bool = False) -> None:
        """`old`: its program knows no instances."""
        self._place = place
        self.instance = None if old else secrets.token_bytes(16)
        self._after = [one.instance for one in after if one.instance is not None]

    def asks(self, method: str, body: bytes, **more: Any) -> Response:
        return self._place.answers(method, self.sealed(method, body, **more))

    def sealed(self, method: str, body: bytes, late: int = 0, **more: Any) -> bytes:
        """Return a request by a clock that is late by so many milliseconds."""
        request = Request(
            recipient=public_bytes(KEYS["channel"]), id=secrets.token_bytes(16), method=method,
            expires=self._place.world.now + 60_000 - late, body=body, instance=self.instance, **more,
        )  # fmt: skip
        return seal("request", RUN, encode(request), ALICE_KEY)

    def hello(self) -> bytes:
        return encode(msgspec.structs.replace(HELLO, after=self._after))

    def greets(self, **changes: Any) -> str:
        """Say hello; return what is told of another daemon."""
        answer = self.asks("hello", encode(msgspec.structs.replace(HELLO, after=self._after, **changes)))
        assert answer.body is not None, answer.refusal
        return answer.rival

    def leases(self) -> Lease | str:
        """Ask for a lease; return it, or the code of the refusal."""
        answer = self.asks("lease", encode(self._place.world.ask()))
        if answer.refusal is not None:
            return answer.refusal.code
        assert answer.body is not None
        return opened("lease", answer.body, Lease)

    def is_served(self) -> bool:
        return isinstance(self.leases(), Lease)


class Place:
    """A coordinator, and its restarts."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.control = control_of(world, RequestHandler)

    def answers(self, method: str, sealed: bytes) -> Response:
        return decode(self.control.answer(method, sealed, self.world.now), Response)

    def restarts(self, away: int = 0) -> None:
        self.world.reopen(away=away)
        self.control = control_of(self.world, RequestHandler)

    def passes(self, milliseconds: int) -> None:
        self.world.now += milliseconds
        while self.world.group_service.tick(self.world.now):
            pass


@pytest.fixture
def place(world: World) -> Place:
    return Place(world)


def test_the_first_daemon_of_a_key_gets_the_leases_and_both_are_told(place: Place) -> None:
    first, other = Daemon(place), Daemon(place)
    assert first.greets() == ""
    assert first.is_served()
    assert other.greets() == "works"
    answer = other.asks("lease", encode(place.world.ask()))
    assert (answer.refusal.code, answer.refusal.retry_after, answer.rival) == ("fenced", FENCED_RETRY_MS, "works")
    assert "keys rotate" in answer.refusal.sentence
    assert first.asks("lease", encode(place.world.ask())).rival == "waits", "the first is not told"
    place.passes(FENCE_NOTICE_MS)
    assert first.greets() == "", "the warning outlives its cause"


def test_the_owner_of_a_replaced_key_is_told_of_that_and_of_no_other_daemon(place: Place) -> None:
    """The thief's daemon worked with the key until it replaced it, and counts as live."""
    thief, owner = Daemon(place), Daemon(place)
    thief.greets()
    assert thief.is_served()
    assert owner.greets() == "works"
    place.world.group_service.accounts.rotate(ALICE, BOB, place.world.now)
    for method, body in (("hello", owner.hello()), ("lease", encode(place.world.ask()))):
        answer = owner.asks(method, body)
        assert (answer.refusal.code, answer.rival) == ("replaced", ""), method


def test_a_restart_whose_greeting_is_refused_is_told_of_no_other_daemon(place: Place) -> None:
    """Its owner chose an engine that the run does not admit: nobody else has his key."""
    first = Daemon(place)
    first.greets()
    assert first.is_served()
    again = Daemon(place, after=(first,))
    refused = msgspec.structs.replace(HELLO, after=[first.instance], engine="none/float16/cpu")
    answer = again.asks("hello", encode(refused))
    assert (answer.refusal.code, answer.rival) == ("engine", "")
    assert again.greets() == ""
    assert again.is_served()


def test_the_greeting_and_the_report_of_a_fenced_daemon_change_nothing(place: Place) -> None:
    first, other = Daemon(place), Daemon(place)
    first.greets(name="mine")
    lease = first.leases()
    assert isinstance(lease, Lease)
    other.greets(name="thief")
    report = LeaseReport(returned=[lease.id])
    assert other.asks("lease", encode(place.world.ask()), leases=report).refusal is not None
    step = StepRequest(lease=lease.id, sample=0, turn_number=0, tokens=[2])
    other.asks("step", encode(step), leases=report)
    assert place.world.group_service.leases.open_among(ALICE, [lease.id]) == [lease.id], "a lease was given back"
    assert [row.name for row in place.world.rows()] == ["mine"]


def test_a_restart_of_the_same_home_takes_over_at_once(place: Place) -> None:
    first = Daemon(place)
    first.greets()
    assert first.is_served()
    again = Daemon(place, after=(first,))
    assert again.greets() == ""
    assert again.is_served()
    assert first.leases() == "fenced"


def test_of_two_copies_of_a_home_one_wins_and_they_do_not_push_each_other_out_in_turn(place: Place) -> None:
    before = Daemon(place)
    before.greets()
    one, other = Daemon(place, after=(before,)), Daemon(place, after=(before,))
    assert (one.greets(), other.greets()) == ("", "works")
    for _ in range(5):
        other = Daemon(place, after=(before, other))  # its owner starts it again and again
        assert other.greets() == "works"
        assert one.greets() == "waits"
        assert one.is_served()
        place.passes(FENCED_RETRY_MS)


def test_a_daemon_that_is_silent_is_replaced_and_learns_it_when_it_comes_back(place: Place) -> None:
    laptop, desktop = Daemon(place), Daemon(place)
    laptop.greets()
    desktop.greets()
    place.passes(HOLDER_LIVE_MS - 1)
    assert desktop.leases() == "fenced"
    place.passes(2)
    assert desktop.leases() == "no-hello", "it takes the key without a greeting"
    assert desktop.greets() == ""
    assert desktop.is_served()
    assert laptop.greets() == "works"
    assert laptop.leases() == "fenced"


def test_a_daemon_in_a_long_group_is_live_until_its_lease_has_expired(place: Place) -> None:
    first, other = Daemon(place), Daemon(place)
    first.greets()
    lease = first.leases()
    assert isinstance(lease, Lease)
    place.world.group_service.database.do("UPDATE leases SET expires = ?", (place.world.now + 2 * HOLDER_LIVE_MS,))
    place.world.now += 2 * HOLDER_LIVE_MS - 1
    assert other.greets() == "works"
    place.passes(2)
    assert other.greets() == ""


def test_a_daemon_that_was_told_to_wait_is_live_for_as_long(place: Place) -> None:
    first, other = Daemon(place), Daemon(place)
    first.greets()
    fence = KeyFence(place.world.group_service.database, place.world.group_service.registry.sightings, 0)
    fence.on_message(ALICE, first.instance or b"", place.world.now, wait=600_000)
    place.passes(600_000 + HOLDER_LIVE_MS - 1)
    assert other.greets() == "works"
    place.passes(2)
    assert other.greets() == ""


def test_a_restart_of_the_coordinator_lets_no_other_daemon_in_between(place: Place) -> None:
    first, other = Daemon(place), Daemon(place)
    first.greets()
    other.greets()
    place.restarts(away=8 * 3_600_000)
    assert other.greets() == "works", "a thief needs only wait for a restart"
    assert first.is_served()
    place.restarts()
    place.passes(HOLDER_LIVE_MS + 1)
    assert other.greets() == "", "a home that is lost is replaced"


def test_the_group_of_a_daemon_that_was_replaced_is_taken(place: Place) -> None:
    first = Daemon(place)
    first.greets()
    lease = first.leases()
    assert isinstance(lease, Lease)
    Daemon(place, after=(first,)).greets()
    assert first.asks("submit", encode(group(lease))).body is not None
    (receipt,) = place.world.decide_all()
    assert receipt.verdict == "accepted"


def test_a_daemon_without_an_instance_is_one_more_and_an_update_takes_over_at_once(place: Place) -> None:
    old, new = Daemon(place, old=True), Daemon(place)
    assert old.greets() == ""
    assert Daemon(place, old=True).is_served(), "two of them cannot be told apart"
    assert new.greets() == ""
    assert new.is_served()
    assert old.greets() == "works"
    assert old.leases() == "fenced", "a thief leaves the instance out"


def test_a_hello_that_somebody_kept_fences_nobody(place: Place) -> None:
    first = Daemon(place)
    kept = first.sealed("hello", first.hello())
    first.greets()
    second = Daemon(place, after=(first,))
    second.greets()
    for _ in range(3):  # it sleeps, and the hello of its predecessor comes again and again
        place.passes(HOUR)
        assert place.answers("hello", kept).body is not None
    assert second.is_served()
    assert second.greets() == ""
    place.passes(HOLDER_LIVE_MS + 1)
    place.answers("hello", kept)
    assert Daemon(place).greets() == "", "nor does it keep a home live that is lost"


def test_a_daemon_whose_clock_is_late_by_hours_takes_over_from_the_one_before(place: Place) -> None:
    first = Daemon(place)
    first.greets()
    second = Daemon(place, after=(first,))
    assert place.answers("hello", second.sealed("hello", second.hello(), late=HOUR)).rival == ""
    assert second.is_served()


def test_a_clock_that_was_set_forward_does_not_fence_for_a_year(place: Place) -> None:
    first, other = Daemon(place), Daemon(place)
    first.greets()
    year = 365 * 86_400_000
    place.world.now += year
    first.greets()
    place.world.now -= year
    assert other.greets() == ""


def test_the_memory_is_that_of_the_nodes_seen(tmp_path: Path, world: World) -> None:
    sightings = Sightings(most_others=2)
    fence = KeyFence(world.group_service.database, sightings, world.now)
    for number in range(10):
        node = number.to_bytes(32, "big")
        sightings.meet(node, world.now, worked=False).instance = bytes([number]) * 16
        fence.on_message(node, bytes([number]) * 16, world.now)
        fence.on_refusal(node, world.now)
    assert len(sightings) == 2
