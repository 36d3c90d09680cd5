"""Strikes: fabricated groups suspend a key soon, bad luck never does, and no other key is affected."""

import secrets
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.accounts.strikes import AT_ONCE, STRIKE_CODES, STRIKE_WINDOW_GROUPS, SUSPENSION_TERMS_MS
from echo2.coordinator.submissions.request_handler import RequestHandler
from echo2.coordinator.verification.verification import Verdict
from echo2.engines.engine import SampleScore
from echo2.ledger.ledger_facts import Suspended
from echo2.ledger.standing import FOREVER_MS
from echo2.p2p.discovery.peer_records import RecordIssuer
from echo2.p2p.envelope import seal
from echo2.p2p.identity import public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import TaskReference
from echo2.protocol.leases import Lease
from echo2.protocol.refusals import REASONS
from echo2.protocol.requests import Hello, Refusal, Request, Response
from tests.support.group_world import (
    ALICE,
    BOB,
    KEYS,
    RUN,
    SPEC,
    World,
    control_of,
    group,
    honest_scores,
    opened,
    rollout,
)
from tests.support.sqlite_cost import written_rows

CHANNEL = public_bytes(KEYS["channel"])


class Node:
    """A key that sends requests to the coordinator, as the network delivers them."""

    def __init__(self, world: World, seed: int, control: RequestHandler | None = None) -> None:
        self.world = world
        self.key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        self.control = control or control_of(world, RequestHandler)
        tasks = [TaskReference(name="reverse", version=1)]
        record = RecordIssuer(self.key, RUN).issue([], world.now)
        hello = Hello(
            protocols=(1, 1), software="a test", name="node", engine="transformers/float32/cpu", device="a CPU",
            tasks=tasks, record=record,
        )  # fmt: skip
        assert self.ask("hello", encode(hello)).refusal is None

    def ask(self, method: str, body: bytes) -> Response:
        now = self.world.now
        request = Request(method=method, recipient=CHANNEL, id=secrets.token_bytes(16), expires=now + 60_000, body=body)
        sealed = seal("request", RUN, encode(request), self.key)
        return decode(self.control.answer(method, sealed, now), Response)

    def on_first_lease(self) -> Lease | Refusal:
        answer = self.ask("lease", encode(self.world.ask()))
        if answer.body is None:
            assert answer.refusal is not None
            return answer.refusal
        return opened("lease", answer.body, Lease)

    def hands_in(self, make: Callable[[Lease], bytes], most: int) -> tuple[int, Refusal | None]:
        """Take leases and submit groups, `most` times; return how many were received, and the refusal that ended it."""
        for number in range(most):
            lease = self.on_first_lease()
            if isinstance(lease, Refusal):
                return number, lease
            answer = self.ask("submit", make(lease))
            if answer.refusal is not None and answer.refusal.code in ("suspended", "banned"):
                return number, answer.refusal
        return most, None


MADE_UP: dict[str, Callable[[Lease], bytes]] = {
    "a group without rollouts": lambda lease: encode(group(lease, rollouts=[])),
    "a group of another version": lambda lease: encode(group(lease, version=lease.version + 1)),
    "tokens that are none": lambda lease: encode(
        group(lease, rollouts=[rollout(lease, "000", tokens=[SPEC.vocabulary] * 4)] * 2)
    ),
    "bytes that are no group": lambda lease: b"\xc1" + lease.id,
}


@pytest.mark.parametrize("make", MADE_UP.values(), ids=MADE_UP.keys())
def test_one_key_that_makes_groups_up_is_suspended_after_three(world: World, make: Callable[[Lease], bytes]) -> None:
    """On 439044d all 50 of 50 are served."""
    looked_at, refusal = Node(world, 1).hands_in(make, 50)
    assert looked_at <= 3
    assert refusal.code == "suspended"
    assert refusal.retry_after == SUSPENSION_TERMS_MS[0]
    assert "is suspended until 2023-11-14 23:13 UTC" in refusal.sentence


def test_the_requests_of_a_suspended_key_write_nothing_and_are_not_decoded(world: World) -> None:
    node = Node(world, 1)
    node.hands_in(MADE_UP["a group without rollouts"], 50)
    world.group_service.database.do("DELETE FROM strikes")
    before = written_rows(world.group_service.database)
    for method in ("hello", "lease", "submit", "verdicts", "acknowledge"):
        answer = node.ask(method, b"\xc1 nothing that decodes")
        assert answer.refusal.code == "suspended"
    assert written_rows(world.group_service.database) == before


def test_a_key_without_a_lease_leaves_nothing_behind(world: World) -> None:
    """On a924efc three submissions of a few bytes under a fresh key add an entry to the ledger, and one is a strike for
    thirty days: 3,000 submissions were 1,000 entries and 1,000 accounts."""
    theirs = world.lease(BOB)
    node = Node(world, 3)
    before = written_rows(world.group_service.database)
    for number in range(10):
        for body in (b"%d" % number, encode(group(theirs))):
            answer = node.ask("submit", body)
            assert answer.refusal.code in ("malformed", "not-owner")
    assert written_rows(world.group_service.database) == before
    assert world.group_service.database.value("SELECT count(*) FROM entries") == 0
    assert isinstance(node.on_first_lease(), Lease)


def test_a_suspension_ends_by_itself_and_the_next_one_lasts_longer(world: World) -> None:
    node = Node(world, 1)
    waits = []
    for _ in range(3):
        _, refusal = node.hands_in(MADE_UP["a group without rollouts"], 50)
        assert refusal.retry_after is not None
        waits.append(refusal.retry_after)
        world.now += refusal.retry_after
    assert waits == list(SUSPENSION_TERMS_MS)


