"""The table of wire methods, one row each: name, messages, direction, and size limit.

Rules
1. A method is one row here. The row determines the server's dispatch (`serve`), the client's call (`ask`), and the
   place in the coordinator's queue (`rank`). The table of docs/protocol/requests.md has the same rows.
2. The request of a sealed method travels in a `Request` under the node's key, and is answered by a `Response`.
   node/links/coordinator_client.py seals it, coordinator/submissions/request_handler.py opens it. All other messages
   travel unsealed.
3. A request longer than its method's limit is refused before it is read. The limit of `submit` grows by the
   largest submission of the run, that of `step` by the longest turn.
4. A row names no handler and no caller: p2p answers `reachable` and `gossip`, the two daemons the others.

To add a method: its messages, its row, `serve` in the server, `ask` in the client, its row in the document's table.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from echo2.p2p.discovery import dial_back
from echo2.p2p.discovery.messages import ReachableRequest, ReachableResponse
from echo2.p2p.handlers import Handlers
from echo2.p2p.limits.request_slots import CLASS_OF, OTHER_CLASS
from echo2.p2p.network import Rpc
from echo2.p2p.peer import gossip
from echo2.p2p.wire_types import decode, encode
from echo2.protocol.appeals import AppealRequest, AppealResponse
from echo2.protocol.broadcast_messages import Acknowledgement, PlanRequest, PlanResponse
from echo2.protocol.leases import Lease, LeaseRequest, Received, Submission
from echo2.protocol.ledger_heads import LedgerRequest, LedgerResponse
from echo2.protocol.market import MarketRequest, MarketResponse, PayeeRequest, PayeeResponse
from echo2.protocol.requests import DocumentsRequest, DocumentsResponse, Hello, RankResponse, Welcome
from echo2.protocol.steps import StepRequest, StepResponse
from echo2.protocol.versions import HeadRequest, HeadResponse

SMALL_REQUEST_BYTES: Final = 64 << 10
"""Most bytes of a sealed request, besides the submission that it carries."""
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True)
class Body(Generic[T]):
    """The encoding of a request or an answer. `label`: its name in docs/protocol/requests.md. `decode` raises
    `Malformed`."""

    label: str
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]


def message(type_: type[S]) -> Body[S]:
    """Return the body of a wire type."""
    return Body(type_.__name__, encode, lambda data: decode(data, type_))


def body_of_bytes(label: str) -> Body[bytes]:
    """Return a body that is passed on as bytes: the receiver stores, hashes or decodes it."""
    return Body(label, bytes, bytes)


EMPTY: Final = Body[None]("empty", lambda nothing: b"", lambda data: None)
"""No bytes; any that arrive are ignored."""


@dataclass(frozen=True)
class Method(Generic[Q, A]):
    """One wire method. `direction`: client -> server. `limit`: most bytes of a request. `at_coordinator`:
    the coordinator's limit, where that is lower. `rank`: rank of a sealed method, the order in which the coordinator
    answers, 0 first (coordinator/submissions/request_priority.py)."""

    name: str
    direction: str
    request: Body[Q]
    answer: Body[A]
    limit: int
    at_coordinator: int | None = None
    sealed: bool = False
    rank: int = 0

    @property
    def slots(self) -> str:
        """The class whose request slots this method occupies (p2p/limits/request_slots.py)."""
        return CLASS_OF.get(self.name, OTHER_CLASS)

    def serve(self, handlers: Handlers, handler: Callable[[str, Q], Awaitable[A]], *, limit: int | None = None) -> None:
        """Register the handler of an unsealed method. A request that does not decode fails; other requests go on.
        `limit`: bytes; None: the row's."""

        async def answer(peer: str, data: bytes) -> bytes:
            return self.answer.encode(await handler(peer, self.request.decode(data)))

        handlers.serve(self.name, answer, limit=self.limit if limit is None else limit)

    async def ask(self, rpc: Rpc, peer: str, request: Q, *, timeout: float) -> A:
        """Call an unsealed method of a peer. Raises `Malformed`, `Unreachable` (also after `timeout` s)."""
        data = await rpc.request(peer, self.name, self.request.encode(request), timeout=timeout)
        return self.answer.decode(data)


