"""The wire types: golden bytes of each, and input that must be refused without allocating memory for it."""

import json
import struct
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo2.coordinator.verification.calibration import Calibration
from echo2.coordinator.verification.evidence import LEAST_P
from echo2.coordinator.verification.token_evidence import BINS, ONE
from echo2.p2p.discovery.messages import PeerRecord, ReachableRequest, ReachableResponse
from echo2.p2p.envelope import decode_unverified
from echo2.p2p.errors import Malformed
from echo2.p2p.payload_manifest import Manifest
from echo2.p2p.peer.gossip import GossipRequest
from echo2.p2p.swarm import messages
from echo2.p2p.wire_types import Wire, decode, encode
from echo2.protocol.appeals import AppealRequest, AppealResponse, CheckAnswer
from echo2.protocol.authority import Asset, RoleKeys, Root, RunSpec, TaskReference
from echo2.protocol.broadcast_messages import (
    Acknowledgement,
    PayloadTransfer,
    PlanRequest,
    PlanResponse,
    TransferSource,
)
from echo2.protocol.group_weights import Costs
from echo2.protocol.leases import (
    Lease,
    LeaseReport,
    LeaseRequest,
    Receipt,
    Received,
    Rollout,
    Segment,
    Submission,
    VerdictsRequest,
    VerdictsResponse,
)
from echo2.protocol.ledger_heads import (
    EndProof,
    EntryProof,
    GrownHead,
    HeadReference,
    LedgerHead,
    LedgerRequest,
    LedgerResponse,
)
from echo2.protocol.market import EpochTerms, MarketRequest, MarketResponse, MovingBalance, PayeeRequest, PayeeResponse
from echo2.protocol.payout_approval import PayoutApproval
from echo2.protocol.requests import (
    DocumentsRequest,
    DocumentsResponse,
    Hello,
    RankResponse,
    Refusal,
    Request,
    Response,
    Welcome,
)
from echo2.protocol.restored_logs import LogRestored
from echo2.protocol.steps import StepRequest, StepResponse
from echo2.protocol.succession import Succession
from echo2.protocol.versions import Head, HeadRequest, HeadResponse
from tests.support import paths

VECTORS = json.loads((paths.VECTORS / "messages.json").read_text())

RUN, NODE, ROOT = bytes(range(32)), b"n" * 32, b"r" * 32
LEASE, NONCE, SEEDS = b"lease id 16 byte", b"nonce of 16 byte", [b"first seed 16 by", b"other seed 16 by"]
THEN = 1_700_000_000_000
MANIFEST = Manifest(hash=b"m" * 32, length=657, chunk_size=16384, chunk_root=b"c" * 32)
TASK = TaskReference(name="single_sum", version=1)
SEGMENT = Segment(version=12, root=ROOT, first=0)
ROLLOUT = Rollout(
    tokens=[3, 300, 70_000, 2], turns=[4], logprobs=struct.pack("<4f", -0.5, 0, -1, -2), segments=[SEGMENT]
)
SENDER = TransferSource(peer="12D3KooWpeer", nbytes=16_384, began=900, ended=450)
TAKEN = PayloadTransfer(payload_hash=b"p" * 32, took=510, senders=[SENDER])
KEYS = RoleKeys(keys=[b"k" * 32], threshold=1)

LEDGER_HEAD = LedgerHead(log=RUN, number=7, size=400, root=ROOT, tip=b"t" * 32, issued=THEN, before=b"p" * 32)
GROWN = GrownHead(sealed=b"sealed", consistency=[b"c" * 32])
CHECK = CheckAnswer(by="appeal", code="ok", reason="", at=THEN)
HEAD_REFERENCE = HeadReference(number=7, hash=b"q" * 32)
END = EndProof(entry=300, index=2, outcome=b"an outcome", path=[b"s" * 32])
PROOF = EntryProof(entry=300, previous=b"p" * 32, canonical=b"canonical", path=[b"s" * 32])

MOVING = MovingBalance(node="12D3KooWold", amount=7, at=THEN, disputed=True)
EPOCH = EpochTerms(epoch=3, closes=THEN, opens=THEN + 30_000, milliseconds=900_000, need=100_000, reserve=10_000_000)

