"""Sealed requests: signer, recipient, expiry, repeats."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.metrics import run_metrics
from echo2.coordinator.submissions.request_handler import RequestHandler
from echo2.coordinator.submissions.request_priority import BURST_REQUESTS, PER_ITERATION
from echo2.coordinator.submissions.response_log import MOST_ANSWERS, MOST_EXPIRY_SKEW_MS, ResponseLog
from echo2.coordinator.verification.verification import submission_limit
from echo2.engines.engine import SampleScore
from echo2.ledger.standing import FOREVER_MS
from echo2.p2p.discovery.peer_records import RECORD_LIFE_MS, RecordIssuer
from echo2.p2p.envelope import seal
from echo2.p2p.handlers import Handlers
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.limits.origin import Origin
from echo2.p2p.wire_types import decode, encode
from echo2.protocol import numbers
from echo2.protocol.appeals import AppealRequest, AppealResponse
from echo2.protocol.authority import TaskReference
from echo2.protocol.broadcast_messages import Acknowledgement, PayloadTransfer, TransferSource
from echo2.protocol.leases import Lease, LeaseReport, VerdictsRequest, VerdictsResponse
from echo2.protocol.methods import SEALED
from echo2.protocol.requests import Hello, Refusal, Request, Response, Welcome
from echo2.protocol.steps import StepRequest
from echo2.protocol.task_kinds import SERVED_KIND
from tests.support.group_world import (
    ALICE,
    EOS,
    KEYS,
    RUN,
    SPEC,
    T0,
    World,
    control_of,
    group,
    honest_scores,
    opened,
)  # fmt: skip

ALICE_KEY = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
BOB_KEY = Ed25519PrivateKey.from_private_bytes(bytes([2]) * 32)
BOB = peer_id(public_bytes(BOB_KEY))
COORDINATOR = public_bytes(KEYS["channel"])
HELLO = Hello(
    protocols=(1, 1),
    software="echo2 0.1",
    name="alice",
    engine="transformers/float32/cpu",
    device="a CPU",
    tasks=[TaskReference(name="reverse", version=1)],
    record=RecordIssuer(ALICE_KEY, RUN).issue([f"/ip4/127.0.0.1/tcp/4001/p2p/{peer_id(ALICE)}"], T0),
)


class Desk:
    """A node that sends sealed requests."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.control = control_of(world, RequestHandler)

    def request(self, method: str, body: bytes, **changes: Any) -> bytes:
        fields = {"recipient": COORDINATOR, "id": secrets.token_bytes(16), "expires": self.world.now + 60_000}
        message = Request(**({"method": method, "body": body} | fields | changes))
        return seal("request", RUN, encode(message), ALICE_KEY)

    def ask(self, method: str, body: bytes, **changes: Any) -> Response:
        return self.send(method, self.request(method, body, **changes))

    def send(self, method: str, data: bytes) -> Response:
        answer = decode(self.control.answer(method, data, self.world.now), Response)
        assert (answer.body is None) != (answer.refusal is None)
        return answer


@pytest.fixture
def desk(world: World) -> Desk:
    return Desk(world)


@pytest.fixture
def greeted(desk: Desk) -> Desk:
    """Return a handler to which Alice has said hello."""
    desk.ask("hello", encode(HELLO))
    return desk


def test_a_request_to_a_former_key_gets_the_roots_for_a_day_and_a_hello_is_always_answered(greeted: Desk) -> None:
    control, former, now = greeted.control, b"f" * 32, greeted.world.now
    ask = encode(greeted.world.ask())
    assert refusal(greeted.ask("lease", ask, recipient=former)).roots == []
    control.former, control.told = frozenset({former}), now + 1
    told = refusal(greeted.ask("lease", ask, recipient=former))
    assert (told.code, told.roots, told.retry_after) == ("wrong-recipient", [b"root"], None)
    assert refusal(greeted.ask("lease", ask, recipient=b"x" * 32)).roots == []
    control.told = now
    assert refusal(greeted.ask("lease", ask, recipient=former)).roots == []
    assert body(greeted.ask("hello", encode(HELLO), recipient=former), Welcome).roots == [b"root"]
    assert refusal(greeted.ask("hello", encode(HELLO), recipient=b"x" * 32)).code == "wrong-recipient"


