"""The source of a web site in tests: one fixed state of a run, and the pages of its nodes."""

from echo2.coordinator.accounts.ledger_tiles import BundlePart
from echo2.coordinator.metrics.views import NodeView, RunState
from echo2.coordinator.web.node_rows import Cursor, Page
from echo2.coordinator.web.proof_page import LeaseProof
from echo2.ledger.tile_places import TilePlace
from echo2.protocol.ledger_heads import EntryProof
from tests.support import pictures


class FixedRun:
    """A source that always returns `state`. `calls`: how often the state was requested."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.calls = 0

    async def current_state(self) -> RunState:
        self.calls += 1
        return self.state

    def ledger_proof(self, entry: int, size: int) -> EntryProof | None:
        """Return a proof for entry 3 under a head of 9 entries alone."""
        return EntryProof(entry=3, previous=bytes(32), canonical=b"entry", path=[]) if (entry, size) == (3, 9) else None

    def lease_proof(self, lease: str) -> LeaseProof | None:
        return None

    def ledger_tile(self, level: int, place: TilePlace) -> bytes | None:
        return None

    def ledger_bundle(self, place: TilePlace, first: int) -> BundlePart | None:
        return None

    def find_node(self, name: str) -> str | None:
        named = [node.id for node in self.state.nodes if name in (node.id, node.name)]
        return named[0] if len(named) == 1 else None

    def node(self, peer: str) -> NodeView | None:
        """Return a node of the state, with a few invented groups."""
        rows = [node for node in self.state.nodes if node.id == peer]
        return pictures.made_by(rows[0]) if rows else None

    def sealed_logs(self) -> list[bytes]:
        return []

    def sealed_roots(self) -> list[bytes]:
        return []

    def sealed_runspec(self) -> bytes:
        return b""

    def nodes(self, after: Cursor | None, most: int) -> Page:
        """Return at most `most` nodes of the state after `after`."""
        first = 0 if after is None else after.rank
        rows = self.state.nodes[first : first + most]
        last = Cursor(first + len(rows), rows[-1].weight, bytes(32)) if len(rows) == most else None
        return Page(rows, first + 1, last)