INSTANCES: list[Wire] = [
    EPOCH,
    MarketRequest(epoch=3, sealed=b"s" * 32, ask=120_000_000, salt=b"sixteen bytes..."),
    MarketResponse(
        currency="USD", coming=EPOCH, running=EPOCH, sealed=b"s" * 32, ask=120_000_000, rate=20_000, place="standby",
        rank=1, active_at=110_000_000, price=6_000_000, most=5_000, accrued=1, unvested=2, payable=3,
    ),
    PayeeRequest(account="an account"),
    PayeeResponse(
        rail="csv", currency="USD", commitment=b"c" * 32, coming=b"d" * 32, since=THEN, salt=b"t" * 16,
        minimum=5_000_000_000, fee=250_000_000, moving=[MOVING],
    ),
    MOVING,
    KEYS,
    Root(
        run=RUN, serial=1, expires=THEN, issued=THEN,
        roles={"root": KEYS, "policy": KEYS, "channel": KEYS, "ledger": KEYS},
    ),
    Asset(name="config.json", manifest=MANIFEST),
    TASK,
    RunSpec(
        run=RUN, name="a run", model="tiny", assets=[Asset(name="config.json", manifest=MANIFEST)], eos=2,
        vocabulary=49_152, tasks=[TASK], staleness=2, group_size=2, limit=16, compute_dtype="float32",
        engines=["transformers/float32"], sampling="gumbel-splitmix64/1", price_mode="points",
    ),
    Head(
        era=1, version=12, version_hash=b"v" * 32, index_hash=b"i" * 32, step=12, sequence=THEN,
        addresses=["/ip4/192.0.2.7/tcp/4001"], root_serial=1, issued=THEN, expires=THEN + 180_000,
    ),
    Request(recipient=NODE, id=NONCE, method="lease", expires=THEN, body=b"\x80"),
    Refusal(code="no-room", sentence="Enough rollouts are under way.", retry_after=1000),
    Response(body=b"\x80"),
    PeerRecord(addresses=["/ip4/192.0.2.9/tcp/4001/p2p/QmA"], issued=THEN),
    Hello(
        protocols=(1, 1), software="echo2/0.1", name="a node", engine="transformers/float32/cpu", device="a CPU",
        tasks=[TASK], record=b"sealed", ledger=HEAD_REFERENCE,
    ),
    Succession(old=NODE, new=b"w" * 32, at=THEN),
    Welcome(roots=[b"sealed"], runspec=b"sealed", head=None, peers=[b"sealed"], now=THEN),
    DocumentsRequest(hashes=[b"v" * 32]),
    DocumentsResponse(documents=[b"sealed", None]),
    ReachableRequest(ports=[4310, 443]),
    ReachableResponse(observed="192.0.2.9", ports=[4310]),
    GossipRequest(topic="echo2/00/head", data=b"a sealed Head"),
    PlanRequest(uplink=1_250_000, latency=40, failed=["QmB"]),
    PlanResponse(parents=["QmC", "QmD"], records=[b"sealed"]),
    HeadRequest(),
    HeadResponse(head=b"sealed"),
    AppealRequest(lease=LEASE, ask=True),
    RankResponse(rank=3, nodes=17),
    CHECK,
    AppealResponse(
        code="drift", reason="too far", statistic="0.2", threshold="0.1", calibration=None, stored="group",
        state="answered", answers=[CHECK], reversed=True,
    ),
    LEDGER_HEAD,
    HEAD_REFERENCE,
    LedgerRequest(
        after=6, entries=[1, 300], size=400, leases=[LEASE], log=RUN, fork=[b"one", b"other"], newest=HEAD_REFERENCE
    ),
    GROWN,
    PROOF,
    END,
    LogRestored(
        serial=1, old=RUN, number=6, size=390, root=ROOT, restored=THEN, head=b"sealed",
    ),
    LedgerResponse(heads=[GROWN], proofs=[PROOF], ends=[END], every=900_000),
    LeaseReport(waiting=[LEASE], returned=[NONCE]),
    LeaseRequest(nonce=NONCE, era=1, version=12, root=ROOT, engine="transformers/float32/cpu"),
    Lease(
        id=LEASE, node=NODE, nonce=NONCE, task="single_sum", task_version=1, index=17, prompt=[1, 40, 7], seeds=SEEDS,
        limit=16, era=1, version=12, root=ROOT, sent=THEN, expires=THEN + 300_000,
    ),
    SEGMENT,
    ROLLOUT,
    Submission(lease=LEASE, era=1, version=12, root=ROOT, rollouts=[ROLLOUT]),
    Received(lease=LEASE, submission_hash=b"s" * 32, at=THEN),
    Receipt(
        run=RUN, node=NODE, lease=LEASE, era=1, version=12, submission_hash=b"s" * 32, verdict="accepted", code="ok",
        reason="", trainable=True, weight=109, entry=7, entry_hash=b"e" * 32, at=THEN,
    ),
    StepRequest(lease=LEASE, sample=3, turn_number=2, tokens=[3, 300, 70_000, 2]),
    StepResponse(given=[5, 6], expires=THEN + 300_000),
    VerdictsRequest(leases=[LEASE], confirmed=[NONCE]),
    VerdictsResponse(receipts=[None, b"sealed"], unknown=[NONCE]),
    SENDER,
    TAKEN,
    Calibration(
        run=RUN, rounding="bfloat16", classes=["transformers/bfloat16/cpu"], devices=["vllm/bfloat16/cuda, a card"],
        builds=["torch 2.13.0"], era=1, version=12,
        root=ROOT,
        machines={"16 rows": 2_400}, tables={"differs": [LEAST_P] * (BINS - 1) + [ONE]}, bound=5_181, at=THEN,
    ),
    Acknowledgement(era=1, version=12, heard=950, complete=440, applied=3, taken=[TAKEN]),
    Costs(run=RUN, given=1_000, attention=3, decode=29, denominator=8, unit=500_000, builds=["torch 2"], at=THEN),
    PayoutApproval(run=RUN, plan=3, file=b"f" * 32, head=7, head_hash=b"q" * 32),
]  # fmt: skip
BY_NAME = {type(message).__name__: message for message in INSTANCES}


