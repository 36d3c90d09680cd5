"""Tells the coordinator that a version is held, how long it took, and who sent it.

Rules
1. One acknowledgement a version, made when the engine has shown its content root. A newer one replaces one that could
   not be delivered: what counts is the present.
2. Times are lengths on this node's monotonic clock, stated as "so long ago" and counted anew at each try; so neither
   this machine's wall clock nor a try that failed falsifies them.
3. Nothing hangs on it: an acknowledgement that cannot be delivered costs no work, no pay, and not the line.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio
import structlog

from node.links.coordinator_client import RequestRefused
from p2p.errors import P2PError
from p2p.network import FetchReport
from protocol.broadcast_messages import Acknowledgement, PayloadTransfer, TransferSource

PAYLOADS: Final = 8
"""Payloads of one acknowledgement, the last ones."""
SENDERS: Final = 32
"""Peers that are named for one payload, those that sent most."""
HEADS: Final = 16
"""Versions of which is remembered when they were first heard of."""
WAITS: Final = (0.5, 2.0, 8.0, 30.0)
"""Seconds after each try that failed; after the last one only a newer version is told."""

_log = structlog.get_logger("node")


@dataclass
class _Delivery:
    """A version's way to this node; seconds on the monotonic clock."""

    era: int
    version: int
    heard: float
    complete: float
    applied: float
    fetches: list[tuple[float, bytes, FetchReport]]
    """When complete, payload hash, and what the network tells of it."""

    def message(self, now: float) -> Acknowledgement:
        return Acknowledgement(
            era=self.era,
            version=self.version,
            heard=_ago(self.heard, now),
            complete=_ago(self.complete, now),
            applied=_ago(self.applied, now),
            taken=[_taken(*fetch, now) for fetch in self.fetches],
        )


class Acknowledger:
    """The follower notes, `run` tells. `tell`: one try, with what makes the message; raises `Refused`, `P2PError`."""

    def __init__(self, tell: Callable[[Callable[[], Acknowledgement]], Awaitable[None]]) -> None:
        self._tell = tell
        self._heard: dict[tuple[int, int], float] = {}
        self._fetches: list[tuple[float, bytes, FetchReport]] = []
        self._news = asyncio.Event()
        self._delivery: _Delivery | None = None

    def heard(self, era: int, version: int) -> None:
        """A Head came. The first one of a version counts: later ones are the same news."""
        self._heard.setdefault((era, version), anyio.current_time())
        for forgotten in sorted(self._heard)[:-HEADS]:
            del self._heard[forgotten]

    def fetched(self, payload_hash: bytes, fetched: FetchReport) -> None:
        """A payload is complete."""
        self._fetches.append((anyio.current_time(), payload_hash, fetched))
        del self._fetches[:-PAYLOADS]

    def applied(self, era: int, version: int) -> None:
        """The engine holds this version."""
        now = anyio.current_time()
        heard = self._heard.get((era, version), now)
        complete = self._fetches[-1][0] if self._fetches else heard
        self._delivery = _Delivery(era, version, min(heard, complete), complete, now, self._fetches)
        self._fetches = []
        self._news.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self._news.wait()
            for wait in WAITS:
                self._news = asyncio.Event()
                if await self._delivered():
                    break
                with anyio.move_on_after(wait):
                    await self._news.wait()

    async def _delivered(self) -> bool:
        """One try; False where another makes sense."""
        try:
            await self._tell(self._message)
        except RequestRefused as error:
            _log.debug("acknowledgement refused", code=error.refusal.code, reason=str(error))
        except P2PError as error:
            _log.debug("acknowledgement not delivered", reason=str(error))
            return False
        return True

    def _message(self) -> Acknowledgement:
        assert self._delivery is not None
        return self._delivery.message(anyio.current_time())


def _taken(complete: float, payload_hash: bytes, fetched: FetchReport, now: float) -> PayloadTransfer:
    began = complete - fetched.seconds
    most = sorted(fetched.feeds, key=lambda feed: -feed.nbytes)[:SENDERS]
    return PayloadTransfer(
        payload_hash=payload_hash,
        took=int(1000 * fetched.seconds),
        senders=[
            TransferSource(
                peer=feed.peer,
                nbytes=feed.nbytes,
                began=_ago(began + feed.began, now),
                ended=_ago(began + feed.ended, now),
            )
            for feed in most
        ],
    )


def _ago(then: float, now: float) -> int:
    """Milliseconds since `then`."""
    return max(0, round(1000 * (now - then)))
