"""The client of the coordinator: find it, greet it, send requests, find it again after a break.

Rules
1. Candidates are tried in the order, and within the limits, of p2p/discovery/operator_addresses.py.
   a. Connected by a later route, the client tries an address of an earlier one again at growing intervals, and switches
      to one that works. An inbound connection of the coordinator is used as well.
   b. Between rounds the client asks other peers for a newer Head, which may name a new address.
2. A peer counts as the coordinator for as long as its answers verify. The connection to a peer that shows a Root of
   another run, or signs an invalid lease, is dropped at once. No answer is trusted because of its connection.
3. A request is sealed once. After each break the same bytes are sent again, for `REQUEST_LIFE` seconds, so the
   coordinator carries out each request once.
4. A request for verdicts travels inside a request for a lease or a submission, or inside one of the method "verdicts",
   which has nothing else (`rider`). So do reports on the node's open leases (`reporter`).
5. A refusal of the greeting without `retry_after` ends the node: the run refuses its work. Refusals are not signed. So
   a refusal that would end the node, or say that the run is over, counts only from a peer that the newest Head here
   names, if it names any: the thief of a former identity ends no node.
6. The run's channel key may change:
   a. A refusal that carries newer Roots of the run is followed by the same request under the new key. A refusal that
      carries none is followed by a greeting, whose answer has all Roots.
   b. An answer not signed under the newest Root here may be signed under a later one. So the client first asks for
      later Roots (`behind`) and repeats the request; without one, the answer counts as false.
7. A former network identity of the coordinator refuses each greeting as `moved`, with all Roots. The client then asks
   it for the newest Head, and tries the addresses of that Head first. The Head must verify under the newest Root here.
"""

import asyncio
import math
import os
import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog

from echo2.engines.registry import remedy_for
from echo2.node import newer_build
from echo2.node.errors import RefusedByRun, TrustFailure
from echo2.node.run_context import RunContext
from echo2.node.trust.trusted_set import RootExpired
from echo2.p2p.discovery.operator_addresses import OperatorAddresses
from echo2.p2p.envelope import seal
from echo2.p2p.errors import Busy, Malformed, P2PError, PeerFault, Unreachable
from echo2.p2p.limits.dial_backoff import DialLimited
from echo2.p2p.multiaddr import ROUTES, Route, peer_of, route_of
from echo2.p2p.network import Links, Rpc
from echo2.p2p.wire_types import decode, encode
from echo2.protocol import refusals
from echo2.protocol.authority import WrongRoot
from echo2.protocol.leases import LeaseReport, VerdictsRequest, VerdictsResponse
from echo2.protocol.methods import HEAD, HELLO, LEASE, SUBMIT, VERDICTS, A, Method, Q
from echo2.protocol.requests import Hello, Refusal, Request, Response, Welcome
from echo2.protocol.versions import HeadRequest
from echo2.runtime.backoff import Backoff

REQUEST_LIFE: Final = 30.0
"""Seconds for which a request without an answer is sent again."""
COORDINATOR_ANSWER_SECONDS: Final = 15.0
"""Seconds to wait for one answer."""
DIAL_BACKOFF: Final = Backoff(0.5, 20.0, jitter=0.5)
"""Seconds between two rounds of dialling."""
TRIES_UNTIL_SAID: Final = 2
"""Rounds of dialling in vain after which the log says that the node keeps trying."""
BETTER_ROUTE_BACKOFF: Final = Backoff(15.0, 300.0)
"""Seconds between two trials of an address of a better route; they double each time."""
CARRIERS: Final = (LEASE.name, SUBMIT.name, VERDICTS.name)
"""Methods whose requests carry requests for verdicts."""
FINAL_ANSWERS: Final = ("end", "other engine", "finish")
"""A node's answer to refusals that end its work (protocol/refusals.py)."""
BUSY_AGAIN: Final = 1.0
"""Seconds until a request is repeated to a busy coordinator; the connection stays up."""
_CLOCK_SKEW_MS: Final = 60_000
"""Milliseconds added to a request's expiry, for clock skew."""

_log = structlog.get_logger("node")