@pytest.mark.parametrize("message", INSTANCES, ids=lambda message: type(message).__name__)
def test_a_message_has_the_bytes_of_the_golden_vectors(message: Wire) -> None:
    golden = bytes.fromhex(VECTORS[type(message).__name__])
    assert encode(message) == golden
    assert decode(golden, type(message)) == message


LATER_FIELDS: list[Wire] = [
    Hello(
        protocols=(1, 1), software="echo2/0.1", name="a node", engine="transformers/float32/cpu", device="a CPU",
        tasks=[TASK], record=b"sealed", ledger=HEAD_REFERENCE, after=[b"instance one ...", b"instance two ..."],
        disputes=True, team="Night Owls",
    ),
    Request(recipient=NODE, id=NONCE, method="lease", expires=THEN, body=b"\x80", instance=b"instance three ."),
    LeaseRequest(
        nonce=NONCE, era=1, version=12, root=ROOT, engine="transformers/float32/cpu", at_once=3, takes=3_745_000
    ),
    Response(refusal=Refusal(code="fenced", sentence="A sentence.", retry_after=60_000), rival="works"),
    RunSpec(
        run=RUN, name="a run", model="tiny", assets=[], eos=2, vocabulary=49_152, tasks=[TASK], staleness=2,
        group_size=2, limit=16, compute_dtype="float32", engines=["transformers/float32"],
        sampling="gumbel-splitmix64/1", price_mode="points", currency="EUR", description="Sorts lists.",
        page="https://run.example.org", contact="ann@example.org",
    ),
]  # fmt: skip
"""Messages with the fields that came later, which those of `INSTANCES` lack."""