_NODE, _ANYONE = "node -> coordinator", "anyone -> anyone"

HELLO: Final = Method("hello", _NODE, message(Hello), message(Welcome), SMALL_REQUEST_BYTES, sealed=True, rank=2)
LEASE: Final = Method(
    "lease",
    _NODE,
    message(LeaseRequest),
    body_of_bytes(f"a sealed {Lease.__name__}"),
    SMALL_REQUEST_BYTES,
    sealed=True,
    rank=3,
)
SUBMIT: Final = Method(
    "submit",
    _NODE,
    body_of_bytes(Submission.__name__),
    body_of_bytes(f"a sealed {Received.__name__}, or empty"),
    SMALL_REQUEST_BYTES,
    sealed=True,
    rank=0,
)
VERDICTS: Final = Method("verdicts", _NODE, EMPTY, EMPTY, SMALL_REQUEST_BYTES, sealed=True, rank=1)
"""A request that carries nothing but what travels beside any: a request for verdicts, a report on leases."""
STEP: Final = Method(
    "step", _NODE, message(StepRequest), message(StepResponse), SMALL_REQUEST_BYTES, sealed=True, rank=1
)
ACKNOWLEDGE: Final = Method(
    "acknowledge", _NODE, message(Acknowledgement), EMPTY, SMALL_REQUEST_BYTES, sealed=True, rank=1
)
APPEAL: Final = Method(
    "appeal", _NODE, message(AppealRequest), message(AppealResponse), SMALL_REQUEST_BYTES, sealed=True, rank=3
)
MARKET: Final = Method(
    "market", _NODE, message(MarketRequest), message(MarketResponse), SMALL_REQUEST_BYTES, sealed=True, rank=3
)
PAYEE: Final = Method(
    "payee", _NODE, message(PayeeRequest), message(PayeeResponse), SMALL_REQUEST_BYTES, sealed=True, rank=3
)
RANK: Final = Method("rank", _NODE, EMPTY, message(RankResponse), SMALL_REQUEST_BYTES, sealed=True, rank=3)
PLAN: Final = Method("plan", _NODE, message(PlanRequest), message(PlanResponse), 16 << 10)
FOLLOW: Final = Method("follow", "coordinator -> node", message(PlanResponse), EMPTY, 128 << 10)
HEAD: Final = Method("head", _ANYONE, message(HeadRequest), message(HeadResponse), 4096, at_coordinator=1024)
DOCUMENTS: Final = Method("documents", _ANYONE, message(DocumentsRequest), message(DocumentsResponse), 4096)
LEDGER: Final = Method("ledger", _ANYONE, message(LedgerRequest), message(LedgerResponse), 34 << 10)
REMAKE: Final = Method("remake", "anyone -> coordinator", message(DocumentsRequest), EMPTY, 4096)
REACHABLE: Final = Method(
    dial_back.METHOD, _ANYONE, message(ReachableRequest), message(ReachableResponse), dial_back.MOST_DIAL_BACK_BYTES
)
GOSSIP: Final = Method(gossip.METHOD, _ANYONE, message(gossip.GossipRequest), EMPTY, gossip.MOST_PUSH_BYTES)

METHODS: Final[tuple[Method[Any, Any], ...]] = (
    HELLO, LEASE, SUBMIT, STEP, VERDICTS, ACKNOWLEDGE, APPEAL, MARKET, PAYEE, RANK, PLAN, FOLLOW, HEAD, DOCUMENTS,
    LEDGER, REMAKE, REACHABLE, GOSSIP,
)  # fmt: skip
"""All methods, in the order of docs/protocol/requests.md."""
SEALED: Final = tuple(method for method in METHODS if method.sealed)
