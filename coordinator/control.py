"""Requests of nodes: who speaks, to whom, once. Then the books answer.

Rules, in order
1. A request is signed by exactly one key, and that key is the node. The transport's identity gives no authority.
2. It is addressed to this run's channel key (a hello also to nobody, or to a former channel key of the run), and names
   the method under which it came. Another request to a former channel key is refused; for `TOLD` after a Root was
   issued, the refusal brings all Roots, so that the node goes on under the new key at once.
3. It expires within `SKEW` of the coordinator's clock, before or after: so a node's clock may be wrong by nearly as
   much. Hello alone is answered at any time, because it tells the coordinator's clock.
4. The same id within its life gets the same answer; another request under the same id is refused. The memory of it is
   bounded and ends with the process: beyond it, a lease is known by its nonce and a submission by its bytes.
5. An answer leaves once everything that was written before is committed (coordinator/group_commit.py).
6. Requests are answered in the order of coordinator/rollouts/request_queue.py.
7. A banned or suspended node hears why, and until when, whatever it asks: it costs the check of one signature
   (coordinator/accounts/). A node that does not speak this run's protocol hears what to update to. One that never said
   hello gets no lease: a hello is what shows that it knows the run's tasks. Once is enough, also after a restart.
8. A hello brings the record of the node's addresses (p2p/records.py), signed by the node itself. One that is over or
   from ahead is not taken, as the node may not know the time yet; it comes with the next hello.

Everything but `serve` is plain code with the time as an argument.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import blake3
import msgspec

from coordinator.accounts.standing import Accounts, Standing, minute
from coordinator.leases import admitted
from coordinator.rollouts.request_queue import RequestQueue
from coordinator.roster import Roster
from p2p.envelope import open_sealed, peek
from p2p.errors import BadSignature, Malformed, Stale
from p2p.identity import peer_id
from p2p.limits.origin import NOWHERE, Origin
from p2p.messages import (
    Acknowledgement,
    Answer,
    Hello,
    LeaseAsk,
    Refusal,
    Request,
    RunSpec,
    SubmitAnswer,
    VerdictsAsk,
    Welcome,
    decode,
    encode,
)
from p2p.messages import Verdicts as VerdictsAnswer
from p2p.multiaddr import Way, way_of_asker
from p2p.network import Network
from p2p.records import Known, opened
from protocol.refusals import refusal

SKEW = 600_000
"""Milliseconds between the coordinator's now and a request's expiry, at most."""
TOLD = 24 * 3600 * 1000
"""Milliseconds; rule 2."""
MOST_ANSWERS = 4096
MOST_ANSWER_BYTES = 64 << 20
METHODS = ("hello", "lease", "submit", "verdicts", "acknowledge")
SMALL = 64 << 10
"""Bytes of a request that is no submission."""


class Books(Protocol):
    """What control asks of coordinator/books.py."""

    @property
    def roster(self) -> Roster: ...

    @property
    def accounts(self) -> Accounts: ...

    def lease(self, node: bytes, ask: LeaseAsk, now: int, origin: Origin) -> bytes | Refusal: ...

    def submit(self, node: bytes, data: bytes, now: int) -> SubmitAnswer | Refusal: ...

    def verdicts(self, node: bytes, ask: VerdictsAsk) -> VerdictsAnswer: ...

    def acknowledge(self, node: bytes, message: Acknowledgement, now: int) -> None: ...

    async def durable(self) -> None: ...


class Papers(Protocol):
    """What a hello is answered with: sealed documents, and records of peers."""

    def roots(self) -> list[bytes]: ...

    def runspec(self) -> bytes: ...

    def head(self) -> bytes | None: ...

    def peers(self, now: int) -> list[bytes]: ...


class Answers:
    """Answers given, by (node, request id): the oldest are forgotten first."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[bytes, bytes], tuple[bytes, bytes, int]] = OrderedDict()
        self._bytes = 0

    def find(self, node: bytes, request: bytes) -> tuple[bytes, bytes] | None:
        """(hash of the request, answer)."""
        known = self._known.get((node, request))
        return None if known is None else known[:2]

    def keep(self, node: bytes, request: bytes, digest: bytes, answer: bytes, expires: int, now: int) -> None:
        self._known[node, request] = (digest, answer, expires)
        self._bytes += len(answer)
        while self._known and (len(self._known) > MOST_ANSWERS or self._bytes > MOST_ANSWER_BYTES or self._over(now)):
            _, (_, given, _) = self._known.popitem(last=False)
            self._bytes -= len(given)

    def _over(self, now: int) -> bool:
        return next(iter(self._known.values()))[2] + SKEW < now


