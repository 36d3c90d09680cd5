"""Keep the ask that the owner wants in force: seal it, open it, and know what the run answers.

Rules
1. What is done follows from the run's answer, the clock and the store alone (node/market/ask_plan.py). A run that pays
   points is not asked.
2. The run's clock says when. A wait ends by this clock or by the machine's monotonic one, whichever is first: so a
   clock that jumps costs no epoch, and neither does a sleep of the machine.
3. An ask is stored before its commitment is sent (node/trust/market_store.py). One that the run refuses is tried
   `REFUSED_TRIES` times per epoch, each after twice the time: this machine's clock may be ahead. Then the ask before it
   stands.
4. A coordinator that is away or refuses is asked again later; the node's work does not depend on it.
5. `trouble` is one sentence for the owner; empty: there is none.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from echo2.node.links.coordinator_client import RequestRefused
from echo2.node.market.ask_plan import Await, KnownMarket, OpenSealed, Seal, next_step
from echo2.node.run_context import RunContext
from echo2.node.trust.market_store import MarketStore, StoredAnswer, StoredAsk
from echo2.p2p.errors import P2PError
from echo2.p2p.identity import peer_id
from echo2.protocol.market import MarketRequest, MarketResponse
from echo2.protocol.sealed_asks import SALT, BadAsk, commitment, parse_ask
from echo2.runtime.backoff import Backoff

REFUSED_TRIES: Final = 5
"""Refused attempts per epoch."""
STEPS_IN_A_ROW: Final = 4
"""Requests in a row: a run that takes an ask and then does not have it is asked again later."""
POINTS: Final = 60.0
"""Seconds after which it is looked again whether the run pays money."""
MARKET_BACKOFF: Final = Backoff(5.0, 300.0, jitter=0.5)
"""Seconds between two attempts to ask a coordinator that is away or refuses."""
CLOCK_POLL_SECONDS: Final = 30.0
"""Seconds after which the run's clock is looked at while a wait lasts."""

Call = Callable[[MarketRequest], Awaitable[MarketResponse]]
"""Asks the coordinator. Raises `RequestRefused`, `P2PError`."""

_log = structlog.get_logger("node")


