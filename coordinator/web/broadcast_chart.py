"""Layout of the broadcast chart: one row per node, arcs from sender to receiver, and one bar per node over time,
coloured by sender. Pure geometry.

All widths are shares of each receiver's bytes, never sums of bytes: false figures from a node distort only its own row
and arrows. x is time in percent of the plot, 0 the first Head; y and arcs are in pixels, so rows keep their height.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from echo2.coordinator.metrics.views import BroadcastView, DeliveryView, TransferView
from echo2.coordinator.web import charts, formatting
from echo2.coordinator.web.charts import Tick
from echo2.runtime import figures

COLOURS = ("s1", "s2", "s3", "s4", "s5")
"""CSS classes of the nodes that sent most; the coordinator has `SOURCE`, all other nodes `OTHERS`."""
SOURCE, OTHERS = "first", "other"
MOST_ROOMY_ROWS = 12
"""Charts up to this number of rows have high rows."""
LEAST_SHARE = 0.04
"""Senders below this share of a receiver's bytes are drawn together as others."""
MOST_FLOWS = 96
ARCS = 96
"""Pixels that the widest arc reaches out."""
_NAME, _SHORT = 22, 11  # characters of a row's name, and on a narrow screen
_THICK, _THIN = 7.0, 1.0  # pixels: width of an arrow for all bytes of a node, and the least width
_SPOKEN_NODES = 8  # nodes described in words


@dataclass(frozen=True)
class BarSegment:
    """A part of a bar: the bytes from one peer, or from several small senders together."""

    left: float
    width: float
    style: str
    hint: str


@dataclass(frozen=True)
class SpreadRow:
    """A node's row. `y`: its middle. `style`: the node's colour as a sender. `wait`, `load`: left and width of the time
    before the first request for a chunk, and of the time from complete to in use."""

    y: float
    name: str
    short: str
    style: str
    wait: tuple[float, float]
    segments: tuple[BarSegment, ...]
    load: tuple[float, float]
    end: float
    hint: str


@dataclass(frozen=True)
class Ribbon:
    """An arc from a sender's row to a receiver's, with an arrowhead as a path of its own. `width`: pixels, by bytes."""

    path: str
    arrow: str
    width: float
    style: str
    hint: str


@dataclass(frozen=True)
class Spread:
    """The layout of a broadcast chart. `passed`: the mean share, over receivers, of bytes from other nodes. `key`:
    colours and names of the largest senders."""

    version: int
    height: float
    bar: float
    source_y: float
    ticks: tuple[Tick, ...]
    rows: tuple[SpreadRow, ...]
    flows: tuple[Ribbon, ...]
    key: tuple[tuple[str, str], ...]
    passed: float | None
    summary: str


def layout(view: BroadcastView, names: Mapping[str, str]) -> Spread | None:
    """Lay out the newest version's broadcast; None before the first. `names`: peer id -> the node's name."""
    if view.version is None or not view.takes:
        return None
    marks = _Layout(view, names)
    passed = marks.passed_on_share()
    return Spread(
        version=view.version,
        height=marks.height,
        bar=round(0.45 * marks.pitch, 1),
        source_y=marks.place[view.source],
        ticks=tuple(Tick(marks.x(t), f"{t:g}") for t in charts.nice_ticks(0, marks.last) if t <= marks.last),
        rows=tuple(map(marks.row, view.takes)),
        flows=tuple(marks.flows()),
        key=tuple(marks.key()),
        passed=passed,
        summary=_summary(view, marks, passed),
    )