def body(answer: Response, type_: type[Any]) -> Any:
    assert answer.body is not None, answer.refusal
    return decode(answer.body, type_)


def refusal(answer: Response) -> Refusal:
    assert answer.refusal is not None
    return answer.refusal


def test_a_node_says_hello_takes_a_lease_submits_and_gets_the_verdict(desk: Desk) -> None:
    welcome = body(desk.ask("hello", encode(HELLO)), Welcome)
    assert (welcome.roots, welcome.runspec, welcome.head, welcome.now) == ([b"root"], b"runspec", None, desk.world.now)
    answer = desk.ask("lease", encode(desk.world.ask()))
    assert answer.body is not None
    lease = opened("lease", answer.body, Lease)
    assert desk.ask("submit", encode(group(lease))).body
    desk.world.decide_all()
    told = desk.ask("verdicts", b"", verdicts=VerdictsRequest(leases=[lease.id]))
    assert told.body == b""
    assert told.verdicts.receipts[0] is not None
    (row,) = desk.world.rows()
    assert (row.name, row.version, row.accepted, row.weight, row.points) == ("alice", 0, 1, 140, 140)
    assert (row.rollouts, row.tokens, row.connected) == (2, 18, False)


def test_a_node_that_never_said_hello_gets_no_lease_and_the_same_request_does_once_it_has(desk: Desk) -> None:
    asked = desk.request("lease", encode(desk.world.ask()))
    answer = desk.send("lease", asked)
    assert answer.refusal is not None, "a lease was given to a node of which nothing is known"
    assert (answer.refusal.code, answer.refusal.retry_after) == ("no-hello", None)
    desk.world.group_service.accounts.remark(ALICE, "node.banned", "by mistake", desk.world.now)
    desk.world.group_service.accounts.remark(ALICE, "node.unbanned", "it was one", desk.world.now)
    assert refusal(desk.send("lease", asked)).code == "no-hello"
    body(desk.ask("hello", encode(HELLO)), Welcome)
    assert desk.send("lease", asked).body is not None


def test_the_same_request_gets_the_same_answer_and_nothing_happens_twice(greeted: Desk) -> None:
    sent = greeted.request("lease", encode(greeted.world.ask()))
    assert greeted.send("lease", sent) == greeted.send("lease", sent)
    assert run_metrics.counts(greeted.world.group_service.database, greeted.world.now).running == 1


def test_another_request_under_a_known_id_is_refused(greeted: Desk) -> None:
    greeted.ask("lease", encode(greeted.world.ask()), id=b"i" * 16)
    assert refusal(greeted.ask("lease", encode(greeted.world.ask()), id=b"i" * 16)).code == "id-reused"