@pytest.mark.parametrize("message", LATER_FIELDS, ids=lambda message: type(message).__name__)
def test_the_later_fields_of_a_message_have_the_bytes_of_the_golden_vectors(message: Wire) -> None:
    golden = bytes.fromhex(json.loads((paths.VECTORS / "later_fields.json").read_text())[type(message).__name__])
    assert encode(message) == golden
    assert decode(golden, type(message)) == message


WIRE_TYPES = [type_ for type_ in Wire.__subclasses__() if not type_.__module__.startswith("tests.")]
"""All of this project; a toy of another test is none."""


def test_every_wire_type_has_a_golden_vector() -> None:
    ours = {type_.__name__ for type_ in WIRE_TYPES}
    assert ours == set(BY_NAME) == set(VECTORS)


@pytest.mark.parametrize("message", INSTANCES, ids=lambda message: type(message).__name__)
def test_a_field_of_a_later_program_is_ignored(message: Wire) -> None:
    fields = msgspec.msgpack.decode(encode(message)) | {"invented_later": {"deep": [1, None, {}]}}
    assert decode(msgspec.msgpack.encode(fields), type(message)) == message


@pytest.mark.parametrize("message", INSTANCES, ids=lambda message: type(message).__name__)
def test_a_message_cut_anywhere_is_refused(message: Wire) -> None:
    data = encode(message)
    for length in range(len(data)):
        with pytest.raises(Malformed):
            decode(data[:length], type(message))


@pytest.mark.parametrize("message", INSTANCES, ids=lambda message: type(message).__name__)
def test_bytes_after_a_message_are_refused(message: Wire) -> None:
    with pytest.raises(Malformed):
        decode(encode(message) + b"\x80", type(message))