class RequestRefused(Exception):
    """The coordinator refused a request. `refusal`: its code and sentence."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal


class Rider(Protocol):
    """The source of the requests for verdicts that travel inside other requests (node/rollouts/outbox_relay.py)."""

    def question(self) -> VerdictsRequest | None:
        """Return the request for verdicts to send now, None for none."""

    def on_answer(self, ask: VerdictsRequest, answer: VerdictsResponse) -> None:
        """Store the answer to `ask`. Raises `PeerFault`."""

    def release(self, ask: VerdictsRequest) -> None:
        """Let another request carry one: that with `ask` has ended, with an answer or without."""


class LeaseReporter(Protocol):
    """The source of the reports on open leases that travel inside requests (node/rollouts/engine_workers.py)."""

    def report(self, method: str) -> LeaseReport | None:
        """Return the report to send with a request of this method, None for none."""

    def on_report(self, report: LeaseReport, ended: Sequence[bytes]) -> None:
        """Record that the coordinator has taken a report, and give up the leases of it that have ended."""


class Greeter(Protocol):
    """The part of the node that describes it to the coordinator, and searches for newer documents
    (node/connectivity.py)."""

    async def hello(self) -> Hello:
        """Return a greeting that describes this node now."""

    async def reconsider(self, refusal: Refusal) -> bool:
        """Adapt to a refusal of the greeting, if possible; tell whether to greet again."""

    async def on_welcome(self, peer: str, welcome: Welcome) -> None:
        """Handle the answer to a greeting, whose Roots and RunSpec are already adopted."""

    async def search(self) -> None:
        """Dial remembered peers, and ask peers for a newer Head, while disconnected."""

    async def learn(self) -> None:
        """Ask a few peers and the coordinator for newer Heads and Roots."""


class CoordinatorClient:
    """The connection to the coordinator, and requests over it. `peer`: its peer id while connected. `trouble`: why
    there is none, one sentence. `failures`: route -> why it failed, until it works. `lies`: why each of the last 16
    false answers was false. `busy`: how often the coordinator had no slot for a request. `addresses`: its addresses, as
    this node dials them."""

    def __init__(
        self,
        rpc: Rpc,
        links: Links,
        context: RunContext,
        greeter: Greeter,
        *,
        routes: Sequence[Route] = ROUTES,
    ) -> None:
        """`routes`: the routes that the owner admits, the preferred one first."""
        self._rpc, self._links = rpc, links
        self._context, self._greeter = context, greeter
        self._trust_store, self._clock = context.trust_store, context.clock
        self._random = random.Random(context.seed)
        self._routes = list(routes)
        self.addresses = OperatorAddresses(links, context.node, routes, self._operator_addresses)
        self._address = ""
        """Address at which the present coordinator answered."""
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._down.set()
        self.peer: str | None = None
        self.trouble = "not connected yet"
        self.lies: list[str] = []
        self.failures: dict[str, str] = {}
        self.busy = 0
        self.rider: Rider | None = None
        self.reporter: LeaseReporter | None = None
        self._next_try: float | None = None
        """When the coordinator is dialled next, by the loop's clock; None: it was not missed yet."""
        self._moved_to: list[str] = []
        """Addresses from the Head of a former identity (rule 7)."""

    def _operator_addresses(self) -> list[str]:
        """Return the addresses that Heads and the invite name, the newest first."""
        head = self._trust_store.trusted.head
        return [*self._moved_to, *(head.value.addresses if head else []), *self._context.invite.addresses]

    async def run(self) -> None:
        """Keep the node connected until cancelled. Raises `RefusedByRun`, `TrustFailure`."""
        failures = 0
        while True:
            if await self._connect():
                failures = 0
                await self._hold()
            failures += 1
            await self._greeter.search()
            pause = DIAL_BACKOFF.delay(failures, self._random.random())
            again = asyncio.get_running_loop().time() + pause
            self._next_try = again if failures >= TRIES_UNTIL_SAID else None
            if failures == TRIES_UNTIL_SAID:
                _log.warning(
                    "no coordinator yet: the node keeps trying", seconds=round(pause, 1), stop="echo2-node finish"
                )
            await asyncio.sleep(pause)

    def keeps_trying(self) -> str:
        """Return when the coordinator is tried next, and how to stop that; empty: it is connected, or not tried yet."""
        if self.peer is not None or self._next_try is None:
            return ""
        seconds = max(0.0, self._next_try - asyncio.get_running_loop().time())
        when = f"in {math.ceil(seconds)} s" if seconds else "now"
        stop = "until `echo2-node finish` or Ctrl-C"
        return f"the coordinator is tried again {when}, and so on {stop}; finished groups are kept"

    async def wait_until_connected(self) -> str:
        """Wait until connected; return the coordinator's peer id."""
        while self.peer is None:
            await self._up.wait()
        return self.peer

    def greet_again(self, reason: str) -> None:
        """Connect anew because of `reason`, so that the coordinator learns what changed here: nothing is at fault."""
        if self.peer is not None:
            _log.info("greeting the coordinator again", reason=reason)
        self._drop(f"this node connects to the coordinator again: {reason}")

    def drop_connection(self, reason: str) -> None:
        """Drop the connection because of `reason`, and search for the coordinator again."""
        if self.peer is not None:
            _log.warning("coordinator lost", reason=reason)
        self._drop(f"the coordinator is unreachable: {reason}")

    def _drop(self, trouble: str) -> None:
        self.peer, self.trouble = None, trouble
        self._up.clear()
        self._down.set()

    def distrust(self, reason: str) -> None:
        """Record a false answer, and drop the connection: the peer is not the run's coordinator (rule 2)."""
        self.lies.append(reason)
        del self.lies[:-16]
        self._disown(reason)

    def _disown(self, reason: str) -> None:
        """Drop the connection to a peer that is not the coordinator: its address comes after the others from now on."""
        if self.peer is not None:
            self.addresses.on_failure(self._address)
        self.drop_connection(reason)

    async def call(self, method: Method[Q, A], request: Q) -> A:
        """Send a request to the coordinator; return its answer. Raises `RequestRefused`, `Malformed`, and `Unreachable`
        after `REQUEST_LIFE` seconds."""
        return method.answer.decode(await self._exchange(method.name, method.request.encode(request)))

    async def _exchange(self, method: str, content: bytes) -> bytes:
        """Return the body of the answer to a request with the body `content` (rules 3, 4 and 6)."""
        rider = self.rider if method in CARRIERS else None
        riding = None if rider is None else rider.question()
        try:
            return await self._answered_with(riding, method, content)
        finally:
            if rider is not None and riding is not None:
                rider.release(riding)

    async def _answered_with(self, riding: VerdictsRequest | None, method: str, content: bytes) -> bytes:
        """Return the body of the answer to a request that carries `riding` (rule 4)."""
        serial, rider = self._trust_store.serial, self.rider
        report = None if self.reporter is None else self.reporter.report(method)
        sealed = self._seal_request(method, content, riding, report)
        try:
            async with asyncio.timeout(REQUEST_LIFE):
                while True:
                    peer = await self.wait_until_connected()
                    try:
                        answer = await self._answer(peer, method, sealed)
                        if rider is not None and riding is not None and answer.verdicts is not None:
                            rider.on_answer(riding, answer.verdicts)
                        if self.reporter is not None and report is not None:
                            self.reporter.on_report(report, answer.ended)
                        return _body(answer, peer, method)
                    except RequestRefused as error:
                        if refusals.then(error.refusal) in FINAL_ANSWERS and not self._is_named(peer):
                            self._disown(
                                f"{peer} is not the coordinator that the newest Head names, and refuses: {error}"
                            )
                            continue
                        if refusals.then(error.refusal) != "greet":
                            raise
                        if error.refusal.code == "clock":
                            self._clock.on_refusal()
                        if not self._adopt_roots(error.refusal, serial):
                            self.drop_connection(str(error))
                            await self.wait_until_connected()
                        sealed, serial = self._seal_request(method, content, riding, report), self._trust_store.serial
                    except Busy:
                        self.busy += 1
                        await asyncio.sleep(BUSY_AGAIN)
                    except Unreachable as error:
                        if peer == self.peer:
                            self.drop_connection(str(error))
                    except PeerFault as error:
                        if peer == self.peer and not await self.behind(serial):
                            self.distrust(str(error))
        except TimeoutError:
            raise Unreachable(f"the coordinator did not answer {method} within {REQUEST_LIFE:g} s") from None

    async def tell(self, method: Method[Q, None], make: Callable[[], Q]) -> None:
        """Send a best-effort message once; a failure leaves the connection up. `make` is called once connected. Raises
        `RequestRefused`, `P2PError`."""
        await self._ask(await self.wait_until_connected(), method, make())

    async def _ask(self, peer: str, method: Method[Q, A], request: Q) -> A:
        """Send one request to `peer`, without retries."""
        sealed = self._seal_request(method.name, method.request.encode(request))
        return method.answer.decode(_body(await self._answer(peer, method.name, sealed), peer, method.name))

    async def _answer(self, peer: str, method: str, sealed: bytes) -> Response:
        response = decode(await self._rpc.request(peer, method, sealed, timeout=COORDINATOR_ANSWER_SECONDS), Response)
        if response.rival or response.refusal is None:  # a refusal may come from before the coordinator looks at it
            self._context.instance.on_message(response.rival)
        return response

    def _seal_request(
        self, method: str, body: bytes, verdicts: VerdictsRequest | None = None, leases: LeaseReport | None = None
    ) -> bytes:
        expires = self._clock.now() + int(REQUEST_LIFE * 1000) + _CLOCK_SKEW_MS
        recipient = self._trust_store.trusted.channel
        request = Request(
            recipient=recipient, id=os.urandom(16), method=method, expires=expires, body=body, verdicts=verdicts,
            leases=leases, instance=self._context.instance.id,
        )  # fmt: skip
        return seal("request", self._context.run, encode(request), self._context.key)

    async def behind(self, serial: int | None) -> bool:
        """Tell whether the run has a later Root than that of `serial`, under which a request was sent. If none is known
        here, peers are asked first (rule 6)."""
        if self._trust_store.serial == serial:
            await self._greeter.learn()
        return self._trust_store.serial != serial

    def _adopt_roots(self, refusal: Refusal, serial: int | None) -> bool:
        """Adopt the Roots of a refusal; tell whether one is newer than that of `serial` (rule 6)."""
        try:
            if refusal.roots:
                self._trust_store.update_roots(refusal.roots, self._clock.now())
        except P2PError as error:
            self.distrust(f"the Roots of a refusal do not verify: {error}")
        return self._trust_store.serial != serial

    async def _hold(self) -> None:
        """Wait until disconnected; meanwhile try better routes (rule 1)."""
        wait = BETTER_ROUTE_BACKOFF.least
        while True:
            better = await self._better()
            try:
                async with asyncio.timeout(wait * self._random.uniform(0.8, 1.2)):
                    await self._down.wait()
                    return
            except TimeoutError:
                wait = BETTER_ROUTE_BACKOFF.after(wait)
            if better:
                await self._improve(better[0])

    async def _improve(self, address: str) -> None:
        """Greet the coordinator at an address of a better route, and switch to it if that succeeds."""
        try:
            await self._greet_at(address, await self.addresses.dial(address))
        except DialLimited as error:
            _log.debug("coordinator not dialled", reason=str(error))
        except P2PError as error:
            self._on_failure(route_of(address), str(error))

    async def _better(self) -> list[str]:
        """Return the addresses by routes that precede the current one."""
        route = (await self._links.routes()).get(self.peer or "")
        at = self._routes.index(route) if route in self._routes else 0
        known = self.addresses.candidates(await self._links.peers())
        return [address for address in known if self._routes.index(route_of(address)) < at]

    def _on_failure(self, route: str, reason: str) -> None:
        """Record that a route failed; log the failure once, until the route works again."""
        if route not in self.failures:
            _log.warning("the coordinator is not reached", way=route, reason=reason)
        self.failures[route] = reason

    async def _connect(self) -> bool:
        """Try the candidates, one round; tell whether one is the coordinator. Raises `RefusedByRun`, `TrustFailure`."""
        known = set(await self._links.peers())
        candidates = self.addresses.candidates(known)
        if not self.addresses.all():
            self.trouble = (
                f"the coordinator has no address for {', '.join(self._routes)} at port 443, or 1024 and above: ask for "
                "a new invite, or admit more routes by --via"
            )
            for route in self._routes:
                self._on_failure(route, self.trouble)
        followed = False
        while candidates:
            address = candidates.pop(0)
            expected = peer_of(address)
            try:
                peer = expected if expected in known else await self.addresses.dial(address)
                moved_to = self._moved_to
                if await self._greet_at(address, peer):
                    return True
                if self._moved_to != moved_to and not followed:
                    followed, candidates = True, self.addresses.candidates(known)
            except DialLimited as error:
                _log.debug("coordinator not dialled", reason=str(error))
            except (Unreachable, Malformed) as error:
                self.trouble = f"the coordinator is unreachable at {address}: {error}; for details: echo2-node doctor"
                self._on_failure(route_of(address), str(error))
            except RootExpired as error:
                raise TrustFailure(str(error)) from error
            except WrongRoot as error:
                if self._trust_store.trusted.root is None:
                    raise TrustFailure(f"{address}: {error}; ask the operator for a new invite") from error
                self.distrust(f"{address}: {error}")
            except P2PError as error:
                self._on_failure(route_of(address), str(error))
                self.distrust(f"{address}: {error}")
        _log.debug("coordinator not connected", trouble=self.trouble)
        return False

    async def _greet_at(self, address: str, peer: str) -> bool:
        """Greet the peer that answers at an address, and note there what came of it. As `_greet`."""
        try:
            connected = await self._greet(peer)
        except P2PError:
            self.addresses.on_failure(address)
            raise
        if connected:
            self._address = address
            self.addresses.on_coordinator(address)
            self.failures.pop((await self._links.routes()).get(peer, ""), None)
        return connected

    async def _greet(self, peer: str) -> bool:
        """Greet a peer, and connect to it if it proves to be the coordinator; False: it delays this node. Raises
        `RefusedByRun`, `P2PError`."""
        asked, serial = self._clock.local(), self._trust_store.serial
        try:
            welcome = await self._ask(peer, HELLO, await self._greeter.hello())
        except RequestRefused as error:
            if self._adopt_roots(error.refusal, serial) or await self._greeter.reconsider(error.refusal):
                return await self._greet(peer)
            if refusals.then(error.refusal) == "moved":
                await self._follow_move(peer)
            elif error.refusal.retry_after is None and self._is_named(peer):
                newer_build.record(self._context.folder, error.refusal)
                needed = remedy_for(error.refusal.engines)
                raise RefusedByRun(" ".join([f"the coordinator refuses this node: {error}", needed]).strip()) from error
            self.trouble = f"the coordinator delays this node: {error}"
            return False
        self._clock.observe(welcome.now, asked, signed=False)
        try:
            self._trust_store.update_roots(welcome.roots, self._clock.now())
        except RootExpired:
            self._clock.check(self._trust_store.trusted.expires)
            raise
        self._trust_store.update_runspec(welcome.runspec)
        newer_build.forget(self._context.folder)
        self._context.instance.on_welcome()
        self.peer, self.trouble = peer, ""
        self._down.clear()
        self._up.set()
        await self._greeter.on_welcome(peer, welcome)
        _log.info("coordinator connected", peer=peer, way=(await self._links.routes()).get(peer))
        return True

    def _is_named(self, peer: str) -> bool:
        """Tell whether the newest Head here names a peer as the coordinator, or no peer at all (rule 5)."""
        head = self._trust_store.trusted.head
        named = {peer_of(address) for address in [*(head.value.addresses if head else []), *self._moved_to]} - {""}
        return not named or peer in named

    async def _follow_move(self, peer: str) -> None:
        """Take the addresses of the Head that a former identity has (rule 7). Raises `P2PError`."""
        answer = await HEAD.ask(
            self._rpc, peer, HeadRequest(root_serial=self._trust_store.serial), timeout=COORDINATOR_ANSWER_SECONDS
        )
        if answer.roots:
            self._trust_store.update_roots(answer.roots, self._clock.now())
        if answer.head is None or self._trust_store.serial is None:
            return
        head = self._trust_store.offer_head(answer.head, self._clock.now())
        if head.value.addresses != self._moved_to:
            self._moved_to = list(head.value.addresses)
            _log.info("coordinator moved", addresses=self._moved_to)


def _body(answer: Response, peer: str, method: str) -> bytes:
    """Return the body of an answer. Raises `RequestRefused`, `Malformed`."""
    if answer.refusal is not None:
        raise RequestRefused(answer.refusal)
    if answer.body is None:
        raise Malformed(f"{peer} answered {method} with neither body nor refusal")
    return answer.body