def bent(desk: Desk, how: str) -> tuple[str, bytes]:
    """Return (method, bytes) of a request with one fault."""
    asked = encode(desk.world.ask())
    good = Request(recipient=COORDINATOR, id=bytes(16), method="lease", expires=desk.world.now, body=asked)
    other = Ed25519PrivateKey.from_private_bytes(bytes([9]) * 32)
    request = {
        "no bytes": b"",
        "not sealed": encode(good),
        "sealed, but no request": seal("request", RUN, b"\xc0", ALICE_KEY),
        "another kind of document": seal("lease", RUN, encode(good), ALICE_KEY),
        "another run": seal("request", bytes(32), encode(good), ALICE_KEY),
        "two signatures": seal("request", RUN, encode(good), ALICE_KEY, other),
        "no signature": seal("request", RUN, encode(good)),
        "a bent signature": seal("request", RUN, encode(good), ALICE_KEY)[:-1] + b"\x00",
        "another coordinator": desk.request("lease", asked, recipient=bytes(32)),
        "another method": desk.request("submit", asked),
        "long expired": desk.request("lease", asked, expires=desk.world.now - MOST_EXPIRY_SKEW_MS - 1),
        "valid for too long": desk.request("lease", asked, expires=desk.world.now + MOST_EXPIRY_SKEW_MS + 1),
        "a body that is none": desk.request("lease", b"\xc1"),
    }
    return "lease", request[how]


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("no bytes", "malformed"),
        ("not sealed", "malformed"),
        ("sealed, but no request", "malformed"),
        ("another kind of document", "bad-signature"),
        ("another run", "bad-signature"),
        ("two signatures", "bad-signature"),
        ("no signature", "bad-signature"),
        ("a bent signature", "bad-signature"),
        ("another coordinator", "wrong-recipient"),
        ("another method", "wrong-method"),
        ("long expired", "clock"),
        ("valid for too long", "clock"),
        ("a body that is none", "malformed"),
    ],
)
def test_a_wrong_request_changes_nothing(greeted: Desk, how: str, code: str) -> None:
    method, data = bent(greeted, how)
    assert refusal(greeted.send(method, data)).code == code
    assert run_metrics.counts(greeted.world.group_service.database, greeted.world.now).running == 0


@pytest.mark.parametrize("peer", ["<b>source</b>", "a\u202eb", "12D3KooW", BOB + "1", " " + BOB])
def test_an_acknowledgement_names_senders_by_peer_ids_alone(greeted: Desk, peer: str) -> None:
    def told(sender: str) -> Response:
        source = TransferSource(peer=sender, nbytes=5, began=2, ended=1)
        taken = [PayloadTransfer(payload_hash=bytes(32), took=5, senders=[source])]
        message = Acknowledgement(era=1, version=0, heard=3, complete=2, applied=1, taken=taken)
        return greeted.ask("acknowledge", encode(message))

    assert refusal(told(peer)).code == "malformed"
    for known in (BOB, "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"):
        assert told(known).refusal is None


def test_a_name_that_is_shown_otherwise_is_told(desk: Desk) -> None:
    answer = desk.ask("hello", encode(msgspec.structs.replace(HELLO, name="the coordinator\n")))
    assert body(answer, Welcome).shown == f"the coordinator? ({peer_id(ALICE)[-8:]})"
    assert body(desk.ask("hello", encode(HELLO)), Welcome).shown == ""


def test_a_suspended_node_may_appeal_and_a_banned_one_may_not(greeted: Desk) -> None:
    world, accounts = greeted.world, greeted.world.group_service.accounts
    world.accepted()
    lease = world.lease()
    world.submit(group(lease))
    (waiting,) = world.group_service.list_undecided()
    scores = [SampleScore(logprobs=one.logprobs, margins=[0.01] * 4) for one in honest_scores(waiting.submission)]
    world.decide(waiting, scores)
    accounts.suspend(ALICE, "not-generated", bytes(32), world.now, FOREVER_MS)
    assert refusal(greeted.ask("lease", encode(world.ask()))).code == "suspended-by-proof"
    basis = body(greeted.ask("appeal", encode(AppealRequest(lease=lease.id))), AppealResponse)
    assert (basis.code, basis.state, basis.stored, basis.calibration) == ("seeded-choice", "none", "group", None)
    assert "better by 0.01 nats" in basis.statistic
    assert "0.0005" in basis.threshold
    for _ in range(2):
        basis = body(greeted.ask("appeal", encode(AppealRequest(lease=lease.id, ask=True))), AppealResponse)
        assert basis.state == "waiting"
    assert body(greeted.ask("hello", encode(HELLO)), Welcome)
    assert refusal(greeted.ask("appeal", encode(AppealRequest(lease=bytes(16))))).code == "unknown-lease"
    theirs = world.lease(public_bytes(BOB_KEY))
    assert refusal(greeted.ask("appeal", encode(AppealRequest(lease=theirs.id, ask=True)))).code == "not-owner"
    accounts.remark(ALICE, "node.banned", "spam", world.now)
    assert refusal(greeted.ask("appeal", encode(AppealRequest(lease=lease.id)))).code == "banned"


