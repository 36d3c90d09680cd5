"""Report the tokens of groups under way, so that another node can go on behind them if this one is lost.

Rules
1. A group is reported as often as its lease asks for (`Lease.report_every`), the first time after as long: a shorter
   group is never reported. The engine tells its tokens between two steps, and waits for nothing.
2. A report has the tokens behind those that the coordinator has written, as its last answer says. One that was lost is
   made up for by the next.
3. A report is an offer: no failure of it concerns the group. A refusal without a time to ask again ends the reports of
   its group, and so does an environment's turn in it: groups of several turns are not moved.
4. At most `AT_ONCE` reports are sent at a time, so that leases and submissions find the connection free.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

import structlog

from echo2.engines.engine import Sample
from echo2.engines.process.messages import float_bytes
from echo2.engines.process.versioned import VersionedEngine
from echo2.node.links.coordinator_client import CoordinatorClient, RequestRefused
from echo2.p2p.errors import P2PError, Unreachable
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease
from echo2.protocol.methods import PARTIAL
from echo2.protocol.partial_groups import PartialRequest, PartialSample
from echo2.runtime.child import ChildError

AT_ONCE: Final = 2
LEAST_BETWEEN: Final = 2.0
"""Shortest time between two reports of a group, seconds, whatever the coordinator asks for."""

_log = structlog.get_logger("node")


class PartialReporter:
    """The reports of the groups of one engine."""

    def __init__(self, engine: VersionedEngine, coordinator_client: CoordinatorClient) -> None:
        self._engine, self._coordinator_client = engine, coordinator_client
        self._sending = asyncio.Semaphore(AT_ONCE)

    @contextlib.asynccontextmanager
    async def reporting(self, lease: Lease) -> AsyncIterator[None]:
        """Report the group of a lease while the block runs, if the lease asks for it."""
        if lease.report_every is None:
            yield
            return
        task = asyncio.create_task(self._report(lease, max(LEAST_BETWEEN, lease.report_every / 1000)))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _report(self, lease: Lease, every: float) -> None:
        """Report a group until cancelled, or until rule 3 ends it."""
        written: Sequence[int] = [0] * len(lease.seeds)
        wait = every
        while True:
            await asyncio.sleep(wait)
            wait = every
            samples = await self._tokens(lease.id)
            if samples is None:
                continue
            if any(len(one.turns) > 1 for one in samples):
                return
            try:
                written = await self._sent(lease.id, samples, written)
            except Unreachable as error:
                _log.debug("tokens so far not reported", lease=lease.id.hex(), reason=str(error))
            except RequestRefused as error:
                _log.debug("report refused", lease=lease.id.hex(), code=error.refusal.code, reason=str(error))
                if error.refusal.retry_after is None:
                    return
                wait = max(LEAST_BETWEEN, error.refusal.retry_after / 1000)
            except P2PError as error:
                _log.warning("report answered falsely", lease=lease.id.hex(), reason=str(error))
                return

    async def _tokens(self, lease: bytes) -> list[Sample] | None:
        try:
            return await self._engine.so_far(lease)
        except ChildError:
            return None

    async def _sent(self, lease: bytes, samples: Sequence[Sample], written: Sequence[int]) -> Sequence[int]:
        """Send what is not written yet; return what is written now, per sample. Raises `RequestRefused`, `P2PError`."""
        ask = PartialRequest(lease=lease, samples=[_behind(one, at) for one, at in zip(samples, written, strict=True)])
        if not any(one.tokens for one in ask.samples):
            return written
        async with self._sending:
            answer = await self._coordinator_client.call(PARTIAL, encode(ask))
        if len(answer.tokens) != len(written):
            return written
        _log.debug("tokens so far reported", lease=lease.hex(), tokens=sum(answer.tokens))
        return answer.tokens


def _behind(sample: Sample, written: int) -> PartialSample:
    """Return the tokens of a sample behind those that are written."""
    logprobs = float_bytes(sample.logprobs[written:])
    return PartialSample(first=written, tokens=sample.tokens[written:], logprobs=logprobs)
