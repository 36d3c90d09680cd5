"""How versions reach the nodes: what the acknowledgements say, placed on the coordinator's clock. Pure; `now` in ms.

Rules
1. A time is counted from the first Head of a version that this process sent, to the acknowledgement's arrival less what
   the node says has passed since. It is never before the Head nor after the arrival: no wall clock of a node enters.
2. A node is heard once a version: the first acknowledgement counts.
3. Counted for T_bcast are nodes whose work was accepted before and that were here when the Head went out. Who joined
   later did not wait for this version; a fresh key costs nothing, and shall move nothing.
4. A liar changes its own time only. What it says of others' uploads is one voice in a median (`uplinks`): a hint for
   the planner, never a ground for pay, bans or trust.
5. Kept for the last `VERSIONS` versions, in memory: after a restart the next version measures anew.
"""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from coordinator.metrics.statistics import quantile
from coordinator.metrics.views import BroadcastView, DeliveryView, TransferView
from protocol.broadcast_messages import Acknowledgement, TransferSource

VERSIONS = 8
MOST_TAKES = 48
"""Nodes that the picture shows."""
MOST_STRANGERS = 256
"""Nodes of a version beyond which only those are noted whose work was accepted: the others cost nothing to make."""
LEAST_BYTES = 1 << 18
"""Bytes from one peer below which the time they took tells of latency, not of its uplink."""

_Key = tuple[int, int]


class BroadcastStats:
    """The last versions' ways to the nodes. Nodes are peer ids."""

    def __init__(self) -> None:
        self._announced: dict[_Key, int] = {}
        self._takes: dict[_Key, dict[str, DeliveryView]] = {}

    def copy(self) -> "BroadcastStats":
        """Copy the present state for another thread. The takes themselves are never changed."""
        other = BroadcastStats()
        other._takes = {key: dict(takes) for key, takes in self._takes.items()}
        return other

    def announced(self, era: int, version: int, now: int) -> None:
        """A Head of this version goes out; the first one counts."""
        if (era, version) not in self._announced:
            self._announced[era, version] = now
            self._takes[era, version] = {}
            for old in sorted(self._announced)[:-VERSIONS]:
                del self._announced[old], self._takes[old]

    def acknowledged(
        self, node: str, message: Acknowledgement, now: int, *, here_since: int | None, admitted: bool
    ) -> None:
        """A node holds a version. `here_since`: since when it is in touch with this process; `admitted`: whether its
        work was ever accepted."""
        key = (message.era, message.version)
        sent = self._announced.get(key)
        if sent is None or here_since is None or here_since > sent or node in self._takes[key]:
            return
        if not admitted and len(self._takes[key]) >= MOST_STRANGERS:
            return

        def after(ago: int) -> float:
            return max(0, now - sent - ago) / 1000

        self._takes[key][node] = DeliveryView(
            node=node,
            heard=after(message.heard),
            complete=after(message.complete),
            applied=after(message.applied),
            counted=admitted,
            feeds=[
                TransferView(
                    peer=peer,
                    nbytes=sum(sender.nbytes for sender in senders),
                    began=min(after(sender.began) for sender in senders),
                    ended=max(after(sender.ended) for sender in senders),
                )
                for peer, senders in _by_peer(message, node).items()
            ],
        )

    def reach(self) -> float | None:
        """p90 of the seconds until a version is in use at a node; None before anything is measured."""
        times = [take.applied for take in self._counted()]
        return quantile(times, 0.9) if times else None

    def uplinks(self) -> dict[str, float]:
        """Bytes a second that a peer sends to all others together, as those who were fed by it tell. At least what it
        has shown: where another link was the narrow one, less than it could.

        Each reporter sees its own rate, times the number of those that the peer fed at the same time (in the middle of
        this reporter's turn); the median over reporters and versions."""
        seen: dict[str, list[float]] = {}
        for takes in self._takes.values():
            turns: dict[str, list[TransferView]] = {}
            for take in takes.values():
                for feed in take.feeds if take.counted else ():
                    if feed.nbytes >= LEAST_BYTES and feed.ended > feed.began:
                        turns.setdefault(feed.peer, []).append(feed)
            for peer, feeds in turns.items():
                seen.setdefault(peer, []).extend(_rates(feeds))
        return {peer: statistics.median(rates) for peer, rates in seen.items()}

    def view(self, source: str) -> BroadcastView:
        """For people. `source`: the coordinator's peer id."""
        times = sorted(take.complete for take in self._counted())
        newest = max((key for key, takes in self._takes.items() if takes), default=None)
        takes = [] if newest is None else sorted(self._takes[newest].values(), key=_place)
        return BroadcastView(
            source=source,
            samples=len(times),
            median=statistics.median(times) if times else None,
            p90=quantile(times, 0.9) if times else None,
            p95=quantile(times, 0.95) if times else None,
            slowest=times[-1] if times else None,
            applied=self.reach(),
            version=None if newest is None else newest[1],
            takes=sorted(takes[:MOST_TAKES], key=lambda take: (take.complete, take.node)),
            unshown=max(0, len(takes) - MOST_TAKES),
        )

    def _counted(self) -> Iterator[DeliveryView]:
        for takes in self._takes.values():
            yield from (take for take in takes.values() if take.counted)


def _by_peer(message: Acknowledgement, node: str) -> dict[str, list[TransferSource]]:
    """What each other peer sent, over all payloads."""
    senders: dict[str, list[TransferSource]] = {}
    for taken in message.taken:
        for sender in taken.senders:
            if sender.nbytes and sender.peer != node:
                senders.setdefault(sender.peer, []).append(sender)
    return senders


def _rates(feeds: Iterable[TransferView]) -> Iterator[float]:
    """Of one peer in one version: what each reporter makes of the whole uplink, bytes a second."""
    feeds = list(feeds)
    began, ended = sorted(feed.began for feed in feeds), sorted(feed.ended for feed in feeds)
    for feed in feeds:
        middle = (feed.began + feed.ended) / 2
        together = bisect_right(began, middle) - bisect_left(ended, middle)
        yield feed.nbytes / (feed.ended - feed.began) * together


def _place(take: DeliveryView) -> tuple[bool, float, str]:
    """Nodes that count first, then the fastest."""
    return not take.counted, take.complete, take.node
