"""Who has which chunk, what to ask of whom, and whom to leave. No I/O: `now` and `seed` are arguments.

1. A chunk is asked of one peer at a time. With a plan (p2p/plan/trees.py), chunk i is asked of the parent of stripe i
   mod K, in order, also before the parent has it: it sends it on when it does. A new plan takes back what former
   parents have not got themselves; two peers might else wait for each other.
2. A stripe's chunks are loose while there is no plan, while its parent is not there (`AWAITED` seconds are given to it
   to come) or stalled; and those not yet asked for while it has lagged behind another stripe by a quarter for `LAGS`
   seconds. Loose chunks are asked of any peer that has them, rarest first among the peers known; ties by the seed, so
   that peers that start together ask for different chunks and can then trade.
3. A peer that is no parent has as many asks open as it answers in `AHEAD` seconds, at most `window`: a chunk that
   waits behind a slow uplink could have come from elsewhere. `last` (the coordinator) is asked for loose chunks only
   where no other live peer has them, once every other connected peer has said what it has (or `GRACE` seconds have
   passed), and no other has told of a new chunk of that stripe for `GRACE` seconds: a stripe that still spreads will
   come from those, and `last` would send it twice. Its window is small, and grows only while answers come promptly:
   where many wait in its queue, each must ask for little, or many will have asked for the same chunk before the first
   of them can pass it on.
4. A peer that owes chunks which it has, and has sent none for its patience, is stalled: `SLOWER` times the interval in
   which its chunks came so far, at least `QUIET` seconds; before its first chunk `STALL` seconds and the time of one
   chunk at `SLOW`; twice as long where a parent owes only what it has not got itself. Once all that is missing has been
   asked for, `HASTY` times the interval, at least `QUIET_END` seconds, at most `STALL_END` and the time of one chunk at
   `SLOW_END`: the last chunks may be with the slowest, and to ask for them twice costs little. What a stalled peer owes
   may be asked elsewhere, `last` included. Its asks stay open, and a chunk that comes makes it live again: who is slow
   is never banned. What came from elsewhere is taken back.
5. Two chunks from one peer that fail their proof, and it is dropped for good. One is not enough: a disk may fail.
6. A peer that comes back after it left is a new peer, except that rule 5 remembers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from p2p.swarm.peer_state import Availability, PeerState, StallTimer, Stripe, bits

GRACE = 0.5
"""Seconds for a connected peer to say what it has, and for a stripe to bring news, before `last` is asked."""
AWAITED = 2.0
"""Seconds for a parent to be connected and to begin with the payload, before its stripe is loose."""
JUDGED = 0.25
"""Seconds from one look at stalled peers and lagging stripes to the next."""
STRIKES = 2
WINDOW_BYTES = 2 << 20
WINDOW_MIN, WINDOW_MAX = 8, 64
AHEAD = 1.0
"""Seconds for which the asks open at a peer that is no parent are to last."""
STRIPE_BYTES = 1 << 20
STRIPE_MIN, STRIPE_MAX = 8, 32
"""Asks open at a stripe's parent: for so many bytes, within these numbers."""
LAG_MIN, LAG_SHARE, LAGS = 4, 0.25, 2.0
"""Chunks, share of a stripe, and seconds: buffers on the way let stripes run ahead of each other for a while."""
_SOON = 1e-3
FALLBACK_WINDOW_MIN = 2
QUEUED = 0.05
"""Seconds by which an answer of `last` may exceed twice its best before its window shrinks."""


@dataclass(frozen=True)
class PeerRequest:
    """Ask `peer` for chunk `index`; or take that ask back."""

    peer: str
    index: int


