"""Handle the requests of nodes: authenticate each, answer a repeated one from memory, pass the others to their methods.

Rules, in order
1. A request is signed by exactly one key, and that key is the node. The transport's identity gives no authority.
2. A request is addressed to this run's channel key, and names the method under which it came. A hello may also be
   addressed to no key or to a former channel key. Other requests to a former channel key are refused. For
   `ROOTS_TOLD_MS` after the newest Root was issued this refusal contains all Roots, so that the node continues under
   the new key at once.
3. A request expires within `SKEW` of the coordinator's clock, before or after, so a node's clock may be wrong by nearly
   as much. Only a hello is answered at any time: its answer states the coordinator's clock.
4. The same request id, until it expires, gets the same answer; another request under the same id is refused. The
   memory of answers is bounded and ends with the process. Without it, a repeated lease request is recognised by its
   nonce and a repeated submission by its bytes.
5. An answer is sent once everything that was written before is committed (coordinator/database/group_commit.py).
6. Requests are answered in the order of coordinator/submissions/request_priority.py.
7. Any request of a banned or suspended node is refused with the reason, and with the end of a suspension; this costs
   the check of one signature. The exceptions are those of coordinator/submissions/barred_keys.py. A node with another
   protocol is told the versions to update to. A node that never said hello gets no lease, since the hello shows that it
   can work for the run's tasks. One hello is enough, also across restarts.
8. A hello contains the record of the node's addresses (p2p/discovery/peer_records.py), signed by the node itself. An
   expired record, or one issued in the future, is ignored: the node may not know the time yet, and sends a new record
   with its next hello.
9. Open leases are extended by an absence before anything else (coordinator/leases/absence.py). A submission wakes
   the scorer.
10. A report on the node's open leases is taken before its request: leases that it gives back make room for the one that
   it asks for.
11. Of several daemons with one key one gets leases, and the market's answers; each answer tells the others
   (coordinator/nodes/key_fence.py). The report and the hello of a daemon that is fenced change nothing.
12. A turn that waits for the environment is answered within `SERVED_WITHIN`, if the environment is that quick; else its
   request is refused as `step-pending`. That refusal alone is not remembered under its request's id (rule 4).

Everything but `serve` is plain code with the time as an argument.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import blake3
import msgspec

from echo2.coordinator.accounts.key_successor import succeed
from echo2.coordinator.leases.absence import Absence
from echo2.coordinator.metrics.history import History
from echo2.coordinator.nodes.key_fence import FENCED_RETRY_MS, KeyFence
from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.run.setup import Run
from echo2.coordinator.submissions import barred_keys
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.submissions.request_priority import AdmissionQueue
from echo2.coordinator.submissions.response_log import MOST_EXPIRY_SKEW_MS, ResponseLog
from echo2.coordinator.verdicts.verdict_report import Basis, KnownStatistics, basis_of
from echo2.coordinator.verification.verification import submission_limit
from echo2.p2p.discovery.peer_records import VerifiedRecord, verify
from echo2.p2p.envelope import open_signed
from echo2.p2p.errors import BadSignature, Malformed, Stale
from echo2.p2p.handlers import Handlers
from echo2.p2p.identity import check_peer_id, peer_id, public_bytes
from echo2.p2p.limits.origin import LOCAL_ORIGIN, Origin
from echo2.p2p.multiaddr import Route, route_of_requester
from echo2.p2p.wire_types import decode, encode
from echo2.protocol import succession
from echo2.protocol.appeals import AppealRequest, AppealResponse, CheckAnswer
from echo2.protocol.authority import RunSpec
from echo2.protocol.broadcast_messages import Acknowledgement
from echo2.protocol.engine_classes import admits
from echo2.protocol.leases import LeaseRequest, VerdictsRequest
from echo2.protocol.leases import VerdictsResponse as VerdictsAnswer
from echo2.protocol.ledger_heads import HeadReference
from echo2.protocol.methods import (
    ACKNOWLEDGE,
    APPEAL,
    HELLO,
    LEASE,
    MARKET,
    RANK,
    SEALED,
    STEP,
    SUBMIT,
    VERDICTS,
    A,
    Method,
    Q,
)
from echo2.protocol.refusals import FENCED_CODE, STEP_PENDING, refusal
from echo2.protocol.requests import Hello, Refusal, Request, Response, Rival, Welcome
from echo2.protocol.steps import StepRequest, StepResponse
from echo2.protocol.task_kinds import is_played

ROOTS_TOLD_MS = 24 * 3600 * 1000
"""Milliseconds for which refusals contain the Roots (rule 2)."""
SERVED_WITHIN = 0.25
"""Seconds for which a request waits for the environment (rule 12)."""
MOST_CLASSES = 256


class RequestContext(NamedTuple):
    """The circumstances of a request: the node that signed it, when it came (ms), from where, from which daemon of the
    node, and whether it came in its time (rule 3)."""

    node: bytes
    now: int
    origin: Origin
    instance: bytes = b""
    in_time: bool = True


class _OpenedRequest(NamedTuple):
    """A request whose signature was verified, and the hash of its bytes."""

    request: Request
    digest: bytes


class _WaitingStep(NamedTuple):
    """A request that waits for the environment. `answered`: set with the answer."""

    request: _OpenedRequest
    context: RequestContext
    answered: asyncio.Event


Decide = Callable[[RequestContext, bytes], bytes | Refusal]


class GreetingPorts(NamedTuple):
    """Receivers of a greeting. `on_ledger_head`: takes peer id and party of a node, and the newest head of the
    ledger that it says it took. `on_replaced`: takes a key that was replaced, whether it disputes that, and the time,
    ms; returns a sentence on its balance."""

    on_ledger_head: Callable[[Origin, HeadReference], None] = lambda origin, head: None
    on_replaced: Callable[[bytes, bool, int], str] = lambda node, disputes, now: "Its points stay with it."


UNHEARD_GREETINGS: Final = GreetingPorts()


class RequestHandler:
    """The coordinator's side of the methods hello, lease, submit, step, verdicts, acknowledge, appeal and rank.

    `recipient`: this run's channel key, 32 bytes. `former`: its former channel keys. `told`: time until which, ms,
    refusals of requests to a former key contain the Roots."""

    def __init__(
        self,
        run: Run,
        group_service: GroupService,
        publisher: Publisher,
        history: History,
        absence: Absence,
        clock: Callable[[], int],
        ports: GreetingPorts = UNHEARD_GREETINGS,
    ) -> None:
        """Handle the requests of one run. `clock`: milliseconds since the Unix epoch."""
        self._run = run
        self._group_service = group_service
        self._publisher = publisher
        self._history = history
        self._arrived = group_service.arrived
        self._absence = absence
        self._clock = clock
        self._spec = run.runspec
        self._answers = ResponseLog()
        self._fence = KeyFence(group_service.database, group_service.registry.sightings, clock())
        self._statistics = KnownStatistics()
        self._waiting = 0
        """Requests that wait for the environment on purpose: they are no load (request_priority.py, rule 3)."""
        self._waits: _WaitingStep | None = None
        """The request just refused as `step-pending`, which may wait for its answer (rule 12)."""
        self._answered: asyncio.Event | None = None
        """Set with the answer to the turn that was asked for last; None: it waits for none."""
        self._decide: dict[str, Decide] = {
            HELLO.name: _wrap_decision(HELLO, self.hello),
            LEASE.name: _wrap_decision(LEASE, self.lease),
            SUBMIT.name: _wrap_decision(SUBMIT, self.submit),
            STEP.name: _wrap_decision(STEP, self.step),
            VERDICTS.name: _wrap_decision(VERDICTS, lambda context, nothing: None),
            ACKNOWLEDGE.name: _wrap_decision(ACKNOWLEDGE, self.acknowledge),
            APPEAL.name: _wrap_decision(APPEAL, self.appeal),
            RANK.name: _wrap_decision(RANK, lambda asked, nothing: group_service.registry.place_of(asked.node)),
        }
        self.on_ledger_head, self.on_replaced = ports
        self.take_keys()

    def also_answers(self, method: Method[Q, A], answer: Callable[[RequestContext, Q], A | Refusal]) -> None:
        """Answer one more method. A method that nobody answers is refused as `unknown-method`."""
        self._decide[method.name] = _wrap_decision(method, answer)

    def take_keys(self) -> None:
        """Continue under the channel key of the run's newest Root (rule 2)."""
        chain = self._run.chain
        self.recipient = public_bytes(self._run.keys.channel)
        self.former = frozenset(key for root in chain for key in root.roles["channel"].keys) - {self.recipient}
        self.told = chain[-1].issued + ROOTS_TOLD_MS

    def serve(self, handlers: Handlers, origin_of: Callable[[str], Origin]) -> None:
        """Register the handlers of all methods. `origin_of`: see `p2p.network.Inbound`."""
        names = [method.name for method in SEALED]
        queue = AdmissionQueue(self._clock, lambda: handlers.count_unanswered(names) - self._waiting)
        for method in SEALED:

            async def handle(peer: str, data: bytes, method: str = method.name) -> bytes:
                origin = origin_of(peer)
                later = await queue.enter(method, origin.party)
                if later is not None:
                    return _encode_response(refusal("busy", retry_after=later))
                route = route_of_requester(peer)
                answer = self.answer(method, data, self._clock(), route, origin)
                waits, self._waits = self._waits, None
                if waits is not None and await self._answered_in_time(waits):
                    answer = self._answered_later(waits, self._clock())
                await self._group_service.durable()
                return answer

            handlers.serve(method.name, handle, limit=method.limit + _room(method, self._spec))

    def answer(
        self, method: str, data: bytes, now: int, route: Route = "direct", origin: Origin = LOCAL_ORIGIN
    ) -> bytes:
        """Return the encoded Response to a sealed Request that came under `method`, by `route`, from `origin`."""
        self._absence.check(now)
        try:
            node, request = self._open_request(data)
        except Malformed as error:
            return _encode_response(refusal("malformed", what="request", detail=error))
        except BadSignature as error:
            return _encode_response(refusal("bad-signature", detail=error))
        refused = self._refusal_of(node, request, method, now)
        if refused is not None:
            return _encode_response(refused, rival="works" if refused.code == FENCED_CODE else "")
        digest = blake3.blake3(data).digest()
        known = self._answers.find(node, request.id)
        if known is not None:
            return known[1] if known[0] == digest else _encode_response(refusal("id-reused"))
        in_time = abs(request.expires - now) <= MOST_EXPIRY_SKEW_MS
        context = RequestContext(node, now, origin, request.instance or b"", in_time)
        report = request.leases if self._fence.place(node, context.instance, now) == "holder" else None
        ended = [] if report is None else self._group_service.take_report(node, report, now)
        try:
            decide = self._decide.get(method)
            if decide is None:
                result: bytes | Refusal = refusal("unknown-method", method=method)
            else:
                result = decide(context, request.body)
        except Malformed as error:
            result = refusal("malformed", what=f"{method} request", detail=error)
        self._group_service.registry.sightings.seen_by(node, route, now)
        return self._remember_response(_OpenedRequest(request, digest), context, result, ended)

    async def _answered_in_time(self, waits: "_WaitingStep") -> bool:
        """Wait for the environment; tell whether it has answered (rule 12)."""
        self._waiting += 1
        try:
            return await _within(SERVED_WITHIN, waits.answered)
        finally:
            self._waiting -= 1

    def _answered_later(self, waits: "_WaitingStep", now: int) -> bytes:
        """Return the encoded Response to a step that has waited for the environment."""
        context = waits.context._replace(now=now)
        return self._remember_response(
            waits.request, context, self._decide[STEP.name](context, waits.request.request.body), []
        )

    def _remember_response(
        self, opened: "_OpenedRequest", context: RequestContext, result: bytes | Refusal, ended: Sequence[bytes]
    ) -> bytes:
        """Return the encoded Response, and remember it (rules 4 and 12)."""
        request = opened.request
        verdicts = None if request.verdicts is None else self.verdicts(context, request.verdicts)
        wait = (result.retry_after or 0) if isinstance(result, Refusal) else 0
        if context.in_time:
            self._fence.on_message(context.node, context.instance, context.now, wait)
        # A refused hello was not looked at by the fence: a restart would count as another daemon of its own key.
        unplaced = isinstance(result, Refusal) and request.method == HELLO.name
        rival: Rival = "" if unplaced else self._fence.rival(context.node, context.instance, context.now)
        answer = _encode_response(result, verdicts, ended, rival)
        if not isinstance(result, Refusal) or result.code != STEP_PENDING:
            self._answers.keep(context.node, request.id, opened.digest, answer, request.expires, context.now)
        elif self._answered is not None:
            self._waits = _WaitingStep(opened, context, self._answered)
        return answer

    def _open_request(self, data: bytes) -> tuple[bytes, Request]:
        node, payload = open_signed(data, "request", self._spec.run)
        return node, decode(payload, Request)

    def _refusal_of(self, node: bytes, request: Request, method: str, now: int) -> Refusal | None:
        # Zeros: in its first hello a node does not know the Root yet, and so no channel key.
        known = {self.recipient, bytes(32), *self.former} if method == "hello" else {self.recipient}
        if request.recipient not in known:
            wrong = refusal("wrong-recipient")
            told = request.recipient in self.former and now < self.told
            return msgspec.structs.replace(wrong, roots=list(self._run.roots)) if told else wrong
        if request.method != method:
            return refusal("wrong-method", asked=request.method, method=method)
        off = abs(request.expires - now)
        if off > MOST_EXPIRY_SKEW_MS and method != "hello":
            return refusal("clock", off=off / 1000, most=MOST_EXPIRY_SKEW_MS / 1000)
        accounts = self._group_service.accounts
        standing = accounts.of(node, now)
        successor = barred_keys.successor(accounts.account(node))
        if successor and method != HELLO.name:
            return self._refuse_replaced_key(node, successor, False, now)
        if standing.suspended_until is not None and not barred_keys.is_served(standing, accounts.account(node), method):
            return barred_keys.shut_out(standing, standing.suspended_until, now)
        if method not in (LEASE.name, MARKET.name):
            return None
        place = self._fence.place(node, request.instance or b"", now)
        if place == "free" or not self._group_service.registry.is_introduced(node):
            return refusal("no-hello")
        if place == "fenced":
            self._fence.on_refusal(node, now)
            return refusal("fenced", retry_after=FENCED_RETRY_MS)
        return None

    def _refuse_replaced_key(self, node: bytes, successor: str, disputes: bool, now: int) -> Refusal:
        """Return the refusal for a key that was replaced, with what becomes of its balance."""
        return refusal("replaced", successor=successor, balance=self.on_replaced(node, disputes, now))

    def hello(self, context: RequestContext, hello: Hello) -> Welcome | Refusal:
        """Register a node that can take part (rules 7 and 8). Raises `Malformed` for a malformed record."""
        successor = barred_keys.successor(self._group_service.accounts.account(context.node))
        if successor:
            return self._refuse_replaced_key(context.node, successor, hello.disputes, context.now)
        low, high = self._spec.protocols
        if hello.protocols[0] > high or hello.protocols[1] < low:
            return refusal("protocol", low=low, high=high, theirs="{}-{}".format(*hello.protocols))
        known = {(task.name, task.version) for task in hello.tasks}
        for task in self._spec.tasks:
            if not is_played(task.kind, task.name, task.version, kinds=hello.kinds, tasks=known):
                return refusal("task-version", task=task.name, version=task.version)
        if not admits(hello.engine, self._spec.engines):
            admitted = self._spec.engines
            refused = refusal("engine", engine=hello.engine, admitted=", ".join(admitted))
            return msgspec.structs.replace(refused, engines=list(admitted))
        registry = self._group_service.registry
        try:
            record = self._record(context, hello.record)
        except BadSignature as error:
            return refusal("bad-signature", detail=error)
        shown, succeeded = hello.name, None
        daemon = (context.node, context.instance)
        if self._fence.takes(*daemon, hello.after, context.now, in_time=context.in_time):
            shown = registry.register(context.node, hello, record, context.now, context.instance)
            succeeded = self._take_succession(context, hello)
        if hello.ledger is not None:
            peer = peer_id(context.node)
            self.on_ledger_head(Origin(peer, context.origin.party or peer), hello.ledger)
        return Welcome(
            succession=succeeded,
            roots=list(self._run.roots),
            runspec=self._run.runspec_sealed,
            head=self._publisher.sealed_head,
            peers=[known.sealed for known in registry.records(context.now)],
            now=context.now,
            calibrated=self._group_service.classes.names[:MOST_CLASSES],
            shown="" if shown == hello.name else shown,
        )

    def _take_succession(self, context: RequestContext, hello: Hello) -> str | None:
        if hello.succession is None:
            return None
        try:
            statement = succession.open_succession(hello.succession, self._spec.run, context.node)
        except (BadSignature, Malformed) as error:
            return f"The statement of the old key does not hold: {error}"
        service = self._group_service
        return succeed(service.accounts, statement, context.now, waits=service.leases.has_undecided)

    def lease(self, context: RequestContext, request: LeaseRequest) -> bytes | Refusal:
        """Give a node a sealed Lease, or refuse it."""
        self._history.first_asked(request.version, context.now)
        return self._group_service.lease(context.node, request, context.now, context.origin)

    def submit(self, context: RequestContext, data: bytes) -> bytes | Refusal:
        """Receive a submission, and wake the scorer (rule 9)."""
        answer = self._group_service.submissions.submit(context.node, data, context.now)
        self._arrived.set()
        return answer

    def step(self, context: RequestContext, request: StepRequest) -> StepResponse | Refusal:
        """Take a sampled turn of an episode, or answer it."""
        steps = self._group_service.steps
        answer = steps.step(context.node, request, context.now)
        self._answered = steps.answer_event(request.lease, request.sample)
        return answer

    def verdicts(self, context: RequestContext, request: VerdictsRequest) -> VerdictsAnswer:
        """Return the receipts of the leases that the node names, and note those that it confirms."""
        return self._group_service.submissions.verdicts(context.node, request)

    def acknowledge(self, context: RequestContext, message: Acknowledgement) -> None:
        """Note that the node has applied a version. Raises `Malformed` where a sender is no peer id: page and API show
        the senders."""
        for taken in message.taken:
            for sender in taken.senders:
                check_peer_id(sender.peer)
        self._group_service.acknowledge(context.node, message, context.now)

    def appeal(self, context: RequestContext, request: AppealRequest) -> AppealResponse | Refusal:
        """Tell a node the basis of the verdict on a lease of its own, and take its appeal."""
        service = self._group_service
        record = service.leases.find(request.lease)
        if record is None:
            return refusal("unknown-lease")
        if record.lease.node != context.node:
            return refusal("not-owner")
        refused = service.reviews.appeal(context.node, request.lease, context.now) if request.ask else None
        if refused is not None:
            return refused
        self._arrived.set()
        basis = basis_of(service.database, service.classes, request.lease, self._statistics)
        return refusal("no-appeal", detail="there is no verdict yet") if basis is None else _appeal_answer(basis)

    def _record(self, context: RequestContext, sealed: bytes) -> VerifiedRecord | None:
        """Verify the record of a hello; None if it is not valid now (rule 8). Raises `Malformed`, `BadSignature`."""
        try:
            known = verify(sealed, self._spec.run, context.now)
        except Stale:
            return None
        if known.peer != peer_id(context.node):
            raise BadSignature(f"the record is of another peer, {known.peer}")
        return known


