"""Who has which chunk, what to ask of whom, and whom to leave. No I/O: `now` and `seed` are arguments.

1. A chunk is asked of one peer at a time. Rarest first among the peers known; ties by the seed, so that peers that
   start together ask for different chunks and can then trade.
2. Each peer has at most `window` asks open. `last` (the coordinator) is asked only for chunks that no other live peer
   has, once every other connected peer has said what it has (or `GRACE` seconds have passed). Its window is small,
   and grows only while answers come promptly: where many wait in its queue, each must ask for little, or
   many will have asked for the same chunk before the first of them can pass it on.
3. A peer that is owed chunks and has sent none for `STALL` seconds is stalled: what it owes may be asked elsewhere,
   `last` included. Its asks stay open (they may still come), and a chunk that comes makes it live again.
4. Two chunks from one peer that fail their proof, and it is dropped for good. One is not enough: a disk may fail.
5. A peer that comes back after it left is a new peer, except that rule 4 remembers.
"""

import math
from dataclasses import dataclass, field
from random import Random

STALL = 5.0
"""Seconds without a chunk from a peer that owes one."""
GRACE = 0.5
"""Seconds for a connected peer to say what it has, before `last` is asked."""
STRIKES = 2
WINDOW_BYTES = 2 << 20
WINDOW_MIN, WINDOW_MAX = 4, 64
LAST_WINDOW_MIN = 2
QUEUED = 0.05
"""Seconds by which an answer of `last` may exceed twice its best before its window shrinks."""


@dataclass(frozen=True)
class Ask:
    """Ask `peer` for chunk `index`."""

    peer: str
    index: int


@dataclass
class _Member:
    has: int = 0
    owes: dict[int, float] = field(default_factory=dict)
    """Chunk -> when it was asked for."""
    progress: float = 0.0
    stalled: bool = False