def test_a_clock_that_is_minutes_off_does_no_harm_and_hello_puts_it_right(greeted: Desk) -> None:
    for off in (-MOST_EXPIRY_SKEW_MS, MOST_EXPIRY_SKEW_MS):
        assert greeted.ask("lease", encode(greeted.world.ask()), expires=greeted.world.now + off).body is not None
    assert body(greeted.ask("hello", encode(HELLO), expires=0), Welcome).now == greeted.world.now


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"protocols": (2, 3)}, "protocol", "update echo2 to protocol 1"),
        ({"protocols": (0, 0)}, "protocol", "update echo2 to protocol 1"),
        ({"tasks": []}, "task-version", "task reverse version 1"),
        ({"tasks": [TaskReference(name="reverse", version=2)]}, "task-version", "update echo2"),
        ({"engine": "llamacpp/q4/cuda"}, "engine", "admitted: transformers/float32"),
    ],
)
def test_a_node_that_cannot_take_part_is_told_why(desk: Desk, changes: dict[str, Any], code: str, said: str) -> None:
    answer = refusal(desk.ask("hello", encode(msgspec.structs.replace(HELLO, **changes))))
    assert (answer.code, answer.retry_after) == (code, None)
    assert said in answer.sentence
    assert desk.world.rows() == []


def test_a_run_of_a_single_task_takes_nodes_that_lack_it_and_tells_older_ones_to_update(desk: Desk) -> None:
    desk.control._spec = msgspec.structs.replace(SPEC, tasks=[TaskReference(name="gym", version=1, kind="single")])
    assert refusal(desk.ask("hello", encode(HELLO))).code == "task-version", "a node that does not name the kind"
    body(desk.ask("hello", encode(msgspec.structs.replace(HELLO, tasks=[], kinds=["single"]))), Welcome)


def test_a_run_with_several_end_tokens_tells_nodes_that_know_one_to_update(desk: Desk) -> None:
    desk.control._spec = msgspec.structs.replace(
        SPEC, protocols=numbers.number_range([7]), tasks=[msgspec.structs.replace(SPEC.tasks[0], other_ends=[7])]
    )
    assert "update echo2 to protocol 2" in refusal(desk.ask("hello", encode(HELLO))).sentence
    body(desk.ask("hello", encode(msgspec.structs.replace(HELLO, protocols=numbers.SPOKEN_NUMBERS))), Welcome)


def test_a_run_with_one_end_token_takes_nodes_of_either_number(greeted: Desk) -> None:
    assert SPEC.protocols == numbers.number_range([])
    body(greeted.ask("hello", encode(msgspec.structs.replace(HELLO, protocols=numbers.SPOKEN_NUMBERS))), Welcome)


def test_a_replaced_key_hears_by_whom_and_disputes_it_by_its_hello(greeted: Desk) -> None:
    world, asked = greeted.world, list[bool]()

    def balance(node: bytes, disputes: bool, now: int) -> str:
        assert (node, now) == (ALICE, world.now)
        asked.append(disputes)
        return "Its balance waits."

    world.group_service.accounts.remark(ALICE, "node.vouched", "mine", world.now)
    world.group_service.accounts.rotate(ALICE, b"s" * 32, world.now)
    told = refusal(greeted.ask("hello", encode(HELLO)))
    assert (told.code, peer_id(b"s" * 32) in told.sentence) == ("replaced", True)
    assert "Its points stay with it." in told.sentence
    greeted.control.on_replaced = balance
    for hello in (HELLO, msgspec.structs.replace(HELLO, disputes=True)):
        assert "Its balance waits." in refusal(greeted.ask("hello", encode(hello))).sentence
    for method in ("lease", "appeal"):
        assert refusal(greeted.ask(method, encode(world.ask()))).code == "replaced"
    assert asked == [False, True, False, False]