LIES: dict[str, tuple[str, dict[str, Any]]] = {
    "a run id of 31 bytes": ("Root", {"run": bytes(31)}),
    "a run id of 33 bytes": ("Root", {"run": bytes(33)}),
    "a run id that is text": ("Root", {"run": "r" * 32}),
    "a negative serial": ("Root", {"serial": -1}),
    "a time beyond 53 bits": ("Root", {"expires": 1 << 53}),
    "a time with a fraction": ("Root", {"expires": 1.5}),
    "a role without keys": ("RoleKeys", {"keys": []}),
    "33 keys in a role": ("RoleKeys", {"keys": [bytes(32)] * 33}),
    "a threshold of zero": ("RoleKeys", {"threshold": 0}),
    "17 roles": ("Root", {"roles": {f"role {i}": {"keys": [bytes(32)], "threshold": 1} for i in range(17)}}),
    "a run without tasks": ("RunSpec", {"tasks": []}),
    "a group of zero": ("RunSpec", {"group_size": 0}),
    "a group of 1025": ("RunSpec", {"group_size": 1025}),
    "a nameless run": ("RunSpec", {"name": ""}),
    "three protocol bounds": ("RunSpec", {"protocols": [1, 1, 1]}),
    "17 addresses": ("Head", {"addresses": ["/ip4/192.0.2.7"] * 17}),
    "an endless address": ("Head", {"addresses": ["a" * 401]}),
    "a request id of 15 bytes": ("Request", {"id": bytes(15)}),
    "a node with an endless name": ("Hello", {"name": "x" * 41}),
    "a team with an endless name": ("Hello", {"team": "x" * 41}),
    "five earlier daemons of one home": ("Hello", {"after": [bytes(16)] * 5}),
    "an earlier daemon of 15 bytes": ("Hello", {"after": [bytes(15)]}),
    "a daemon of 17 bytes": ("Request", {"instance": bytes(17)}),
    "another daemon that does neither": ("Response", {"rival": "sleeps"}),
    "65 hashes in one ask": ("DocumentsRequest", {"hashes": [bytes(32)] * 65}),
    "a lease without seeds": ("Lease", {"seeds": []}),
    "a seed of 17 bytes": ("Lease", {"seeds": [bytes(17)]}),
    "a negative token": ("Rollout", {"tokens": [-1]}),
    "a token beyond 31 bits": ("Rollout", {"tokens": [1 << 31]}),
    "too many tokens": ("Rollout", {"tokens": [0] * ((1 << 20) + 1)}),
    "a rollout without segments": ("Rollout", {"segments": []}),
    "1025 rollouts": ("Submission", {"rollouts": [msgspec.msgpack.decode(encode(ROLLOUT))] * 1025}),
    "257 leases in one ask": ("VerdictsRequest", {"leases": [bytes(16)] * 257}),
    "a peer without a name": ("TransferSource", {"peer": ""}),
    "a peer id of 129 characters": ("TransferSource", {"peer": "p" * 129}),
    "less than no bytes": ("TransferSource", {"nbytes": -1}),
    "33 senders of a payload": ("PayloadTransfer", {"senders": [msgspec.msgpack.decode(encode(SENDER))] * 33}),
    "nine payloads of a version": ("Acknowledgement", {"taken": [msgspec.msgpack.decode(encode(TAKEN))] * 9}),
    "a version held in the future": ("Acknowledgement", {"applied": -1}),
    "a verdict that is a number": ("Receipt", {"verdict": 1}),
    "true for a number": ("Receipt", {"weight": True}),
    "a number for true": ("Receipt", {"trainable": 1}),
    "costs in parts of none": ("Costs", {"denominator": 0}),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_message_that_breaks_a_bound_is_refused(lie: str) -> None:
    name, fields = LIES[lie]
    message = BY_NAME[name]
    data = msgspec.msgpack.encode(msgspec.msgpack.decode(encode(message)) | fields)
    with pytest.raises(Malformed, match=f"^not a {name}: "):
        decode(data, type(message))


@pytest.mark.parametrize("type_", [type_ for type_ in WIRE_TYPES if type_ not in (Response, HeadRequest)])
def test_a_field_without_a_default_may_not_be_missing(type_: type[Wire]) -> None:
    fields = msgspec.msgpack.decode(encode(BY_NAME[type_.__name__]))
    for field in msgspec.structs.fields(type_):
        if field.required:
            rest = {name: value for name, value in fields.items() if name != field.encode_name}
            with pytest.raises(Malformed, match=f"missing required field `{field.encode_name}`"):
                decode(msgspec.msgpack.encode(rest), type_)


OTHER_TYPES: dict[str, Any] = {
    "no known type": msgspec.msgpack.Ext(7, b"x"),
    "a number with a fraction": 0.5,
    "a map of numbers": {1: 2},
    "a number beyond 53 bits": 1 << 63,
}


@pytest.mark.parametrize("other", OTHER_TYPES)
@pytest.mark.parametrize("message", INSTANCES, ids=lambda message: type(message).__name__)
def test_each_field_of_another_type_is_refused(message: Wire, other: str) -> None:
    fields = msgspec.msgpack.decode(encode(message))
    taken = [
        name
        for name in (field.encode_name for field in msgspec.structs.fields(message))
        if _is_taken(msgspec.msgpack.encode(fields | {name: OTHER_TYPES[other]}), type(message))
    ]
    assert not taken


def _is_taken(data: bytes, type_: type[Wire]) -> bool:
    try:
        decode(data, type_)
    except Malformed:
        return False
    return True


MEGABYTE = 1 << 20


def array(count: int, items: bytes = b"") -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + items


def field(name: str, value: bytes) -> bytes:
    """A map with one field."""
    return b"\x81" + msgspec.msgpack.encode(name) + value


BOMBS: dict[str, tuple[type, bytes]] = {
    "a list of four thousand million tokens": (Lease, field("prompt", array(0xFFFFFFFF))),
    "a list of four thousand million documents": (DocumentsResponse, field("documents", array(0xFFFFFFFF))),
    "a map of four thousand million roles": (Root, field("roles", b"\xdf\xff\xff\xff\xff")),
    "four gigabytes in one field": (Root, field("run", b"\xc6\xff\xff\xff\xff")),
    "a megabyte of empty maps for rollouts": (Submission, field("rollouts", array(MEGABYTE, b"\x80" * MEGABYTE))),
    "a thousand empty maps for rollouts": (Submission, field("rollouts", array(1024, b"\x80" * 1024))),
    "a megabyte of empty maps in an unknown field": (Root, field("later", array(MEGABYTE, b"\x80" * MEGABYTE))),
    "an unknown list without end": (Root, field("later", array(0xFFFFFFFF))),
    "an unknown map without end": (Root, field("later", b"\xdf\xff\xff\xff\xff")),
    "a megabyte of nesting": (Root, field("later", b"\x91" * MEGABYTE)),
    "nesting where a list belongs": (Submission, field("rollouts", b"\x91" * MEGABYTE)),
    "a megabyte of unknown fields": (Root, b"\xdf\x00\x04\x00\x00" + b"\xa1x\x80\xa1x" * (MEGABYTE // 5)),
    "text that is not UTF-8": (Refusal, field("code", b"\xa2\xff\xfe")),
    "a field name that is not UTF-8": (Refusal, b"\x81\xa2\xff\xfe\x01"),
    "an extension type": (Root, field("run", b"\xd8\x05" + bytes(16))),
    "a byte that MessagePack never uses": (Root, b"\xc1"),
    "nothing": (Root, b""),
    "a number": (Root, b"\x00"),
    "a list of no fields": (Root, b"\x90"),
}


def measured(attempt: Any, data: bytes) -> int:
    """Return the peak of bytes that an attempt to decode `data` allocated; it must raise `Malformed`."""
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            attempt(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_malformed_and_takes_no_more_memory_than_a_small_multiple_of_its_bytes(bomb: str) -> None:
    type_, data = BOMBS[bomb]
    with pytest.raises(Malformed):
        decode(data, type_)
    assert measured(lambda data: decode(data, type_), data) < 4 * len(data) + (1 << 18)


def sealed(signatures: bytes) -> bytes:
    return b"\x94\xa4head\xc4\x20" + bytes(32) + b"\xc4\x00" + signatures


ENVELOPE_BOMBS = {
    "signatures without end": sealed(array(0xFFFFFFFF)),
    "a million empty signatures": sealed(array(MEGABYTE, b"\x92\xc4\x00\xc4\x00" * MEGABYTE)),
    "a megabyte of empty maps for signatures": sealed(array(MEGABYTE, b"\x80" * MEGABYTE)),
    "a kind that is not UTF-8": b"\x94\xa2\xff\xfe\xc4\x00\xc4\x00\x90",
    "deep nesting after the last field": b"\x95" + sealed(b"\x90")[1:] + b"\x91" * MEGABYTE,
}


@pytest.mark.parametrize("bomb", ENVELOPE_BOMBS)
def test_an_envelope_that_is_a_bomb_is_malformed_in_little_memory(bomb: str) -> None:
    data = ENVELOPE_BOMBS[bomb]
    assert measured(decode_unverified, data) < 4 * len(data) + (1 << 18)


CHUNK_FRAME_BOMBS = {
    "indices without end": b"\x92\xa1n" + array(0xFFFFFFFF),
    "siblings without end": b"\x94\xa1c\x00" + array(0xFFFFFFFF),
    "a name that is not UTF-8": b"\x92\xa1\xff\x00",
    "a name of no message": b"\x92\xa1z\x00",
    "deep nesting after the last field": b"\x93\xa1g\x00" + b"\x91" * MEGABYTE,
}


@pytest.mark.parametrize("bomb", CHUNK_FRAME_BOMBS)
def test_a_chunk_frame_that_is_a_bomb_is_malformed_in_little_memory(bomb: str) -> None:
    data = CHUNK_FRAME_BOMBS[bomb]
    assert measured(messages.decode_from_holder, data) < 4 * len(data) + (1 << 18)
    assert measured(messages.decode_from_downloader, data) < 4 * len(data) + (1 << 18)


@given(st.binary(max_size=200), st.sampled_from(WIRE_TYPES))
def test_no_bytes_raise_anything_but_malformed(data: bytes, type_: type[Wire]) -> None:
    for attempt in (
        lambda: decode(data, type_),
        lambda: decode_unverified(data),
        lambda: messages.decode_from_holder(data),
    ):
        try:
            attempt()
        except Malformed:
            continue
