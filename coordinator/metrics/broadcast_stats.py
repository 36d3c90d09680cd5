"""Measure how versions reach the nodes: acknowledgements on the coordinator's clock. Pure; `now` in ms.

Rules
1. A duration begins with the first Head of a version that this process published. It ends at the acknowledgement's
   arrival, less the elapsed time that the node reports. It is never before the Head nor after the arrival, and no wall
   clock of a node enters.
2. One acknowledgement counts per node and version: the first.
3. T_bcast, the seconds from a version's first Head to its payloads at a node, is measured over nodes with earlier
   accepted work that were connected when the Head was published. A node that joined later did not wait for the version.
   New keys are free, so nodes without accepted work must not move the figure.
4. A false report changes only its sender's own duration. Its reports of other nodes' uploads are one sample in a median
   (`uplinks`): a hint for the planner, never a reason for pay, bans or trust.
5. The deliveries of the last `VERSIONS` versions are kept, in memory: after a restart only later versions are measured.
"""

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from echo2.coordinator.metrics.views import BroadcastView, DeliveryView, TransferView
from echo2.protocol.broadcast_messages import Acknowledgement, TransferSource
from echo2.runtime.quantiles import quantile

VERSIONS = 8
MOST_TAKES = 48
"""Nodes that the page shows."""
MOST_WITHOUT_WORK = 256
"""Nodes per version beyond which only nodes with accepted work are recorded: new keys are free."""
LEAST_BYTES = 1 << 18
"""Bytes from one peer below which their duration measures latency, not its uplink."""

_Key = tuple[int, int]


class BroadcastStats:
    """The deliveries of the last versions. Nodes are peer ids."""

    def __init__(self) -> None:
        self._announced: dict[_Key, int] = {}
        self._takes: dict[_Key, dict[str, DeliveryView]] = {}

    @property
    def deliveries(self) -> Mapping[tuple[int, int], Mapping[str, DeliveryView]]:
        """The deliveries by (era, version) and node; a version without any has an empty entry."""
        return MappingProxyType(self._takes)

    def copy(self) -> "BroadcastStats":
        """Copy the deliveries for `uplinks` and `view` in another thread. A `DeliveryView` is never changed."""
        other = BroadcastStats()
        other._takes = {key: dict(takes) for key, takes in self._takes.items()}
        return other

    def on_announcement(self, era: int, version: int, now: int) -> None:
        """Record that a Head of this version is published; the first one counts."""
        if (era, version) not in self._announced:
            self._announced[era, version] = now
            self._takes[era, version] = {}
            for old in sorted(self._announced)[:-VERSIONS]:
                del self._announced[old], self._takes[old]

    def on_acknowledgement(
        self, node: str, message: Acknowledgement, now: int, *, here_since: int | None, admitted: bool
    ) -> None:
        """Record that a node has a version. `here_since`: time since which the node has been in contact with this
        process; None: never. `admitted`: whether any work of the node was accepted."""
        key = (message.era, message.version)
        sent = self._announced.get(key)
        if sent is None or here_since is None or here_since > sent or node in self._takes[key]:
            return
        if not admitted and len(self._takes[key]) >= MOST_WITHOUT_WORK:
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

    def loaded_at(self, era: int, version: int, node: str) -> int | None:
        """Return when a node had loaded a version, ms; None: not known."""
        take = self._takes.get((era, version), {}).get(node)
        return None if take is None else self._announced[era, version] + int(1000 * take.applied)

    def reach(self) -> float | None:
        """Return p90 of the seconds until a version is in use at a node; None before the first measurement."""
        times = [take.applied for take in self._counted_deliveries()]
        return quantile(times, 0.9) if times else None

    def duration(self) -> float | None:
        """Return p90 of T_bcast; None before the first measurement."""
        times = [take.complete for take in self._counted_deliveries()]
        return quantile(times, 0.9) if times else None

    def uplinks(self) -> dict[str, float]:
        """Estimate each peer's uplink, bytes per second, from the reports of the nodes that it sent chunks to. It is a
        lower bound: if another link was the bottleneck, the peer could send faster.

        Each report gives the transfer's rate times the number of transfers that the peer served at its middle. The
        estimate is the median over reports and versions."""
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
        """Return the figures for the page. `source`: the coordinator's peer id."""
        times = sorted(take.complete for take in self._counted_deliveries())
        newest = max((key for key, takes in self._takes.items() if takes), default=None)
        takes = [] if newest is None else sorted(self._takes[newest].values(), key=_place)
        return BroadcastView(
            source=source,
            samples=len(times),
            median=statistics.median(times) if times else None,
            p90=self.duration(),
            p95=quantile(times, 0.95) if times else None,
            slowest=times[-1] if times else None,
            applied=self.reach(),
            version=None if newest is None else newest[1],
            takes=sorted(takes[:MOST_TAKES], key=lambda take: (take.complete, take.node)),
            unshown=max(0, len(takes) - MOST_TAKES),
        )

    def _counted_deliveries(self) -> Iterator[DeliveryView]:
        for takes in self._takes.values():
            yield from (take for take in takes.values() if take.counted)


def _by_peer(message: Acknowledgement, node: str) -> dict[str, list[TransferSource]]:
    """Group a node's transfer reports by the sending peer, over all payloads, without the node itself."""
    senders: dict[str, list[TransferSource]] = {}
    for taken in message.taken:
        for sender in taken.senders:
            if sender.nbytes and sender.peer != node:
                senders.setdefault(sender.peer, []).append(sender)
    return senders


def _rates(feeds: Iterable[TransferView]) -> Iterator[float]:
    """Yield the estimates of one peer's uplink in one version, one per report, bytes per second."""
    feeds = list(feeds)
    began, ended = sorted(feed.began for feed in feeds), sorted(feed.ended for feed in feeds)
    for feed in feeds:
        middle = (feed.began + feed.ended) / 2
        together = bisect_right(began, middle) - bisect_left(ended, middle)
        yield feed.nbytes / (feed.ended - feed.began) * together


def _place(take: DeliveryView) -> tuple[bool, float, str]:
    """Return the sort key of a delivery: counted nodes first, then the fastest."""
    return not take.counted, take.complete, take.node
