"""Read tiles of the ledger's tree and bundles of its entries from run.sqlite (ledger/tile_places.py)."""

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database
from echo2.ledger.ledger_entries import canonical
from echo2.ledger.tile_places import LENGTH, LOG_WIDTH, WIDTH, TilePlace, is_covered


def signed_size(database: Database) -> int:
    """Return the number of entries under the newest head."""
    return int(database.value("SELECT max(size) FROM ledger_heads") or 0)


def tile(database: Database, level: int, place: TilePlace) -> bytes | None:
    """Return a tile; None: there is no such tile (yet)."""
    if not is_covered(signed_size(database), level, place):
        return None
    tree, first = Ledger(database).tree, place.number * WIDTH
    return b"".join(tree.subtree(LOG_WIDTH * level, first + at) for at in range(place.width))


def bundle_part(database: Database, place: TilePlace, first: int, most: int) -> bytes | None:
    """Return entries `first` (from 0) to before `first + most` of a bundle; None: there is no such bundle (yet)."""
    if not is_covered(signed_size(database), 0, place):
        return None
    ledger, part = Ledger(database), []
    for at in range(first, min(first + most, place.width)):
        entry = ledger.entry(place.number * WIDTH + at + 1)
        if entry is None:
            return None
        written = canonical(*entry[:6])
        part.append(LENGTH.pack(len(written)) + written)
    return b"".join(part)