class Swarm:
    """The state of one download. Sets of chunks are integers: bit i is chunk i."""

    def __init__(self, chunks: int, chunk_size: int, *, seed: int, have: int = 0, last: str | None = None) -> None:
        """`chunks`: how many the payload has; `chunk_size`: bytes; `have`: those already here."""
        self.chunks = chunks
        self.missing = ((1 << chunks) - 1) & ~have
        self._last = last
        self._random = Random(seed)
        self._window = min(max(WINDOW_BYTES // chunk_size, WINDOW_MIN), WINDOW_MAX)
        self._last_window = LAST_WINDOW_MIN
        self._last_best = math.inf
        self._silent: dict[str, float] = {}
        """Connected peers that have not yet said what they have -> until when to wait for them."""
        self._members: dict[str, _Member] = {}
        self._strikes: dict[str, int] = {}
        self._rarity = {0: (1 << chunks) - 1}
        """Number of holders -> the chunks that have so many."""

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    def dropped(self, peer: str) -> bool:
        """Whether rule 4 has struck."""
        return self._strikes.get(peer, 0) >= STRIKES

    def joined(self, peer: str, now: float) -> None:
        """A stream to `peer` is being opened; it may yet say what it has."""
        if peer != self._last:
            self._silent[peer] = now + GRACE

    def has(self, peer: str, indices: int, now: float) -> None:
        """`peer` says that it has these chunks, in addition to what it said before."""
        self._silent.pop(peer, None)
        if self.dropped(peer):
            return
        member = self._members.setdefault(peer, _Member(progress=now))
        self._count(indices & ~member.has, +1)
        member.has |= indices

    def left(self, peer: str) -> None:
        """`peer` is gone; what it owed is asked elsewhere."""
        self._silent.pop(peer, None)
        member = self._members.pop(peer, None)
        if member is not None:
            self._count(member.has, -1)

    def gone(self, peer: str, index: int) -> None:
        """`peer` no longer has a chunk."""
        member = self._members.get(peer)
        if member is not None:
            member.owes.pop(index, None)
            self._count(member.has & 1 << index, -1)
            member.has &= ~(1 << index)

    def owed(self, peer: str, index: int) -> bool:
        """Whether `peer` was asked for this chunk and has not answered."""
        member = self._members.get(peer)
        return member is not None and index in member.owes

    def arrived(self, peer: str, index: int, now: float) -> None:
        """A verified chunk came from `peer`."""
        self.missing &= ~(1 << index)
        member = self._members.get(peer)
        if member is not None:
            asked = member.owes.pop(index, now)
            member.progress, member.stalled = now, False
            if peer == self._last:
                self._widen(now - asked)

    def bad(self, peer: str, index: int) -> bool:
        """A chunk from `peer` failed its proof. Whether the peer is to be dropped now."""
        self._strikes[peer] = self._strikes.get(peer, 0) + 1
        self.gone(peer, index)
        if self.dropped(peer):
            self.left(peer)
        return self.dropped(peer)

    def next(self, now: float) -> list[Ask]:
        """What to ask now. The asks count as made."""
        if not self.missing:
            return []
        self._mark_stalled(now)
        taken, others = self._in_flight(), self._others()
        asks: list[Ask] = []
        peers = [peer for peer in self._members if peer != self._last]
        self._random.shuffle(peers)
        while peers:  # one ask a peer and round, so that the load spreads over a chunk's holders
            for peer in list(peers):
                index = self._ask(peer, self._window, taken, now)
                if index is None:
                    peers.remove(peer)
                else:
                    taken |= 1 << index
                    asks.append(Ask(peer, index))
        self._silent = {peer: until for peer, until in self._silent.items() if until > now}
        if self._last is not None and self._last in self._members and not self._silent:
            taken |= others
            while (index := self._ask(self._last, self._last_window, taken, now)) is not None:
                taken |= 1 << index
                asks.append(Ask(self._last, index))
        return asks

    def deadline(self) -> float | None:
        """When time alone will change the answer of `next`: a peer stalls, or the grace is over. None: never."""
        owing = [m.progress + STALL for m in self._members.values() if m.owes and not m.stalled]
        return min([*owing, *self._silent.values()], default=None)

    def _ask(self, peer: str, window: int, taken: int, now: float) -> int | None:
        member = self._members[peer]
        if len(member.owes) >= window or member.stalled:
            return None
        index = self._rarest(member.has & self.missing & ~taken)
        if index is not None:
            if not member.owes:
                member.progress = now
            member.owes[index] = now
        return index

    def _widen(self, waited: float) -> None:
        self._last_best = min(self._last_best, waited)
        step = -1 if waited > 2 * self._last_best + QUEUED else 1
        self._last_window = min(max(self._last_window + step, LAST_WINDOW_MIN), self._window)

    def _others(self) -> int:
        """What live peers other than `last` have."""
        bits = 0
        for peer, member in self._members.items():
            if peer != self._last and not member.stalled:
                bits |= member.has
        return bits

    def _rarest(self, candidates: int) -> int | None:
        if not candidates:
            return None
        for holders in sorted(self._rarity):
            if found := candidates & self._rarity[holders]:
                start = self._random.randrange(self.chunks)
                rest = found >> start << start or found
                return (rest & -rest).bit_length() - 1
        raise AssertionError("a candidate has a holder")

    def _mark_stalled(self, now: float) -> None:
        for member in self._members.values():
            if member.owes and now - member.progress >= STALL:
                member.stalled = True

    def _in_flight(self) -> int:
        bits = 0
        for member in self._members.values():
            if not member.stalled:
                for index in member.owes:
                    bits |= 1 << index
        return bits

    def _count(self, indices: int, by: int) -> None:
        """Move chunks one step of rarity, all levels at once; the order keeps a chunk from moving twice."""
        for holders in sorted(self._rarity, reverse=by > 0):
            moved = self._rarity[holders] & indices
            if moved:
                self._rarity[holders] ^= moved
                self._rarity[holders + by] = self._rarity.get(holders + by, 0) | moved
        self._rarity = {holders: bits for holders, bits in self._rarity.items() if bits}
