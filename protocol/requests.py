"""Wire types that frame each request between node and coordinator, and those of `hello` and `documents`."""

from typing import Annotated, Literal

from msgspec import Meta

from echo2.p2p.wire_types import Count, Hash, Id, Key, Milliseconds, Name, SealedRecord, Sentence, Wire
from echo2.protocol.authority import MOST_ROOTS, TaskReference
from echo2.protocol.leases import LeaseReport, VerdictsRequest, VerdictsResponse
from echo2.protocol.ledger_heads import HeadReference

Rival = Literal["", "works", "waits"]
MOST_INSTANCES = 4


class Request(Wire, frozen=True):
    """node -> coordinator, sealed by the node's key. A repeated id gets the same answer again until `expires`.
    `recipient`: the run's channel key, so that a request cannot be replayed to another run or coordinator. `verdicts`:
    a request for verdicts besides the method's own; the Response's `verdicts` answers it. `leases`: a report on the
    node's open leases; None: nothing changed for the coordinator, and what the node reported last holds. `instance`:
    instance of the daemon, random at its start; None: no daemon sends it."""

    recipient: Key
    id: Id
    method: Name
    expires: Milliseconds
    body: bytes
    verdicts: VerdictsRequest | None = None
    leases: LeaseReport | None = None
    instance: Id | None = None


class Refusal(Wire, frozen=True):
    """coordinator -> node. Data, not an exception: `code` is one of protocol/refusals.py, `sentence` is for people.
    `retry_after`: milliseconds after which to ask again; None: this very request never succeeds. `roots`: every sealed
    Root, in order, with the code `wrong-recipient` where the recipient is a former channel key of the run, and with the
    code `moved`. `engines`: those that the run admits, with the code `engine`."""

    code: Name
    sentence: Sentence
    retry_after: Milliseconds | None = None
    roots: Annotated[list[bytes], Meta(max_length=MOST_ROOTS)] = []
    engines: Annotated[list[Name], Meta(max_length=16)] = []


class Response(Wire, frozen=True):
    """coordinator -> node. Exactly one of `body` and `refusal` is present. `verdicts`: the answer to the Request's;
    None: it had none. `ended`: those of the leases that the Request reports as
    waiting, those that are no longer open: the node does not begin them. `rival`: another daemon has the node's key. It
    "works", and this one gets no leases; or it "waits": it asked within the hour, and was refused."""

    body: bytes | None = None
    refusal: Refusal | None = None
    verdicts: VerdictsResponse | None = None
    ended: Annotated[list[Id], Meta(max_length=1024)] = []
    rival: Rival = ""


class Hello(Wire, frozen=True):
    """node -> coordinator, method "hello". First message of every connection. `record`: the node's sealed
    PeerRecord. `kinds`: kinds of task other than pure that the node works for. `succession`: the sealed statement by
    which an earlier key of this node named the present one; None: none did. `ledger`: the newest head of the ledger
    that the node took; None: it has none. `after`: instances (`Request.instance`) of earlier daemons of the same home,
    of which one was the last that the run gave leases. `disputes`: the node's owner has not replaced its key, so its
    balance is to stay with it. `team`: its name; empty: none."""

    protocols: tuple[int, int]
    software: Name
    name: Annotated[str, Meta(max_length=40)]
    engine: Name
    device: Name
    tasks: Annotated[list[TaskReference], Meta(max_length=64)]
    record: SealedRecord
    kinds: Annotated[list[Name], Meta(max_length=16)] = []
    succession: SealedRecord | None = None
    ledger: HeadReference | None = None
    after: Annotated[list[Id], Meta(max_length=MOST_INSTANCES)] = []
    disputes: bool = False
    team: Annotated[str, Meta(max_length=40)] = ""


class Welcome(Wire, frozen=True):
    """coordinator -> node, to "hello". `roots`: every sealed Root since the first, in order. `peers`: sealed
    PeerRecords, as received, of nodes to dial. `calibrated`: roundings (engines/registry.py) that a Calibration of this
    run opens. `succession`: what became of the Hello's, a sentence; None: it had none. `shown`: the name under which
    the run shows the node, where that is not the one in its hello; else empty."""

    roots: Annotated[list[bytes], Meta(min_length=1, max_length=MOST_ROOTS)]
    runspec: bytes
    head: bytes | None
    peers: Annotated[list[SealedRecord], Meta(max_length=64)]
    now: Milliseconds
    calibrated: Annotated[list[Name], Meta(max_length=256)] = []
    succession: Sentence | None = None
    shown: Annotated[str, Meta(max_length=80)] = ""


class RankResponse(Wire, frozen=True):
    """coordinator -> node, to "rank". `rank`: place of the node on the run's page, from 1; None: it has no accepted
    work, or its place is behind the first 10,000. `nodes`: nodes that the run knows."""

    rank: Count | None
    nodes: Count


class DocumentsRequest(Wire, frozen=True):
    """anyone -> anyone, method "documents", unsealed. Asks for sealed documents by hash."""

    hashes: Annotated[list[Hash], Meta(max_length=64)]


class DocumentsResponse(Wire, frozen=True):
    """anyone -> anyone, to "documents". In the order requested; None where the peer lacks the document."""

    documents: Annotated[list[bytes | None], Meta(max_length=64)]
