"""Sealed requests with a field missing, of another type, outside its limits or at them get a word, and change nothing.

The requests are generated from the types of all sealed methods (tests/support/message_fields.py).
"""

import itertools
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.submissions.request_handler import RequestHandler
from echo2.p2p.discovery.peer_records import RecordIssuer
from echo2.p2p.envelope import seal
from echo2.p2p.identity import public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import TaskReference
from echo2.protocol.methods import EMPTY, SEALED
from echo2.protocol.refusals import REASONS
from echo2.protocol.requests import Hello, Refusal, Request, Response
from tests.support.group_world import KEYS, RUN, World, control_of
from tests.support.message_fields import Variant, at_limits, beyond_limits, of_wrong_type, wire_type, without

KEY = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
WITH_BODIES = [method for method in SEALED if method.request is not EMPTY]
TABLES = ("entries", "leases", "submissions", "verdicts", "nodes")


class Stranger:
    """A node that said hello and sends what it likes."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.control = control_of(self.world, RequestHandler)
        record = RecordIssuer(KEY, RUN).issue([], self.world.now)
        hello = Hello(
            protocols=(1, 1), software="a test", name="a", engine="transformers/float32/cpu", device="none",
            tasks=[TaskReference(name="reverse", version=1)], record=record,
        )  # fmt: skip
        assert self.send("hello", encode(hello)).refusal is None

    def send(self, method: str, body: bytes, **changes: Any) -> Response:
        """Send a request around a body. `changes`: of the request's own fields."""
        fields: dict[str, Any] = {
            "recipient": public_bytes(KEYS["channel"]), "id": secrets.token_bytes(16), "method": method,
            "expires": self.world.now + 60_000, "body": body,
        }  # fmt: skip
        return self.sealed(method, msgspec.msgpack.encode(fields | changes))

    def sealed(self, method: str, payload: bytes) -> Response:
        answer = decode(self.control.answer(method, seal("request", RUN, payload, KEY), self.world.now), Response)
        assert (answer.body is None) != (answer.refusal is None)
        return answer

    def rows(self) -> dict[str, int]:
        """Return the number of rows of each table that a request may write to."""
        database = self.world.group_service.database
        return {name: database.value(f"SELECT count(*) FROM {name}") for name in TABLES}


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path)


def refusal(answer: Response) -> Refusal:
    assert answer.refusal is not None
    return answer.refusal


def bad(name: str) -> Iterator[Variant]:
    kind = wire_type(name)
    return itertools.chain(without(kind), of_wrong_type(kind), beyond_limits(kind))


@pytest.mark.parametrize("method", WITH_BODIES, ids=lambda method: method.name)
def test_a_body_with_a_false_field_is_refused_and_nothing_is_written(stranger: Stranger, method: Any) -> None:
    before = stranger.rows()
    for variant in bad(method.request.label):
        told = refusal(stranger.send(method.name, variant.data))
        assert told.code in REASONS, variant.what
        assert told.sentence, variant.what
        assert told.code in ("malformed", "unknown-lease", "unknown-method"), variant.what
    assert stranger.rows() == before


@pytest.mark.parametrize("method", WITH_BODIES, ids=lambda method: method.name)
def test_a_body_at_the_limits_of_its_fields_is_answered(stranger: Stranger, method: Any) -> None:
    for variant in at_limits(wire_type(method.request.label)):
        answer = stranger.send(method.name, variant.data)
        assert answer.refusal is None or answer.refusal.code in REASONS, variant.what


def test_a_request_with_a_false_field_around_its_body_is_malformed_and_nothing_is_written(stranger: Stranger) -> None:
    before = stranger.rows()
    for variant in bad("Request"):
        assert refusal(stranger.sealed("lease", variant.data)).code == "malformed", variant.what
    assert stranger.rows() == before


def test_a_request_at_the_limits_of_its_own_fields_is_answered(stranger: Stranger) -> None:
    assert stranger.send("verdicts", b"").refusal is None
    for variant in at_limits(Request):
        answer = stranger.sealed("verdicts", variant.data)
        assert refusal(answer).code in REASONS, variant.what
