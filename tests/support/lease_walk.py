"""The walk of one lease request through the coordinator, from `RequestHandler` to the signed lease, counted.

A run of one known node, with room: the request gets a plain lease.
"""

import secrets
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from echo2.coordinator.submissions.request_handler import RequestHandler
from echo2.p2p.discovery.peer_records import RecordIssuer
from echo2.p2p.envelope import seal
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.authority import TaskReference
from echo2.protocol.requests import Hello, Request, Response
from tests.support.group_world import KEYS, RUN, T0, World, control_of, group
from tests.support.walk import Walk, Watch

KEY = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
NODE = public_bytes(KEY)
STORE = "coordinator/database"
"""The room below all others: each step reads or writes by it."""


class LeaseWalk(NamedTuple):
    """The cost of the walk, without functions of the database. `path`: functions that have called one another when the
    lease is signed: the call graph from the handler to the signed lease. `rooms`: rooms of `path`. `returns`: how often
    `path` comes back to a room that it has left. `run`: functions of the coordinator that run for the request.
    `visited`: their rooms."""

    path: list[str]
    rooms: set[str]
    returns: int
    run: list[str]
    visited: set[str]


def _request(world: World, method: str, body: bytes) -> bytes:
    message = Request(
        recipient=public_bytes(KEYS["channel"]), method=method, id=secrets.token_bytes(16),
        expires=world.now + 60_000, body=body,
    )  # fmt: skip
    return seal("request", RUN, encode(message), KEY)


def walk_of_lease_request(folder: Path) -> LeaseWalk:
    """Count the walk of a lease request."""
    world = World(folder, batch_groups=8)
    control = control_of(world, RequestHandler)
    record = RecordIssuer(KEY, RUN).issue([f"/ip4/127.0.0.1/tcp/4001/p2p/{peer_id(NODE)}"], T0)
    hello = Hello(
        protocols=(1, 1), software="echo2 0.1", name="alice", engine="transformers/float32/cpu", device="a CPU",
        tasks=[TaskReference(name="reverse", version=1)], record=record,
    )  # fmt: skip
    control.answer("hello", _request(world, "hello", encode(hello)), world.now)
    world.submit(group(world.lease(NODE)), NODE)
    world.decide_all()
    asked = _request(world, "lease", encode(world.ask()))
    with Watch() as watch, watch.walk(seal) as walk:
        answer = control.answer("lease", asked, world.now)
    assert decode(answer, Response).body is not None
    world.close()
    return _count(walk)


def room_of(name: str) -> str:
    """Return the room of a function, by its name as `Walk` has it."""
    return "/".join(name.partition(":")[0].split("/")[:2])


def _count(walk: Walk) -> LeaseWalk:
    path, run = ([name for name in names if room_of(name) != STORE] for names in (walk.waiting, walk.functions))
    run = [name for name in run if name.startswith("coordinator/")]
    rooms = [room_of(name) for name in path]
    visits = [room for number, room in enumerate(rooms) if not number or room != rooms[number - 1]]
    return LeaseWalk(path, set(rooms), len(visits) - len(set(rooms)), run, {room_of(name) for name in run})
