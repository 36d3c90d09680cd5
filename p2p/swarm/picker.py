"""Choose which missing chunk is requested from which connected peer. No I/O: `now` and `seed` are arguments.

1. A chunk is requested from one peer at a time. With a plan (p2p/plan/trees.py), chunk i is requested from the parent
   of stripe i mod K, in order. It is requested even before the parent has it: the parent forwards it on arrival. A new
   plan cancels requests for chunks that former parents lack, since two peers might else wait for each other.
2. A chunk is loose, so that any peer may be asked for it, in three cases: there is no plan; its stripe's parent is
   stalled, or was absent for `PARENT_GRACE` seconds; its stripe has lagged behind another one by `LAG_SHARE` for
   `LAG_SECONDS`, and the chunk was not requested yet. Loose chunks are requested rarest first among the known peers.
   The seed breaks ties, so that peers that start together request different chunks and can then trade.
3. A peer that is no parent has at most as many requests open as it answers in `PIPELINE_SECONDS`, and at most
   `_window`: a chunk queued at a slow uplink could have come from elsewhere. The fallback (the coordinator) is asked
   last, for loose chunks that no other live peer has, and only while all of this holds:
   - Each other connected peer has sent its `Have`, or had `FALLBACK_GRACE_SECONDS` seconds to do so.
   - No other peer announced a chunk of that stripe within the last `FALLBACK_GRACE_SECONDS` seconds. A stripe that
     still spreads will come from peers, and the fallback would send it twice.
   - The fallback's window has room. The window is small and grows only while answers are prompt. With many downloaders
     in its queue, each must ask for little, or many request a chunk before the first of them can forward it.
4. A peer is stalled when it has sent no chunk for too long, although requests are open:
   - The limit is `STALL_FACTOR` times its mean interval between chunks, at least `STALL_MIN` seconds. Before its first
     chunk, it is `CHUNK_STALL_SECONDS` seconds plus the time of one chunk at `SLOW`. Both are doubled for a parent that
     lacks every chunk requested from it.
   - In the endgame, once every missing chunk is requested, it is `ENDGAME_FACTOR` times the interval, at least
     `ENDGAME_MIN` seconds, at most `ENDGAME_STALL` plus the time of one chunk at `ENDGAME_SLOW`. The slowest peer may
     have the last chunks, and requesting them twice costs little.
   - Chunks requested from a stalled peer may be requested elsewhere, from the fallback too. Its own requests stay open,
     and a chunk from it makes it live again: slowness is never punished. A request is cancelled once its chunk came
     from another peer.
5. A peer is dropped for good after `FAILED_PROOFS_MAX` chunks fail their proof. One is not enough: a disk may fail.
6. A peer that reconnects starts as a new peer, except that rule 5 remembers it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from echo2.p2p.swarm.peer_state import Availability, PeerState, Stripe, bits, stall_seconds

FALLBACK_GRACE_SECONDS = 0.5
PARENT_GRACE = 2.0
UPDATE_INTERVAL = 0.25
"""Seconds between two updates of stalled peers and lagging stripes."""
FAILED_PROOFS_MAX = 2
WINDOW_BYTES = 2 << 20
WINDOW_MIN, WINDOW_MAX = 8, 64
PIPELINE_SECONDS = 1.0
STRIPE_BYTES = 1 << 20
STRIPE_MIN, STRIPE_MAX = 8, 32
"""Requests open at a stripe's parent: for `STRIPE_BYTES` bytes, within these numbers."""
LAG_MIN, LAG_SHARE, LAG_SECONDS = 4, 0.25, 2.0
"""Chunks, share of a stripe, and seconds. Buffers on the path let stripes run ahead of each other for a while."""
_LEAST_INTERVAL_SECONDS = 1e-3
FALLBACK_WINDOW_MIN = 2
FALLBACK_QUEUE_SECONDS = 0.05
"""Seconds by which an answer of the fallback may exceed twice its best time before its window shrinks."""


@dataclass(frozen=True)
class PeerRequest:
    """A request for chunk `index` of `peer`, or its cancellation."""

    peer: str
    index: int


