"""`weights.codec.rank_select` compiled by numba: the same numbers and refusals. Lengths are checked before memory is
touched.

Elements are scanned in blocks of 64, as `native/classes.c` does it: the class of an element has four bits, each of them
is a plane of 64 bits a block, and the 16 classes are the conjunctions of planes and inverted planes.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weights.codec.compiled.vectors import below, differ64, first_one, kernel, ones, scan64
from weights.codec.rank_select import CLASSES, Changes, Layout, Words
from weights.errors import BadPayload

_BLOCKS: Final = 128
_PIECE: Final = 64 * _BLOCKS
_RANK, _STEP = -1, -2
_REFUSALS: Final = {_RANK: "a rank lies beyond its class", _STEP: "a step leads beyond the 16-bit floats"}


@kernel
def _class_of(word: Any, shift: Any, mask: Any, lo: Any) -> Any:
    return min(max((np.int64(word) >> shift & mask) - lo, 0), CLASSES - 1)


@kernel
def _place(word: Any) -> Any:
    bits = np.int64(word)
    return bits if bits < 0x8000 else 0x7FFF - bits


@kernel
def _scan_last(old: Any, at: Any, shift: Any, mask: Any, lo: Any, members: Any, before: Any, after: Any) -> Any:
    """Of the block from element `at` on, shorter than 64; `members`, `before`, `after` are rows."""
    own = len(old) - at
    padded = np.zeros(64, np.uint16)
    padded[:own] = old[at:]
    scan64(padded.ctypes.data, shift, mask, lo, members.ctypes.data, before.ctypes.data, after.ctypes.data)
    for of in range(CLASSES):
        members[of] &= below(own)
        after[of] = before[of] + ones(members[of])


@kernel
def _list_changes(old: Any, new: Any, shift: Any, mask: Any, lo: Any, of: Any, ranks: Any, steps: Any) -> Any:
    """How many there are, in ascending order in the three arrays; more than fit are not written."""
    members, counts = np.empty(CLASSES, np.uint64), np.zeros((2, CLASSES), np.uint32)
    whole, row, count = len(old) // 64, 0, 0
    for block in range((len(old) + 63) // 64):
        if block < whole:
            at = np.uint64(128) * np.uint64(block)
            before = counts.ctypes.data + np.uint64(64 * row)
            after = counts.ctypes.data + np.uint64(64 * (1 - row))
            scan64(old.ctypes.data + at, shift, mask, lo, members.ctypes.data, before, after)
            changed = differ64(old.ctypes.data + at, new.ctypes.data + at)
        else:
            _scan_last(old, 64 * block, shift, mask, lo, members, counts[row], counts[1 - row])
            changed = np.uint64(0)
            for place in range(64 * block, len(old)):
                changed |= np.uint64(old[place] != new[place]) << np.uint64(place & 63)
        if count + ones(changed) > len(of):
            return count + ones(changed)
        while changed:
            bit = first_one(changed)
            changed &= changed - np.uint64(1)
            word = old[64 * block + bit]
            own = _class_of(word, shift, mask, lo)
            of[count] = own
            ranks[count] = counts[row, own] + ones(members[own] & below(bit))
            steps[count] = _place(new[64 * block + bit]) - _place(word)
            count += 1
        row = 1 - row
    return count


@kernel
def _sort_by_class(of: Any, ranks: Any, steps: Any, starts: Any, by_rank: Any, by_step: Any) -> Any:
    """Stably, into the last two arrays; `starts`: where each class begins there, and 17 numbers in all."""
    starts[:] = 0
    for at in range(len(of)):
        starts[of[at] + 1] += 1
    for own in range(CLASSES):
        starts[own + 1] += starts[own]
    filled = starts.copy()
    for at in range(len(of)):
        to = filled[of[at]]
        filled[of[at]] += 1
        by_rank[to], by_step[to] = ranks[at], steps[at]


@kernel
def _nth_bit(word: Any, nth: Any) -> Any:
    """The place of the `nth` one, from 0, of a word that has so many."""
    place = 0
    for half in (32, 16, 8, 4, 2, 1):
        count = ones(word & below(half))
        if nth >= count:
            nth -= count
            word >>= np.uint64(half)
            place += half
    return place


@kernel
def _find_changes(
    old: Any, shift: Any, mask: Any, lo: Any, starts: Any, ranks: Any, steps: Any, index: Any, bits: Any
) -> Any:
    """How many were found, in ascending order in `index` and `bits`, of the ranks and steps of all classes; or why not.
    `starts`: where each class begins in them, and 17 numbers in all."""
    members, before = np.empty((_BLOCKS, CLASSES), np.uint64), np.zeros((_BLOCKS + 1, CLASSES), np.uint32)
    hits, moves = np.empty(_BLOCKS, np.uint64), np.empty(_PIECE, np.int32)
    left, count = starts[:-1].copy(), 0
    for piece in range(0, len(old), _PIECE):
        whole, blocks = min(_PIECE, len(old) - piece) // 64, (min(_PIECE, len(old) - piece) + 63) // 64
        for b in range(whole):
            at, row = old.ctypes.data + np.uint64(2 * piece + 128 * b), before.ctypes.data + np.uint64(64 * b)
            scan64(at, shift, mask, lo, members.ctypes.data + np.uint64(128 * b), row, row + np.uint64(64))
        if whole < blocks:
            _scan_last(old, piece + 64 * whole, shift, mask, lo, members[whole], before[whole], before[blocks])
        before[blocks + 1 :] = before[blocks]
        hits[:blocks] = 0
        for own in range(CLASSES):
            here, end = left[own], starts[own + 1]
            while here < end and ranks[here] < before[blocks, own]:
                low, half = 0, _BLOCKS // 2
                while half:
                    low += half if before[low + half, own] <= ranks[here] else 0
                    half //= 2
                bit = _nth_bit(members[low, own], np.int64(ranks[here]) - np.int64(before[low, own]))
                hits[low] |= np.uint64(1) << np.uint64(bit)
                moves[64 * low + bit] = steps[here]
                here += 1
            left[own] = here
        for b in range(blocks):
            while hits[b]:
                place = 64 * b + first_one(hits[b])
                hits[b] &= hits[b] - np.uint64(1)
                to = _place(old[piece + place]) + moves[place]
                if to > 0x7FFF or to < -0x8000:
                    return _STEP
                index[count], bits[count] = piece + place, to if to >= 0 else 0x7FFF - to
                count += 1
        before[0] = before[blocks]
    return count if count == len(ranks) else _RANK


@kernel
def _write(index: Any, bits: Any, target: Any, first: Any) -> Any:
    """How many were written before one that lies beyond `target`."""
    for at in range(len(index)):
        to = np.int64(index[at]) - first
        if to < 0 or to >= len(target):
            return at
        target[to] = bits[at]
    return len(index)


def listed(old: Words, new: Words, layout: Layout, lo: int, most: int) -> list[Changes] | None:
    """As `weights.codec.rank_select.listed`."""
    old, new = np.require(old, requirements=["C", "A"]), np.require(new, requirements=["C", "A"])
    if len(old) != len(new):
        raise ValueError("frames of two lengths")
    # Pages are taken as they are touched.
    of, ranks, steps = (np.empty(most, kind) for kind in (np.uint8, np.uint32, np.int32))
    count = _list_changes(old, new, *layout, lo, of, ranks, steps)
    if count > most:
        return None
    starts, by_rank, by_step = np.empty(CLASSES + 1, np.int64), np.empty(count, np.uint32), np.empty(count, np.int32)
    _sort_by_class(of[:count], ranks[:count], steps[:count], starts, by_rank, by_step)
    parts = [(own, slice(starts[own], starts[own + 1])) for own in range(CLASSES) if starts[own] < starts[own + 1]]
    return [Changes(own, by_rank[part].astype(np.int64), by_step[part].astype(np.int64)) for own, part in parts]


def merged(
    old: Words, layout: Layout, lo: int, lists: Iterable[Changes], count: int
) -> tuple[NDArray[np.uint32], Words]:
    """As `weights.codec.rank_select.merged`."""
    old, starts = np.require(old, requirements=["C", "A"]), np.zeros(CLASSES + 1, np.int64)
    ranks, steps, at = np.empty(count, np.uint32), np.empty(count, np.int32), 0
    for of, own_ranks, own_steps in lists:
        end = at + len(own_ranks)
        ranks[at:end], steps[at:end] = own_ranks, own_steps
        at = starts[of + 1 :] = end
    index, bits = np.empty(count, np.uint32), np.empty(count, np.uint16)
    done = _find_changes(old, *layout, lo, starts, ranks, steps, index, bits)
    if done < 0:
        raise BadPayload(_REFUSALS[done])
    return index, bits


def write(index: NDArray[np.uint32], bits: Words, target: Words, first: int) -> None:
    """As `weights.codec.rank_select.write`."""
    if _write(index, bits, target, first) < len(index):
        raise IndexError("a change beyond the frame")
