"""Read tiles of the ledger's tree and bundles of its entries from run.sqlite (ledger/tile_places.py)."""

from contextlib import closing
from typing import Final, NamedTuple

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.ledger.tile_places import LENGTH, LOG_WIDTH, WIDTH, TilePlace, is_covered

PART_BYTES: Final = 64 << 10
"""The size at which a part of a bundle ends; its last entry may pass it."""


class BundlePart(NamedTuple):
    """Entries of a bundle. `end`: number in the bundle, from 0, of the entry behind them."""

    content: bytes
    end: int


def signed_size(database: Database) -> int:
    """Return the number of entries under the newest head."""
    return int(database.value("SELECT max(size) FROM ledger_heads") or 0)


def tile(database: Database, level: int, place: TilePlace) -> bytes | None:
    """Return a tile; None: there is no such tile (yet)."""
    if not is_covered(signed_size(database), level, place):
        return None
    tree, first = Ledger(database).tree, place.number * WIDTH
    return b"".join(tree.subtrees(LOG_WIDTH * level, first, first + place.width))


def bundle_part(database: Database, place: TilePlace, first: int) -> BundlePart | None:
    """Return the part of a bundle from its entry `first` (from 0) on; None: there is no such bundle (yet), or
    run.sqlite lacks the entry."""
    if not is_covered(signed_size(database), 0, place):
        return None
    content, end, start = bytearray(), first, place.number * WIDTH + 1
    with closing(Ledger(database).canonical_between(start + first, start + place.width - 1)) as entries:
        for written in entries:
            content += LENGTH.pack(len(written)) + written
            end += 1
            if len(content) >= PART_BYTES:
                break
    return BundlePart(bytes(content), end) if end > first else None
