"""The places of the ledger's tree and entries as static files, after C2SP tlog-tiles. Pure.

Rules
1. Tile (level L, number N) has `WIDTH` digests of 32 bytes: those of the complete subtrees over 256^L leaves, from
   position 256 N on. A partial tile has the first `width` of them. Bundle N has the entries of the leaves of tile
   (0, N).
2. A tile exists once a signed head covers all leaves below it. It never changes, whole or partial.
3. Paths are those of tlog-tiles: N in groups of three digits, all but the last with an x before, and `.p/` with the
   width of a partial tile. Each tile has one path.
4. A bundle is, for each entry, the length of its canonical bytes as 4 bytes, big-endian, and those bytes. tlog-tiles
   has 2 bytes there, but a `leases.ended` may be longer than that.
"""

import re
import struct
from typing import Final, NamedTuple

LOG_WIDTH: Final = 8


WIDTH: Final = 1 << LOG_WIDTH
"""Digests of a whole tile."""


MOST_LEVEL: Final = 6


MOST_ENTRY: Final = 1 << 20
"""Bytes of an entry that a client accepts."""


LENGTH: Final = struct.Struct(">I")


_PLACE: Final = re.compile(r"((?:x[0-9]{3}/){0,4})([0-9]{3})(?:\.p/([0-9]{1,3}))?")


class TilePlace(NamedTuple):
    """Number and width of a tile or bundle."""

    number: int
    width: int = WIDTH

    def path(self) -> str:
        """Return the path (rule 3)."""
        digits = f"{self.number:03d}"
        digits = digits.zfill(-(-len(digits) // 3) * 3)
        groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
        whole = "/".join([*(f"x{group}" for group in groups[:-1]), groups[-1]])
        return whole if self.width == WIDTH else f"{whole}.p/{self.width}"


def place_of(path: str) -> TilePlace | None:
    """Return the place that a path names; None: it is no path of a tile."""
    match = _PLACE.fullmatch(path)
    if match is None:
        return None
    number = int(match[1].replace("x", "").replace("/", "") + match[2])
    place = TilePlace(number, WIDTH if match[3] is None else int(match[3]))
    return place if 0 < place.width <= WIDTH and place.path() == path else None


def places(leaves: int) -> list[TilePlace]:
    """Return the places of level 0 over a tree of `leaves` leaves: whole ones, and the last one if it is partial."""
    whole = [TilePlace(number) for number in range(leaves // WIDTH)]
    return [*whole, TilePlace(len(whole), leaves % WIDTH)] if leaves % WIDTH else whole


def is_covered(size: int, level: int, place: TilePlace) -> bool:
    """Tell whether a tree of `size` leaves has all digests of a tile (rule 2)."""
    return 0 <= level <= MOST_LEVEL and place.number * WIDTH + place.width <= size >> (LOG_WIDTH * level)