class ChunkPicker:
    """The state of one download. Sets of chunks are integers: bit i is chunk i."""

    def __init__(self, chunks: int, chunk_size: int, *, seed: int, have: int = 0, fallback: str | None = None) -> None:
        """`chunks`: how many the payload has; `chunk_size`: bytes; `have`: those already here."""
        self.chunks = chunks
        self.missing = ((1 << chunks) - 1) & ~have
        self.needs_more_peers = True
        """Whether more peers are wanted than the plan's parents: some loose chunk was asked of nobody yet."""
        self._fallback = fallback
        self._random = Random(seed)
        self._stall_timer = StallTimer(chunk_size)
        self._window = min(max(WINDOW_BYTES // chunk_size, WINDOW_MIN), WINDOW_MAX)
        self._stripe_window = min(max(STRIPE_BYTES // chunk_size, STRIPE_MIN), STRIPE_MAX)
        self._fallback_window = FALLBACK_WINDOW_MIN
        self._fallback_best = math.inf
        self._fallback_asked: dict[int, float] = {}
        self._silent: dict[str, float] = {}
        """Connected peers that have not yet said what they have -> until when to wait for them."""
        self._awaited: dict[str, float] = {}
        """Parents that are not there -> until when to wait for them."""
        self._peers: dict[str, PeerState] = {}
        self._strikes: dict[str, int] = {}
        self._stripes: list[Stripe] = []
        self._shielded = 0
        """Missing chunks that are not loose."""
        self._asked = 0
        """What live members owe."""
        self._requested = 0
        """What stalled members owe, too."""
        self._judge_at = -math.inf
        self._may_request = True
        """Whether there may be something to ask; news of what was asked already change nothing there."""
        self._taken_back: list[PeerRequest] = []
        self._availability = Availability()

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    @property
    def parents(self) -> set[str]:
        """Those of the plan."""
        return {stripe.parent for stripe in self._stripes}

    def follow(self, parents: Sequence[str], now: float) -> None:
        """The parent of each stripe; none: there is no plan. What was asked of former parents stays asked."""
        count = len(parents)
        everything, each = (1 << self.chunks) - 1, 0
        for first in range(0, self.chunks, count or 1):
            each |= 1 << first
        self._stripes = [
            Stripe(each << number & everything, parent, self._stripe_window, now)
            for number, parent in enumerate(parents)
        ]
        self._awaited = {parent: now + AWAITED for parent in parents if parent not in self._peers}
        for peer, peer_state in self._peers.items():
            fed = sum(stripe.chunks for stripe in self._stripes if stripe.parent == peer)
            for bit in bits(peer_state.requested & ~peer_state.has & ~fed):
                self._cancel_request(peer, peer_state, bit)
        self._judge_at, self._may_request = now, True
        self.needs_more_peers = not parents

    def dropped(self, peer: str) -> bool:
        """Whether rule 5 has struck."""
        return self._strikes.get(peer, 0) >= STRIKES

    def joined(self, peer: str, now: float) -> None:
        """A stream to `peer` is being opened; it may yet say what it has."""
        if peer != self._fallback:
            self._silent[peer] = now + GRACE

    def waits(self, peer: str) -> None:
        """`peer` is there, and has nothing to say (yet)."""
        self._may_request |= self._silent.pop(peer, None) is not None

    def has(self, peer: str, indices: int, now: float) -> None:
        """`peer` says that it has these chunks, in addition to what it said before; it may be fetching the others."""
        self._may_request |= self._silent.pop(peer, None) is not None
        if self.dropped(peer):
            return
        peer_state = self._peers.get(peer)
        if peer_state is None:
            peer_state = self._peers[peer] = PeerState(progress=now)
            self._awaited.pop(peer, None)
            self._judge_at, self._may_request = now, True
        new = indices & ~peer_state.has
        self._availability.add(new)
        peer_state.has |= new
        wanted = new & self.missing & ~self._shielded
        self._may_request |= wanted & ~self._asked != 0
        if wanted and peer != self._fallback and not peer_state.stalled:
            for stripe in self._stripes:
                if wanted & stripe.chunks:
                    stripe.news = now

    def left(self, peer: str) -> None:
        """`peer` is gone; what it owed is asked elsewhere."""
        self._silent.pop(peer, None)
        peer_state = self._peers.pop(peer, None)
        if peer_state is not None:
            self._availability.remove(peer_state.has)
            self._taken_back = [ask for ask in self._taken_back if ask.peer != peer]
            self._recount()
            self._judge_at = -math.inf

    def chunk_lost(self, peer: str, index: int) -> None:
        """`peer` no longer has a chunk."""
        peer_state = self._peers.get(peer)
        if peer_state is not None:
            self._availability.remove(peer_state.has & 1 << index)
            peer_state.has &= ~(1 << index)
            if peer_state.requested >> index & 1:
                peer_state.requested ^= 1 << index
            else:
                _ack_cancelled(peer_state, index)
            self._recount()

    def requested(self, peer: str, index: int) -> bool:
        """Whether `peer` was asked for this chunk and has not answered."""
        peer_state = self._peers.get(peer)
        return peer_state is not None and (peer_state.requested >> index & 1 == 1 or index in peer_state.cancelled)

    def arrived(self, peer: str, index: int, now: float) -> None:
        """A verified chunk came from `peer`."""
        bit = 1 << index
        self.missing &= ~bit
        self._asked &= ~bit
        self._may_request = True
        peer_state = self._peers.get(peer)
        if peer_state is not None:
            gap = now - peer_state.progress
            peer_state.interval = gap if peer_state.interval is None else 0.8 * peer_state.interval + 0.2 * gap
            peer_state.progress = now
            peer_state.ahead = min(max(int(AHEAD / max(peer_state.interval, _SOON)), 1), self._window)
            if peer_state.requested & bit:
                peer_state.requested ^= bit
            else:
                _ack_cancelled(peer_state, index)
            if peer_state.stalled:
                peer_state.stalled = False
                self._recount()
                self._judge_at = now
            if peer == self._fallback and (asked := self._fallback_asked.pop(index, None)) is not None:
                self._adapt_window(now - asked)
        for name, other in self._peers.items():
            if other.requested & bit:
                self._cancel_request(name, other, bit)

    def proof_failed(self, peer: str, index: int) -> bool:
        """A chunk from `peer` failed its proof. Whether the peer is to be dropped now."""
        self._strikes[peer] = self._strikes.get(peer, 0) + 1
        self.chunk_lost(peer, index)
        if self.dropped(peer):
            self.left(peer)
        return self.dropped(peer)

    def next(self, now: float, most: int | None = None) -> list[PeerRequest]:
        """What to ask now, at most so many. The asks count as made."""
        if not self.missing:
            return []
        if now >= self._judge_at:
            self._judge(now)
        room = self.chunks if most is None else most
        asks: list[PeerRequest] = []
        if self._may_request:
            asks = self._ask_parents(room, now)
            if self.missing & ~self._asked & ~self._shielded:
                self._ask_others(asks, room, now)
            self._may_request = most is not None
        self.needs_more_peers = self.missing & ~self._asked & ~self._shielded != 0
        return asks

    def take_back(self) -> list[PeerRequest]:
        """Asks that are to be taken back, each told once."""
        taken, self._taken_back = self._taken_back, []
        return taken

    def deadline(self) -> float | None:
        """When time alone will change the answer of `next`: a peer stalls, or a grace is over. None: never."""
        owing = [m.progress + self._patience(m) for m in self._peers.values() if m.requested and not m.stalled]
        return min([*owing, *self._silent.values(), *self._awaited.values()], default=None)

    def _ask_parents(self, room: int, now: float) -> list[PeerRequest]:
        """Rule 1: a stripe's window is filled when it is half empty."""
        asks: list[PeerRequest] = []
        for stripe in self._stripes:
            peer_state = self._peers.get(stripe.parent)
            if peer_state is None or peer_state.stalled or room <= len(asks):
                continue
            open_ = (peer_state.requested & stripe.chunks).bit_count()
            if 2 * open_ > stripe.window:
                continue
            wanted = self.missing & stripe.chunks & ~self._asked
            for _ in range(min(stripe.window - open_, room - len(asks))):
                if not wanted:
                    break
                bit = wanted & -wanted
                wanted ^= bit
                asks.append(self._request(stripe.parent, peer_state, bit, now))
        return asks

    def _ask_others(self, asks: list[PeerRequest], room: int, now: float) -> None:
        """Rules 2 and 3, for what is loose."""
        loose = self.missing & ~self._asked & ~self._shielded
        peers = [
            peer
            for peer, peer_state in self._peers.items()
            if peer_state.has & loose
            and peer != self._fallback
            and 4 * peer_state.requested.bit_count() <= 3 * peer_state.ahead
        ]
        self._random.shuffle(peers)
        slow = {stripe.parent: stripe.chunks for stripe in self._stripes if stripe.lags} if peers else {}
        while peers:  # one ask a peer and round, so that the load spreads over a chunk's holders
            for peer in list(peers):
                ahead = self._peers[peer].ahead
                if len(asks) >= room or not self._ask(asks, peer, ahead, slow.get(peer, 0), now):
                    peers.remove(peer)
        self._silent = {peer: until for peer, until in self._silent.items() if until > now}
        fallback = self._peers.get(self._fallback) if self._fallback is not None else None
        if (
            self._fallback is None
            or fallback is None
            or self._silent
            or fallback.requested.bit_count() >= self._fallback_window
        ):
            return
        spreading = sum(stripe.chunks for stripe in self._stripes if now < stripe.news + GRACE)
        others = self._others()
        while len(asks) < room and self._ask(asks, self._fallback, self._fallback_window, others | spreading, now):
            self._fallback_asked[asks[-1].index] = now

    def _ask(self, asks: list[PeerRequest], peer: str, window: int, but: int, now: float) -> bool:
        peer_state = self._peers[peer]
        if peer_state.stalled or peer_state.requested.bit_count() >= window:
            return False
        bit = self._rarest(peer_state.has & self.missing & ~self._asked & ~self._shielded & ~but)
        if bit:
            asks.append(self._request(peer, peer_state, bit, now))
        return bit != 0

    def _request(self, peer: str, peer_state: PeerState, bit: int, now: float) -> PeerRequest:
        if not peer_state.requested:
            peer_state.progress = now
        peer_state.requested |= bit
        self._asked |= bit
        self._requested |= bit
        return PeerRequest(peer, bit.bit_length() - 1)

    def _adapt_window(self, waited: float) -> None:
        self._fallback_best = min(self._fallback_best, waited)
        step = -1 if waited > 2 * self._fallback_best + QUEUED else 1
        self._fallback_window = min(max(self._fallback_window + step, FALLBACK_WINDOW_MIN), self._window)

    def _others(self) -> int:
        """What live peers other than `fallback` have."""
        bits = 0
        for peer, peer_state in self._peers.items():
            if peer != self._fallback and not peer_state.stalled:
                bits |= peer_state.has
        return bits

    def _rarest(self, candidates: int) -> int:
        """The bit of one of them; 0 where there is none."""
        if not candidates:
            return 0
        rarest = self._availability.rarest(candidates)
        start = self._random.randrange(self.chunks)
        rest = rarest >> start << start or rarest
        return rest & -rest

    def _judge(self, now: float) -> None:
        """Rules 2 and 4: who is stalled, what lags, and so what is loose."""
        self._judge_at = now + JUDGED
        for peer_state in self._peers.values():
            if (
                peer_state.requested
                and not peer_state.stalled
                and now - peer_state.progress >= self._patience(peer_state)
            ):
                peer_state.stalled = True
        self._recount()
        self._awaited = {parent: until for parent, until in self._awaited.items() if until > now}
        live = [stripe for stripe in self._stripes if self._feeds(stripe.parent)]
        if live:
            ahead = min((self.missing & stripe.chunks).bit_count() for stripe in live)
            for stripe in live:
                self._judge_stripe(stripe, ahead, now)
        self._shielded = 0
        for stripe in self._stripes:
            if stripe.parent in self._awaited or (self._feeds(stripe.parent) and not stripe.lags):
                self._shielded |= stripe.chunks
                stripe.news = now

    def _judge_stripe(self, stripe: Stripe, ahead: int, now: float) -> None:
        """A lagging stripe's parent keeps half of what it was asked for, and half again at the next look."""
        behind = (self.missing & stripe.chunks).bit_count() - ahead
        if behind <= max(LAG_MIN, LAG_SHARE * stripe.chunks.bit_count()):
            stripe.behind_since, stripe.lags, stripe.window = None, False, self._stripe_window
            return
        if stripe.behind_since is None:
            stripe.behind_since = now
        stripe.lags = now - stripe.behind_since >= LAGS
        if not stripe.lags:
            return
        stripe.window = max(stripe.window // 2, 2)
        peer_state = self._peers[stripe.parent]
        requested = peer_state.requested & stripe.chunks
        while requested.bit_count() > stripe.window:
            bit = 1 << requested.bit_length() - 1
            requested ^= bit
            self._cancel_request(stripe.parent, peer_state, bit)
        self._recount()  # another may have been asked for them too, while the parent had stalled

    def _feeds(self, parent: str) -> bool:
        peer_state = self._peers.get(parent)
        return peer_state is not None and not peer_state.stalled

    def _patience(self, peer_state: PeerState) -> float:
        """Seconds without a chunk after which a peer is stalled (rule 4)."""
        return self._stall_timer(peer_state, ending=not self.missing & ~self._requested)

    def _cancel_request(self, peer: str, peer_state: PeerState, bit: int) -> None:
        index = bit.bit_length() - 1
        peer_state.requested &= ~bit
        peer_state.cancelled[index] = peer_state.cancelled.get(index, 0) + 1
        self._taken_back.append(PeerRequest(peer, index))

    def _recount(self) -> None:
        self._asked, self._requested, self._may_request = 0, 0, True
        for peer_state in self._peers.values():
            self._requested |= peer_state.requested
            if not peer_state.stalled:
                self._asked |= peer_state.requested


def _ack_cancelled(peer_state: PeerState, index: int) -> None:
    """One ask that was taken back is answered."""
    left = peer_state.cancelled.pop(index, 0) - 1
    if left > 0:
        peer_state.cancelled[index] = left