class Control:
    """`recipient`: this run's channel key, 32 bytes; `former`: its keys before, which are told the Roots until `told`
    (ms). `clock`: milliseconds since the Unix epoch."""

    def __init__(self, books: Books, papers: Papers, spec: RunSpec, recipient: bytes, clock: Callable[[], int]) -> None:
        self._books = books
        self._papers = papers
        self._spec = spec
        self.recipient = recipient
        self.former: frozenset[bytes] = frozenset()
        self.told = 0
        self._clock = clock
        self._answers = Answers()

    def serve(self, network: Network, submission_limit: int) -> None:
        """Answer on a network. `submission_limit`: bytes, see admission."""
        queue = RequestQueue(self._clock, lambda: network.unanswered(METHODS))
        for method in METHODS:

            async def handle(peer: str, data: bytes, method: str = method) -> bytes:
                origin = network.origin(peer)
                later = await queue.enter(method, origin.party)
                if later is not None:
                    return _encoded(refusal("busy", retry_after=later))
                answer = self.answer(method, data, self._clock(), way_of_asker(peer), origin)
                await self._books.durable()
                return answer

            network.serve(method, handle, limit=SMALL + (submission_limit if method == "submit" else 0))

    def answer(self, method: str, data: bytes, now: int, way: Way = "direct", origin: Origin = NOWHERE) -> bytes:
        """An encoded Answer to a sealed Request that came in under `method`, by `way`, from `origin`."""
        try:
            node, request = self._opened(data)
        except Malformed as error:
            return _encoded(refusal("malformed", what="request", detail=error))
        except BadSignature as error:
            return _encoded(refusal("bad-signature", detail=error))
        refused = self._refused(node, request, method, now)
        if refused is not None:
            return _encoded(refused)
        digest = blake3.blake3(data).digest()
        known = self._answers.find(node, request.id)
        if known is not None:
            return known[1] if known[0] == digest else _encoded(refusal("id-reused"))
        try:
            result = self._dispatch(node, request, now, origin)
        except Malformed as error:
            result = refusal("malformed", what=f"{method} request", detail=error)
        self._books.roster.sightings.came(node, way, now)
        verdicts = None if request.verdicts is None else self._books.verdicts(node, request.verdicts)
        answer = _encoded(result, verdicts)
        self._answers.keep(node, request.id, digest, answer, request.expires, now)
        return answer

    def _opened(self, data: bytes) -> tuple[bytes, Request]:
        sealed = peek(data)
        if len(sealed.signatures) != 1:
            raise BadSignature(f"{len(sealed.signatures)} signatures")
        node = sealed.signatures[0].key
        return node, decode(open_sealed(data, "request", self._spec.run, [node]), Request)

    def _refused(self, node: bytes, request: Request, method: str, now: int) -> Refusal | None:
        # A node that says hello for the first time does not know the Root yet, and so no channel key: zeros.
        known = {self.recipient, bytes(32), *self.former} if method == "hello" else {self.recipient}
        if request.recipient not in known:
            wrong = refusal("wrong-recipient")
            told = request.recipient in self.former and now < self.told
            return msgspec.structs.replace(wrong, roots=self._papers.roots()) if told else wrong
        if request.method != method:
            return refusal("wrong-method", asked=request.method, method=method)
        off = abs(request.expires - now)
        if off > SKEW and method != "hello":
            return refusal("clock", off=off / 1000, most=SKEW / 1000)
        standing = self._books.accounts.of(node, now)
        if standing.suspended_until is not None:
            return _out(standing, standing.suspended_until, now)
        if method == "lease" and not self._books.roster.introduced(node):
            return refusal("no-hello")
        return None

    def _dispatch(self, node: bytes, request: Request, now: int, origin: Origin) -> msgspec.Struct | bytes:
        if request.method == "hello":
            return self._hello(node, decode(request.body, Hello), now)
        if request.method == "lease":
            return self._books.lease(node, decode(request.body, LeaseAsk), now, origin)
        if request.method == "submit":
            return self._books.submit(node, request.body, now)
        if request.method == "verdicts":
            return self._books.verdicts(node, decode(request.body, VerdictsAsk))
        if request.method == "acknowledge":
            self._books.acknowledge(node, decode(request.body, Acknowledgement), now)
            return b""
        return refusal("unknown-method", method=request.method)

    def _hello(self, node: bytes, hello: Hello, now: int) -> Welcome | Refusal:
        low, high = self._spec.protocols
        if hello.protocols[0] > high or hello.protocols[1] < low:
            return refusal("protocol", low=low, high=high, theirs="{}-{}".format(*hello.protocols))
        known = {(task.name, task.version) for task in hello.tasks}
        for task in self._spec.tasks:
            if (task.name, task.version) not in known:
                return refusal("task-version", task=task.name, version=task.version)
        if not admitted(hello.engine, self._spec.engines):
            return refusal("engine", engine=hello.engine, admitted=", ".join(self._spec.engines))
        try:
            record = self._record(node, hello.record, now)
        except BadSignature as error:
            return refusal("bad-signature", detail=error)
        self._books.roster.hello(node, hello, record, now)
        papers = self._papers
        return Welcome(
            roots=papers.roots(), runspec=papers.runspec(), head=papers.head(), peers=papers.peers(now), now=now
        )

    def _record(self, node: bytes, sealed: bytes, now: int) -> Known | None:
        """Rule 8. Raises `Malformed`, `BadSignature`."""
        try:
            known = opened(sealed, self._spec.run, now)
        except Stale:
            return None
        if known.peer != peer_id(node):
            raise BadSignature(f"a record of {known.peer}")
        return known


def _out(standing: Standing, until: int, now: int) -> Refusal:
    """Why a key that is banned or suspended gets nothing."""
    if standing.code == "banned":
        return refusal("banned", why=standing.why)
    return refusal("suspended", retry_after=until - now, until=minute(until), reason=standing.code)


def _encoded(result: msgspec.Struct | bytes, verdicts: VerdictsAnswer | None = None) -> bytes:
    if isinstance(result, Refusal):
        return encode(Answer(refusal=result, verdicts=verdicts))
    return encode(Answer(body=result if isinstance(result, bytes) else encode(result), verdicts=verdicts))