def _appeal_answer(basis: Basis) -> AppealResponse:
    """Return the basis of a verdict as its node is told it."""
    reviews, receipt = basis.reviews, basis.receipt
    states = [review.state for review in reviews]
    return AppealResponse(
        code=receipt.code,
        reason=receipt.reason,
        statistic=basis.statistic[:2000],
        threshold=basis.threshold,
        calibration=basis.lease.calibration,
        stored=basis.stored,
        state="waiting" if "waiting" in states else states[0] if states else "none",
        answers=[
            CheckAnswer(by=one.by, code=one.code, reason=one.reason[:2000], at=one.answered)
            for one in reviews
            if one.state != "waiting"
        ],
        reversed=None if basis.reversal is None else basis.reversal.paid,
    )


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Tell whether an event comes within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _room(method: Method[Any, Any], spec: RunSpec) -> int:
    """Return the bytes by which the requests of a method may exceed its row's limit in a run."""
    if method is SUBMIT:
        return submission_limit(spec)
    return 5 * spec.limit if method is STEP else 0


def _wrap_decision(method: Method[Q, A], decide: Callable[[RequestContext, Q], A | Refusal]) -> Decide:
    """Return `decide` as a function from the encoded request to the encoded answer. It raises `Malformed`."""

    def decided(context: RequestContext, body: bytes) -> bytes | Refusal:
        answer = decide(context, method.request.decode(body))
        return answer if isinstance(answer, Refusal) else method.answer.encode(answer)

    return decided


def _encode_response(
    result: bytes | Refusal, verdicts: VerdictsAnswer | None = None, ended: Sequence[bytes] = (), rival: Rival = ""
) -> bytes:
    if isinstance(result, Refusal):
        return encode(Response(refusal=result, verdicts=verdicts, ended=list(ended), rival=rival))
    return encode(Response(body=result, verdicts=verdicts, ended=list(ended), rival=rival))