def test_a_banned_node_hears_why_until_it_is_not_banned_any_more(greeted: Desk) -> None:
    group_service, now = greeted.world.group_service, greeted.world.now
    group_service.accounts.remark(ALICE, "node.banned", "it sent poison", now)
    answer = refusal(greeted.ask("lease", encode(greeted.world.ask())))
    assert (answer.code, "it sent poison" in answer.sentence) == ("banned", True)
    group_service.accounts.remark(ALICE, "node.unbanned", "its disk was bad", now)
    assert greeted.ask("lease", encode(greeted.world.ask())).body is not None
    assert [entry.kind for entry in group_service.ledger.entries()] == ["node.banned", "node.unbanned"]


def test_the_memory_of_answers_is_bounded() -> None:
    answers = ResponseLog()
    for number in range(MOST_ANSWERS + 10):
        answers.keep(ALICE, number.to_bytes(16, "big"), b"h", b"answer", 10**9, 0)
    assert answers.find(ALICE, bytes(16)) is None
    assert answers.find(ALICE, (MOST_ANSWERS + 9).to_bytes(16, "big")) == (b"h", b"answer")
    answers.keep(ALICE, b"n" * 16, b"h", b"answer", 2 * 10**9, 10**9 + MOST_EXPIRY_SKEW_MS + 1)
    assert answers.find(ALICE, (MOST_ANSWERS + 9).to_bytes(16, "big")) is None


def test_an_answer_that_replaces_another_counts_once() -> None:
    """A turn that waits for its environment may be asked for twice under one id."""
    answers = ResponseLog()
    for _ in range(100):
        answers.keep(ALICE, bytes(16), b"h", bytes(1 << 20), 10**9, 0)
    answers.keep(ALICE, b"n" * 16, b"h", b"answer", 10**9, 0)
    assert answers.find(ALICE, bytes(16)) is not None
    assert answers.find(ALICE, b"n" * 16) == (b"h", b"answer")


async def test_on_a_network_each_method_is_answered_by_its_name(desk: Desk) -> None:
    handlers = Handlers()
    desk.control.serve(handlers, lambda peer: Origin(peer, peer))
    served = {name: method.handler for name, method in handlers.methods.items()}
    limits = {name: method.limit for name, method in handlers.methods.items()}
    assert set(served) == {method.name for method in SEALED}
    assert limits["submit"] > submission_limit(SPEC) > limits["lease"]
    assert limits["step"] == limits["lease"] + 5 * SPEC.limit
    answer = decode(await served["hello"]("peer", desk.request("hello", encode(HELLO))), Response)
    assert answer.body is not None
    message = Acknowledgement(era=1, version=0, heard=0, complete=0, applied=0)
    answer = decode(await served["acknowledge"]("peer", desk.request("acknowledge", encode(message))), Response)
    assert answer == Response(body=b"")
    answer = decode(await served["acknowledge"]("peer", desk.request("acknowledge", b"nonsense")), Response)
    assert refusal(answer).code == "malformed"
    answer = decode(await served["verdicts"]("peer", desk.request("hello", encode(HELLO))), Response)
    assert refusal(answer).code == "wrong-method"


WRONG_RECORDS = {
    "of another key": ("bad-signature", RecordIssuer(BOB_KEY, RUN).issue([], T0)),
    "of another run": ("bad-signature", RecordIssuer(ALICE_KEY, bytes(32)).issue([], T0)),
    "that is none": ("malformed", b"\xc1"),
}


@pytest.mark.parametrize("what", WRONG_RECORDS)
def test_a_hello_is_refused_with_a_record(desk: Desk, what: str) -> None:
    code, record = WRONG_RECORDS[what]
    assert refusal(desk.ask("hello", encode(msgspec.structs.replace(HELLO, record=record)))).code == code
    assert desk.world.group_service.registry.records(T0) == []