class ChunkPicker:
    """The state of one download. Sets of chunks are integers: bit i is chunk i."""

    def __init__(self, chunks: int, chunk_size: int, *, seed: int, have: int = 0, fallback: str | None = None) -> None:
        """`chunks`: number of chunks in the payload. `chunk_size`: bytes. `have`: the set of chunks already stored.
        `fallback`: the coordinator's peer id."""
        self.chunks = chunks
        self.missing = ((1 << chunks) - 1) & ~have
        self.needs_more_peers = True
        """Whether peers beyond the plan's parents are useful: some loose chunk is not requested from any peer yet."""
        self._fallback = fallback or ""
        self._random = Random(seed)
        self._chunk_size = chunk_size
        self._window = min(max(WINDOW_BYTES // chunk_size, WINDOW_MIN), WINDOW_MAX)
        self._stripe_window = min(max(STRIPE_BYTES // chunk_size, STRIPE_MIN), STRIPE_MAX)
        self._fallback_window = FALLBACK_WINDOW_MIN
        self._fallback_best = math.inf
        self._fallback_requested_at: dict[int, float] = {}
        self._awaiting_have: dict[str, float] = {}
        """Connected peers that have not sent their `Have` yet -> until when to wait for it."""
        self._awaited_parents: dict[str, float] = {}
        """Parents that are not connected -> until when to wait for them."""
        self._peers: dict[str, PeerState] = {}
        self._strikes: dict[str, int] = {}
        self._stripes: list[Stripe] = []
        self._reserved = 0
        """Missing chunks that are not loose."""
        self._requested_live = 0
        self._requested = 0
        """Chunks requested from any peer, stalled ones included."""
        self._update_at = -math.inf
        self._may_request = True
        """False while there is surely nothing to request. A `Have` of chunks that are requested already does not set
        it."""
        self._cancellations: list[PeerRequest] = []
        self._availability = Availability()

    @property
    def complete(self) -> bool:
        return not self.missing

    def follow(self, parents: Sequence[str], now: float) -> None:
        """Set the plan: the parent of each stripe; an empty one means no plan. Requests for chunks that former parents
        have stay open."""
        count = len(parents)
        everything, each = (1 << self.chunks) - 1, 0
        for first in range(0, self.chunks, count or 1):
            each |= 1 << first
        self._stripes = [
            Stripe(each << number & everything, parent, self._stripe_window, now)
            for number, parent in enumerate(parents)
        ]
        self._awaited_parents = {parent: now + PARENT_GRACE for parent in parents if parent not in self._peers}
        for peer, peer_state in self._peers.items():
            fed = sum(stripe.chunks for stripe in self._stripes if stripe.parent == peer)
            for bit in bits(peer_state.requested & ~peer_state.has & ~fed):
                self._cancel_request(peer, peer_state, bit)
        self._update_at = now
        self._may_request = True
        self.needs_more_peers = not parents

    def is_dropped(self, peer: str) -> bool:
        """Tell whether `peer` was dropped for failed proofs (rule 5)."""
        return self._strikes.get(peer, 0) >= FAILED_PROOFS_MAX

    def stream_opened(self, peer: str, now: float) -> None:
        """Note that a stream to `peer` is being opened; its `Have` may follow."""
        if peer != self._fallback:
            self._awaiting_have[peer] = now + FALLBACK_GRACE_SECONDS

    def on_no_chunks(self, peer: str) -> None:
        """Note an empty `HaveMore`: `peer` is connected, and has no chunk to announce now."""
        self._may_request |= self._awaiting_have.pop(peer, None) is not None

    def on_have(self, peer: str, indices: int, now: float) -> None:
        """Note that `peer` has these chunks in addition to those announced before; it may be fetching the others."""
        self._may_request |= self._awaiting_have.pop(peer, None) is not None
        if self.is_dropped(peer):
            return
        peer_state = self._peers.get(peer)
        if peer_state is None:
            peer_state = self._peers[peer] = PeerState(progress=now)
            self._awaited_parents.pop(peer, None)
            self._update_at = now
            self._may_request = True
        new = indices & ~peer_state.has
        self._availability.add(new)
        peer_state.has |= new
        wanted = new & self.missing & ~self._reserved
        self._may_request |= wanted & ~self._requested_live != 0
        if wanted and peer != self._fallback and not peer_state.stalled:
            for stripe in self._stripes:
                if wanted & stripe.chunks:
                    stripe.last_progress = now

    def on_leave(self, peer: str) -> None:
        """Note that `peer` left; its open requests become free for other peers."""
        self._awaiting_have.pop(peer, None)
        peer_state = self._peers.pop(peer, None)
        if peer_state is not None:
            self._availability.remove(peer_state.has)
            self._cancellations = [request for request in self._cancellations if request.peer != peer]
            self._recount()
            self._update_at = -math.inf

    def chunk_lost(self, peer: str, index: int) -> None:
        """Note that `peer` no longer has a chunk."""
        peer_state = self._peers.get(peer)
        if peer_state is not None:
            self._availability.remove(peer_state.has & 1 << index)
            peer_state.has &= ~(1 << index)
            peer_state.on_answer(index)
            self._recount()

    def is_requested(self, peer: str, index: int) -> bool:
        """Tell whether `peer` was asked for this chunk and has not answered."""
        peer_state = self._peers.get(peer)
        return peer_state is not None and (peer_state.requested >> index & 1 == 1 or index in peer_state.cancelled)

    def on_chunk(self, peer: str, index: int, now: float) -> None:
        """Note that a verified chunk came from `peer`."""
        bit = 1 << index
        self.missing &= ~bit
        self._requested_live &= ~bit
        self._may_request = True
        peer_state = self._peers.get(peer)
        if peer_state is not None:
            gap = now - peer_state.progress
            peer_state.interval = gap if peer_state.interval is None else 0.8 * peer_state.interval + 0.2 * gap
            peer_state.progress = now
            peer_state.pipeline = min(
                max(int(PIPELINE_SECONDS / max(peer_state.interval, _LEAST_INTERVAL_SECONDS)), 1), self._window
            )
            peer_state.on_answer(index)
            if peer_state.stalled:
                peer_state.stalled = False
                self._recount()
                self._update_at = now
            if peer == self._fallback and (asked := self._fallback_requested_at.pop(index, None)) is not None:
                self._adapt_window(now - asked)
        for name, other in self._peers.items():
            if other.requested & bit:
                self._cancel_request(name, other, bit)

    def proof_failed(self, peer: str, index: int) -> bool:
        """Note that a chunk from `peer` failed its proof. Return whether the peer must be dropped now (rule 5)."""
        self._strikes[peer] = self._strikes.get(peer, 0) + 1
        self.chunk_lost(peer, index)
        if self.is_dropped(peer):
            self.on_leave(peer)
        return self.is_dropped(peer)

    def next_requests(self, now: float, most: int | None = None) -> list[PeerRequest]:
        """Return the requests to send now, at most `most`. They count as sent."""
        if not self.missing:
            return []
        if now >= self._update_at:
            self._update_stalls(now)
        room = self.chunks if most is None else most
        requests: list[PeerRequest] = []
        if self._may_request:
            requests = self._request_from_parents(room, now)
            if self.missing & ~self._requested_live & ~self._reserved:
                self._request_loose(requests, room, now)
            self._may_request = most is not None
        self.needs_more_peers = self.missing & ~self._requested_live & ~self._reserved != 0
        return requests

    def take_cancellations(self) -> list[PeerRequest]:
        """Return the requests to cancel, each once."""
        taken, self._cancellations = self._cancellations, []
        return taken

    def deadline(self) -> float | None:
        """Return the time at which a peer stalls or a grace period ends, so that `next_requests` must be called again;
        None: never."""
        owing = [m.progress + self._stall_timeout(m) for m in self._peers.values() if m.requested and not m.stalled]
        return min([*owing, *self._awaiting_have.values(), *self._awaited_parents.values()], default=None)

    def _request_from_parents(self, room: int, now: float) -> list[PeerRequest]:
        """Refill the window of each stripe's parent once it is half empty (rule 1)."""
        requests: list[PeerRequest] = []
        for stripe in self._stripes:
            peer_state = self._peers.get(stripe.parent)
            if peer_state is None or peer_state.stalled or room <= len(requests):
                continue
            open_ = (peer_state.requested & stripe.chunks).bit_count()
            if 2 * open_ > stripe.window:
                continue
            wanted = self.missing & stripe.chunks & ~self._requested_live
            for _ in range(min(stripe.window - open_, room - len(requests))):
                if not wanted:
                    break
                bit = wanted & -wanted
                wanted ^= bit
                requests.append(self._request(stripe.parent, peer_state, bit, now))
        return requests

    def _request_loose(self, requests: list[PeerRequest], room: int, now: float) -> None:
        """Request the loose chunks, by rules 2 and 3."""
        loose = self.missing & ~self._requested_live & ~self._reserved
        peers = [
            peer
            for peer, peer_state in self._peers.items()
            if peer_state.has & loose
            and peer != self._fallback
            and 4 * peer_state.requested.bit_count() <= 3 * peer_state.pipeline
        ]
        self._random.shuffle(peers)
        slow = {stripe.parent: stripe.chunks for stripe in self._stripes if stripe.is_lagging} if peers else {}
        while peers:  # one request per peer and round, so that the load spreads over a chunk's holders
            for peer in list(peers):
                ahead = self._peers[peer].pipeline
                if len(requests) >= room or not self._request_rarest(requests, peer, ahead, slow.get(peer, 0), now):
                    peers.remove(peer)
        self._awaiting_have = {peer: until for peer, until in self._awaiting_have.items() if until > now}
        fallback = self._peers.get(self._fallback)
        if fallback is None or self._awaiting_have or fallback.requested.bit_count() >= self._fallback_window:
            return
        spreading = sum(
            stripe.chunks for stripe in self._stripes if now < stripe.last_progress + FALLBACK_GRACE_SECONDS
        )
        others = self._others()
        while len(requests) < room and self._request_rarest(
            requests, self._fallback, self._fallback_window, others | spreading, now
        ):
            self._fallback_requested_at[requests[-1].index] = now

    def _request_rarest(self, requests: list[PeerRequest], peer: str, window: int, excluded: int, now: float) -> bool:
        peer_state = self._peers[peer]
        if peer_state.stalled or peer_state.requested.bit_count() >= window:
            return False
        bit = self._rarest(peer_state.has & self.missing & ~self._requested_live & ~self._reserved & ~excluded)
        if bit:
            requests.append(self._request(peer, peer_state, bit, now))
        return bit != 0

    def _request(self, peer: str, peer_state: PeerState, bit: int, now: float) -> PeerRequest:
        if not peer_state.requested:
            peer_state.progress = now
        peer_state.requested |= bit
        self._requested_live |= bit
        self._requested |= bit
        return PeerRequest(peer, bit.bit_length() - 1)

    def _adapt_window(self, waited: float) -> None:
        self._fallback_best = min(self._fallback_best, waited)
        step = -1 if waited > 2 * self._fallback_best + FALLBACK_QUEUE_SECONDS else 1
        self._fallback_window = min(max(self._fallback_window + step, FALLBACK_WINDOW_MIN), self._window)

    def _others(self) -> int:
        """Return the chunks that live peers other than the fallback have."""
        bits = 0
        for peer, peer_state in self._peers.items():
            if peer != self._fallback and not peer_state.stalled:
                bits |= peer_state.has
        return bits

    def _rarest(self, candidates: int) -> int:
        """Return the bit of a rarest candidate; 0 for an empty set."""
        if not candidates:
            return 0
        rarest = self._availability.rarest(candidates)
        start = self._random.randrange(self.chunks)
        rest = rarest >> start << start or rarest
        return rest & -rest

    def _update_stalls(self, now: float) -> None:
        """Find stalled peers and lagging stripes, and derive the chunks that are not loose (rules 2 and 4)."""
        self._update_at = now + UPDATE_INTERVAL
        for peer_state in self._peers.values():
            if peer_state.requested and not peer_state.stalled:
                peer_state.stalled = now - peer_state.progress >= self._stall_timeout(peer_state)
        self._recount()
        self._awaited_parents = {parent: until for parent, until in self._awaited_parents.items() if until > now}
        live = [stripe for stripe in self._stripes if self._is_live(stripe.parent)]
        if live:
            ahead = min((self.missing & stripe.chunks).bit_count() for stripe in live)
            for stripe in live:
                self._update_lag(stripe, ahead, now)
        self._reserved = 0
        for stripe in self._stripes:
            if stripe.parent in self._awaited_parents or (self._is_live(stripe.parent) and not stripe.is_lagging):
                self._reserved |= stripe.chunks
                stripe.last_progress = now

    def _update_lag(self, stripe: Stripe, ahead: int, now: float) -> None:
        """Update whether a stripe lags. At each update of a lagging stripe, its window is halved, and the requests open
        at its parent beyond the window are cancelled."""
        behind = (self.missing & stripe.chunks).bit_count() - ahead
        if behind <= max(LAG_MIN, LAG_SHARE * stripe.chunks.bit_count()):
            stripe.behind_since = None
            stripe.is_lagging = False
            stripe.window = self._stripe_window
            return
        if stripe.behind_since is None:
            stripe.behind_since = now
        stripe.is_lagging = now - stripe.behind_since >= LAG_SECONDS
        if not stripe.is_lagging:
            return
        stripe.window = max(stripe.window // 2, 2)
        peer_state = self._peers[stripe.parent]
        requested = peer_state.requested & stripe.chunks
        while requested.bit_count() > stripe.window:
            bit = 1 << requested.bit_length() - 1
            requested ^= bit
            self._cancel_request(stripe.parent, peer_state, bit)
        self._recount()  # the same chunks may be requested from another peer too, since the parent had stalled

    def _is_live(self, parent: str) -> bool:
        peer_state = self._peers.get(parent)
        return peer_state is not None and not peer_state.stalled

    def _stall_timeout(self, peer_state: PeerState) -> float:
        return stall_seconds(peer_state, self._chunk_size, ending=not self.missing & ~self._requested)

    def _cancel_request(self, peer: str, peer_state: PeerState, bit: int) -> None:
        index = bit.bit_length() - 1
        peer_state.requested &= ~bit
        peer_state.cancelled[index] = peer_state.cancelled.get(index, 0) + 1
        self._cancellations.append(PeerRequest(peer, index))

    def _recount(self) -> None:
        self._requested_live = 0
        self._requested = 0
        self._may_request = True
        for peer_state in self._peers.values():
            self._requested |= peer_state.requested
            if not peer_state.stalled:
                self._requested_live |= peer_state.requested