def test_the_strikes_of_one_key_affect_no_other_key(world: World) -> None:
    bad, good = Node(world, 1), Node(world, 2)
    bad.hands_in(MADE_UP["a group without rollouts"], 50)
    assert isinstance(good.on_first_lease(), Lease)


def test_the_ledger_says_why_and_until_when(world: World) -> None:
    lies = [group(world.lease(), rollouts=[]) for _ in range(3)]
    for lie in lies:
        world.refused(lie)
    (entry,) = world.group_service.accounts.entries(ALICE)
    fact = msgspec.msgpack.decode(entry.facts, type=Suspended)
    assert (fact.code, fact.since, fact.until) == ("incomplete", world.now, world.now + SUSPENSION_TERMS_MS[0])
    assert fact.evidence == world.group_service.database.value("SELECT hash FROM submissions ORDER BY at DESC LIMIT 1")
    assert world.group_service.strikes.of(ALICE) == 0


def judged(world: World, code: str, node: bytes = ALICE) -> None:
    """Let a key submit a group that is decided by `code`; "ok": accepted."""
    world.submit(group(world.lease(node)), node)
    (waiting,) = world.group_service.list_undecided()
    if code == "ok":
        world.decide(waiting, honest_scores(waiting.submission))
    else:
        world.group_service.decide(waiting, Verdict(code, "said in a test", None), world.now)
    decided = [lease for (lease,) in world.group_service.database.all("SELECT lease FROM verdicts")]
    world.group_service.buffer.rebuild(decided, 0, 1)


@pytest.mark.slow
def test_a_rare_wrong_token_suspends_no_key(world: World) -> None:
    """Faulty memory: two wrong tokens among a hundred groups."""
    for number in range(2 * STRIKE_WINDOW_GROUPS):
        judged(world, "seeded-choice" if number % 50 == 0 else "ok")
        assert world.group_service.accounts.of(ALICE, world.now).suspended_until is None
    assert world.group_service.strikes.of(ALICE) == 2
    judged(world, "ok")
    assert world.group_service.strikes.of(ALICE) == 1, "the older one is a hundred groups back"


def test_three_wrong_tokens_in_a_hundred_groups_suspend(world: World) -> None:
    for code in ("seeded-choice", "ok", "drift", "ok", "seeded-choice"):
        assert world.group_service.accounts.of(ALICE, world.now).suspended_until is None
        judged(world, code)
    assert world.group_service.accounts.of(ALICE, world.now).code == "seeded-choice"


def test_a_group_of_which_nothing_was_generated_suspends_at_once(world: World) -> None:
    world.submit(group(world.lease()))
    (waiting,) = world.group_service.list_undecided()
    world.group_service.decide(waiting, Verdict("not-generated", "made up", None), world.now)
    assert world.group_service.accounts.of(ALICE, world.now) == ("new", FOREVER_MS, "not-generated", "")
    refusal = Node(world, 2).ask("lease", encode(world.ask())).refusal
    assert refusal is None
    refused = control_of(world, RequestHandler)
    key = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
    request = Request(
        method="lease", recipient=CHANNEL, id=secrets.token_bytes(16), expires=world.now + 60_000, body=b"",
    )  # fmt: skip
    told = decode(refused.answer("lease", seal("request", RUN, encode(request), key), world.now), Response).refusal
    assert (told.code, told.retry_after) == ("suspended-by-proof", 3_600_000)
    world.group_service.accounts.remark(ALICE, "node.unbanned", "its engine was mended", world.now)
    assert world.group_service.accounts.of(ALICE, world.now).suspended_until is None


def test_faults_detected_during_a_suspension_do_not_extend_it(world: World) -> None:
    leases = [world.lease() for _ in range(3)]
    for lease in leases:
        world.submit(group(lease))
    for waiting in world.group_service.list_undecided():
        world.group_service.decide(waiting, Verdict("not-generated", "made up", None), world.now)
    assert len(world.group_service.accounts.entries(ALICE)) == 1


LUCK = ("late", "unknown-lease", "not-scorable", "task-score", "ok", "no-prompt", "busy", "too-many-leases")


def test_bad_luck_and_the_operators_faults_are_no_strikes(world: World) -> None:
    assert not (STRIKE_CODES | AT_ONCE) & set(LUCK)
    assert {REASONS[code].fault for code in STRIKE_CODES} == {"node"}
    late = [world.lease(BOB) for _ in range(4)]
    world.now = late[0].expires + 1
    for lease in late:
        assert world.refused(group(lease), BOB).code == "late"
    assert world.group_service.strikes.of(BOB) == 0
    for _ in range(4):
        lease = world.lease()
        world.submit(group(lease))
        (waiting,) = world.group_service.list_undecided()
        scores = [SampleScore(logprobs=[float("nan")] * 4, margins=[0.0] * 4)] * 2
        assert world.decide(waiting, scores).code == "not-scorable"
    assert world.group_service.strikes.of(ALICE) == 0


def test_a_submission_for_another_keys_lease_is_a_strike_for_its_sender_not_for_the_owner(world: World) -> None:
    owner, thief = Node(world, 1), Node(world, 2)
    lease = owner.on_first_lease()
    assert isinstance(lease, Lease)
    assert isinstance(thief.on_first_lease(), Lease)  # or it would have nothing to lose
    for _ in range(3):
        answer = thief.ask("submit", encode(group(lease)))
        assert answer.refusal is not None
    refusal: Any = thief.ask("submit", encode(group(lease))).refusal
    assert refusal.code == "suspended"
    assert owner.ask("submit", encode(group(lease))).body