def test_a_node_with_a_wrong_clock_is_answered_and_no_node_is_told_of_it_until_it_knows_the_time(desk: Desk) -> None:
    own, where = RecordIssuer(ALICE_KEY, RUN), [f"/ip4/127.0.0.1/tcp/4001/p2p/{peer_id(ALICE)}"]
    for wrong in (T0 + RECORD_LIFE_MS, T0 - RECORD_LIFE_MS, T0):
        assert not desk.world.group_service.registry.records(T0)
        record = own.issue(where, wrong)
        body(desk.ask("hello", encode(msgspec.structs.replace(HELLO, record=record))), Welcome)
    (known,) = desk.world.group_service.registry.records(T0)
    assert (known.peer, known.sealed) == (peer_id(ALICE), record)


def test_a_question_for_verdicts_is_answered_beside_any_request_and_a_refusal_too(desk: Desk) -> None:
    desk.ask("hello", encode(HELLO))
    lease = opened("lease", desk.ask("lease", encode(desk.world.ask())).body, Lease)
    taken = desk.ask("submit", encode(group(lease)))
    assert (taken.body is not None, taken.verdicts) == (True, None)
    desk.world.decide_all()
    asked = VerdictsRequest(leases=[lease.id, bytes(16)])
    answer = desk.ask("lease", encode(desk.world.ask(era=9)), verdicts=asked)
    assert refusal(answer).code == "wrong-version"
    assert answer.verdicts.receipts[0] is not None
    assert answer.verdicts.unknown == [bytes(16)]
    confirmed = VerdictsRequest(leases=[], confirmed=[lease.id])
    again = desk.ask("lease", encode(desk.world.ask()), verdicts=confirmed)
    assert (again.body is not None, again.verdicts) == (True, VerdictsResponse(receipts=[]))
    assert desk.world.group_service.database.value("SELECT confirmed FROM verdicts") == 1
    bent = desk.ask("lease", encode(desk.world.ask()), verdicts=confirmed, recipient=bytes(32))
    assert (refusal(bent).code, bent.verdicts) == ("wrong-recipient", None)


def test_a_report_on_open_leases_is_taken_beside_any_request_and_before_it(greeted: Desk) -> None:
    lease = opened("lease", greeted.ask("lease", encode(greeted.world.ask())).body, Lease)
    waits = greeted.ask("lease", encode(greeted.world.ask(era=9)), leases=LeaseReport(waiting=[lease.id]))
    assert (refusal(waits).code, waits.ended) == ("wrong-version", [])
    nothing = LeaseReport(waiting=[lease.id], returned=[lease.id])
    assert greeted.ask("verdicts", b"", leases=nothing).ended == [lease.id]


async def test_turns_that_wait_for_a_slow_environment_are_no_overload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait on purpose, at no cost: if they counted, the rows of a few nodes would keep all others from a lease."""
    monkeypatch.setattr("echo2.coordinator.submissions.request_handler.SERVED_WITHIN", 30.0)
    spec = msgspec.structs.replace(SPEC, tasks=[TaskReference(name="guess", version=1, kind=SERVED_KIND)])
    world, handlers = World(tmp_path, spec=spec), Handlers()
    desk, turn = Desk(world), StepRequest(lease=world.lease().id, sample=0, turn_number=0, tokens=[5, EOS])
    desk.control.serve(handlers, lambda peer: Origin(peer, peer))
    async with asyncio.TaskGroup() as tasks:
        waiting = [
            tasks.create_task(handlers.answer("step", f"peer {number}", desk.request("step", encode(turn))))
            for number in range(BURST_REQUESTS + 1)
        ]
        for _ in range(2 * BURST_REQUESTS // PER_ITERATION):
            await asyncio.sleep(0)
        refused = decode(await handlers.answer("lease", "bob", b"no request at all"), Response).refusal
        assert refused.code == "malformed"
        assert not any(one.done() for one in waiting)
        for one in waiting:
            one.cancel()