class AskKeeper:
    """The keeper of one node. `salt`: returns `SALT` random bytes."""

    def __init__(
        self, context: RunContext, call: Call, store: MarketStore, text: str | None, *,
        salt: Callable[[], bytes] = lambda: os.urandom(SALT),
    ) -> None:  # fmt: skip
        """`text`: the owner's ask; None: there is none."""
        self._context, self._call, self._store, self._salt = context, call, store, salt
        self._peer = peer_id(context.node)
        self._random = random.Random(context.seed)
        self._text = text
        self._wake, self._one = asyncio.Event(), asyncio.Lock()
        self._refused: tuple[int, int] = (0, 0)
        """An epoch, and the number of refused attempts in it."""
        self._failures = 0
        self.trouble = ""
        self.latest = store.newest()

    async def run(self) -> None:
        """Keep the ask until cancelled."""
        while True:
            self._wake.clear()
            await self._wait(await self.step())

    @property
    def currency(self) -> str:
        """In which the run pays; empty: it pays points, or is not known yet."""
        runspec = self._context.trust_store.trusted.runspec
        return "" if runspec is None else runspec.value.currency

    def want(self, text: str | None) -> None:
        """Take another ask from the owner, and act on it at once. Raises `BadAsk`."""
        if text is not None:
            parse_ask(text, self.currency or None)
        self._text = text
        self._wake.set()

    async def step(self) -> float:
        """Ask the run, and do what follows; return the seconds until the next step."""
        if not self.currency:
            return POINTS
        async with self._one:
            try:
                wait = await self._run_step()
                self._failures = 0
            except (RequestRefused, P2PError) as error:
                wait = self._on_failure(error)
        return wait

    async def ask_now(self) -> StoredAnswer | None:
        """Ask the run for its answer alone, for the owner; None: the run pays points. Raises `RequestRefused`,
        `P2PError`."""
        if not self.currency:
            return None
        async with self._one:
            await self._ask_market(MarketRequest())
        return self.latest

    async def _run_step(self) -> float:
        answer, trouble = await self._ask_market(MarketRequest()), ""
        for _ in range(STEPS_IN_A_ROW):
            coming = answer.coming
            stored = None if coming is None else self._store.ask_for(coming.epoch)
            given_up = coming is not None and self._refused[0] == coming.epoch and self._refused[1] >= REFUSED_TRIES
            wanted, trouble = self._wanted_ask()
            known = KnownMarket(
                answer, self._context.clock.now(), wanted, stored, given_up, self._random.random()
            )  # fmt: skip
            step = next_step(known)
            if isinstance(step, Await):
                self._say(step.trouble or trouble or (self.trouble if given_up else ""))
                return step.milliseconds / 1000
            answer, trouble = await self._carry_out(step)
            if trouble:
                self._say(trouble)
                return self._again(answer)
        return _window(answer) * (1 + self._random.random()) / 4

    async def _carry_out(self, step: Seal | OpenSealed) -> tuple[MarketResponse, str]:
        """Carry out a step; return the answer, and why it was refused."""
        if isinstance(step, Seal):
            one = step.stored or self._new(step)
            answer = await self._ask_market(MarketRequest(epoch=one.epoch, sealed=one.hash))
        else:
            one = step.stored
            answer = await self._ask_market(MarketRequest(epoch=one.epoch, ask=one.ask, salt=one.salt))
        opens = isinstance(step, OpenSealed)
        if not answer.refused:
            _log.info("ask opened" if opens else "ask sealed", epoch=one.epoch, ask=one.ask)
            return answer, ""
        epoch, tries = self._refused
        self._refused = one.epoch, tries + 1 if epoch == one.epoch else 1
        return answer, f"the run did not take the ask for epoch {one.epoch}: {answer.refused}"

    def _new(self, step: Seal) -> StoredAsk:
        salt = self._salt()
        run = self._context.run
        one = StoredAsk(step.epoch, step.ask, salt, commitment(run, self._peer, step.epoch, step.ask, salt))
        self._store.put_ask(one)
        return one

    async def _ask_market(self, request: MarketRequest) -> MarketResponse:
        answer = await self._call(request)
        now = self._context.clock.now()
        self._store.put_answer(answer, now)
        self.latest = StoredAnswer(now, answer)
        return answer

    def _wanted_ask(self) -> tuple[int | None, str]:
        """Return the ask that the owner wants, and what is wrong with it."""
        if self._text is None:
            return None, ""
        try:
            return parse_ask(self._text, self.currency), ""
        except BadAsk as error:
            return None, f"ask: {error}"

    def _again(self, answer: MarketResponse) -> float:
        """Return the seconds after which a refused attempt is repeated (rule 3)."""
        tries, window = self._refused[1], _window(answer)
        return Backoff(window / 20, window, jitter=0.5).delay(tries, self._random.random()) * 2

    def _on_failure(self, error: RequestRefused | P2PError) -> float:
        self._failures += 1
        wait = MARKET_BACKOFF.delay(self._failures, self._random.random())
        if isinstance(error, RequestRefused):
            self._say(f"the run answers no question about its market: {error}")
            wait = max(wait, min(MARKET_BACKOFF.most, (error.refusal.retry_after or 0) / 1000))
        else:
            _log.debug("market not asked", reason=str(error))
        return wait

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            _log.warning("ask not in force", reason=trouble)
        self.trouble = trouble

    async def _wait(self, seconds: float) -> None:
        """Wait until the time has passed by either clock (rule 2), or the owner wants another ask."""
        clock = self._context.clock
        due, end = clock.now() + int(seconds * 1000), asyncio.get_running_loop().time() + seconds
        while (left := min(end - asyncio.get_running_loop().time(), (due - clock.now()) / 1000)) > 0:
            try:
                async with asyncio.timeout(min(left, CLOCK_POLL_SECONDS)):
                    await self._wake.wait()
                return
            except TimeoutError:
                continue


def _window(answer: MarketResponse) -> float:
    """Return the seconds for which asks are opened, 1 at least."""
    coming = answer.coming
    return 1.0 if coming is None else max(1.0, (coming.opens - coming.closes) / 1000)