class _Layout:
    """The scale, rows, colours and names shared by all marks of a chart."""

    def __init__(self, view: BroadcastView, names: Mapping[str, str]) -> None:
        self.view = view
        self._names = names
        self.last = 1.02 * max([take.complete for take in view.takes] + [0.001])
        self.pitch = 28.0 if len(view.takes) <= MOST_ROOMY_ROWS else 16.0
        nodes = [view.source, *(take.node for take in view.takes)]
        self.height = self.pitch * len(nodes)
        self.place = {node: self.pitch * (number + 0.5) for number, node in enumerate(nodes)}
        self.shares = {take.node: _shares(take) for take in view.takes}
        sent: dict[str, float] = {}
        for shares in self.shares.values():
            for peer, share in shares.items():
                sent[peer] = sent.get(peer, 0.0) + share
        sent.pop(view.source, None)
        most = sorted(sent, key=lambda peer: (-sent[peer], peer))
        self.colours = {view.source: SOURCE} | dict(zip(most, COLOURS, strict=False))
        self._more = len(most) > len(COLOURS)

    def passed_on_share(self) -> float | None:
        own = [shares.get(self.view.source, 0.0) for shares in self.shares.values() if shares]
        return 1 - sum(own) / len(own) if own else None

    def x(self, seconds: float) -> float:
        return round(100 * min(seconds, self.last) / self.last, 2)

    def span(self, began: float, ended: float) -> tuple[float, float]:
        left = self.x(began)
        return left, round(max(0.0, self.x(ended) - left), 2)

    def name(self, peer: str) -> str:
        return "coordinator" if peer == self.view.source else self._names.get(peer) or formatting.clip_identity(peer)

    def colour(self, peer: str) -> str:
        return self.colours.get(peer, OTHERS)

    def row(self, take: DeliveryView) -> SpreadRow:
        began = min([feed.began for feed in take.feeds], default=take.complete)
        name = self.name(take.node)
        return SpreadRow(
            y=self.place[take.node],
            name=_cut(name, _NAME),
            short=_cut(name, _SHORT),
            style=self.colour(take.node),
            wait=self.span(0.0, began),
            segments=tuple(self.segments(take, began)),
            load=self.span(take.complete, take.applied),
            end=self.x(take.complete),
            hint=f"{name}: announced after {formatting.moment(take.heard)},"
            f" complete after {formatting.moment(take.complete)},"
            f" in use after {formatting.moment(take.applied)}",
        )

    def segments(self, take: DeliveryView, began: float) -> Iterator[BarSegment]:
        """Yield the parts of the bar from first request to complete: by bytes, in the order in which senders began."""
        total = sum(feed.nbytes for feed in take.feeds)
        if not total:
            return
        great = [feed for feed in take.feeds if feed.nbytes >= LEAST_SHARE * total]
        small = total - sum(feed.nbytes for feed in great)
        parts = [(feed.nbytes, self.colour(feed.peer), self.name(feed.peer)) for feed in sorted(great, key=_by_begin)]
        if small:
            parts.append((small, OTHERS, f"{len(take.feeds) - len(great)} others"))
        done = 0
        for nbytes, style, name in parts:
            start, end = (began + (take.complete - began) * share / total for share in (done, done + nbytes))
            done += nbytes
            left, width = self.span(start, end)
            yield BarSegment(
                left, width, style, f"{figures.size(nbytes)} from {name}, {charts.percent(nbytes / total)}"
            )

    def flows(self) -> Iterator[Ribbon]:
        """Yield the `MOST_FLOWS` largest arcs, smallest first, so that the largest are drawn on top."""
        fed = [(feed, take) for take in self.view.takes for feed in take.feeds if feed.peer in self.place]
        drawn = [(self.shares[take.node].get(feed.peer, 0.0), feed, take) for feed, take in fed]
        drawn.sort(key=lambda flow: (flow[0], flow[2].node))
        for share, feed, take in drawn[-MOST_FLOWS:]:
            y0, y1 = self.place[feed.peer], self.place[take.node]
            # A cubic Bezier curve reaches three quarters of the distance to its control points.
            out = round(ARCS / 0.75 * (0.12 + 0.88 * math.sqrt(abs(y1 - y0) / self.height)), 1)
            width = round(max(_THIN, _THICK * share), 1)
            head = 3 + width / 2
            yield Ribbon(
                path=f"M0 {y0:g}C{out:g} {y0:g} {out:g} {y1:g} {head:g} {y1:g}",
                arrow=f"M0 {y1:g}l{2 * head:g} {-head:g}v{2 * head:g}z",
                width=width,
                style=self.colour(feed.peer),
                hint=f"{self.name(feed.peer)} sent {self.name(take.node)} {figures.size(feed.nbytes)},"
                f" from {formatting.moment(feed.began)} to {formatting.moment(feed.ended)}",
            )

    def key(self) -> Iterator[tuple[str, str]]:
        yield from ((style, _cut(self.name(peer), _NAME)) for peer, style in self.colours.items())
        if self._more:
            yield OTHERS, "other volunteers"


def _shares(take: DeliveryView) -> dict[str, float]:
    """Return each peer's share of the bytes that a node reports as received."""
    total = sum(feed.nbytes for feed in take.feeds)
    return {feed.peer: feed.nbytes / total for feed in take.feeds} if total else {}


def _summary(view: BroadcastView, marks: _Layout, passed: float | None) -> str:
    """Describe the chart in words, for screen readers."""
    takes = view.takes
    parts = [
        f"Version {view.version} reached {len(takes) + view.unshown} nodes, the last one shown after"
        f" {formatting.moment(takes[-1].complete)}."
    ]
    if passed is not None:
        parts.append(f"Other nodes sent {charts.percent(passed)} of it.")
    for take in takes[:_SPOKEN_NODES]:
        greatest = max(take.feeds, key=lambda feed: feed.nbytes, default=None)
        source = f", mostly from {marks.name(greatest.peer)}" if greatest else ""
        parts.append(f"{marks.name(take.node)} after {formatting.moment(take.complete)}{source}.")
    if len(takes) > _SPOKEN_NODES:
        parts.append(f"{len(takes) - _SPOKEN_NODES} more are drawn.")
    return " ".join(parts)


def _by_begin(feed: TransferView) -> tuple[float, str]:
    return feed.began, feed.peer


def _cut(name: str, letters: int) -> str:
    """Shorten a name to `letters` characters by removing its middle."""
    tail = letters // 3
    return name if len(name) <= letters else f"{name[: letters - tail - 1].rstrip()}…{name[-tail:].lstrip()}"
