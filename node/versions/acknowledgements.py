"""The acknowledgement sent to the coordinator: the version loaded, the time that it took, and the peers that sent it.

Rules
1. There is one acknowledgement per version, created once the engine has verified the version's content root. A newer
   one replaces one that is still undelivered.
2. Times are durations on this node's monotonic clock ("so many ms ago"), computed at each attempt. So neither this
   machine's wall clock nor a failed attempt distorts them.
3. It names the payloads that were complete when the last one of the version's own chain was. One that was fetched
   meanwhile for a newer version (node/versions/follower.py, rule 6) is named by the acknowledgement of that one.
4. Delivery is best effort: a lost acknowledgement affects neither work, pay nor the connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

import anyio
import structlog

from echo2.node.links.coordinator_client import RequestRefused
from echo2.p2p.errors import P2PError
from echo2.p2p.network import FetchReport
from echo2.protocol.broadcast_messages import Acknowledgement, PayloadTransfer, TransferSource

PAYLOADS: Final = 8
"""Most payloads per acknowledgement: the last ones."""
SENDERS: Final = 32
"""Most peers named per payload: those that sent most."""
HEADS: Final = 16
"""Versions for which the arrival time of the first Head is kept."""
RETRY_WAITS_SECONDS: Final = (0.5, 2.0, 8.0, 30.0)
"""Seconds to wait after each failed attempt; after the last the acknowledgement is dropped."""

_log = structlog.get_logger("node")


@dataclass
class _Delivery:
    """The delivery of a version to this node; times in seconds on the monotonic clock. `heard`: its first Head arrived.
    `complete`: its last payload arrived. `applied`: the engine had loaded it."""

    era: int
    version: int
    heard: float
    complete: float
    applied: float
    fetches: list[tuple[float, bytes, FetchReport]]
    """Time of completion, payload hash, and the network's report of the fetch."""

    def message(self, now: float) -> Acknowledgement:
        return Acknowledgement(
            era=self.era,
            version=self.version,
            heard=_ago(self.heard, now),
            complete=_ago(self.complete, now),
            applied=_ago(self.applied, now),
            taken=[_payload_transfer(*fetch, now) for fetch in self.fetches],
        )


class Acknowledger:
    """The acknowledgements of this node: other parts record events, and `run` delivers. `tell`: makes one attempt with
    the message that its argument returns; raises `RequestRefused`, `P2PError`."""

    def __init__(self, tell: Callable[[Callable[[], Acknowledgement]], Awaitable[None]]) -> None:
        self._tell = tell
        self._heard: dict[tuple[int, int], float] = {}
        self._fetches: list[tuple[float, bytes, FetchReport]] = []
        self._news = asyncio.Event()
        self._delivery: _Delivery | None = None

    def on_message(self, era: int, version: int) -> None:
        """Record that a Head arrived; only the first Head of a version counts."""
        self._heard.setdefault((era, version), anyio.current_time())
        for forgotten in sorted(self._heard)[:-HEADS]:
            del self._heard[forgotten]

    def on_payload(self, payload_hash: bytes, fetched: FetchReport) -> None:
        """Record that a payload is complete."""
        self._fetches.append((anyio.current_time(), payload_hash, fetched))
        del self._fetches[:-PAYLOADS]

    def on_version_load(self, era: int, version: int, payloads: Collection[bytes]) -> None:
        """Record that the engine has loaded a version, and start its acknowledgement. `payloads`: hashes of those that
        lead to it, fetched now or earlier (rule 3)."""
        now = anyio.current_time()
        heard = self._heard.get((era, version), now)
        count = max((at for at, (_, digest, _) in enumerate(self._fetches, 1) if digest in payloads), default=0)
        fetches, self._fetches = self._fetches[:count], self._fetches[count:]
        complete = fetches[-1][0] if fetches else heard
        self._delivery = _Delivery(era, version, min(heard, complete), complete, now, fetches)
        self._news.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self._news.wait()
            for wait in RETRY_WAITS_SECONDS:
                self._news = asyncio.Event()
                if await self._try_delivery():
                    break
                with anyio.move_on_after(wait):
                    await self._news.wait()

    async def _try_delivery(self) -> bool:
        """Make one attempt; return False if another may succeed."""
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


def _payload_transfer(complete: float, payload_hash: bytes, fetched: FetchReport, now: float) -> PayloadTransfer:
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
    """Return the milliseconds from `then` to `now`."""
    return max(0, round(1000 * (now - then)))
