"""The contents of a site in tests: one picture, and the pages of its nodes."""

from coordinator.metrics.views import RunState
from coordinator.web.node_rows import Cursor, Page


class Album:
    """Hands out a picture and counts how often it was asked."""

    def __init__(self, state: RunState) -> None:
        self.state, self.taken = state, 0

    async def picture(self) -> RunState:
        self.taken += 1
        return self.state

    def nodes(self, after: Cursor | None, most: int) -> Page:
        """The nodes of the picture, some at a time."""
        first = 0 if after is None else after.rank
        rows = self.state.nodes[first : first + most]
        last = Cursor(first + len(rows), rows[-1].weight, bytes(32)) if len(rows) == most else None
        return Page(rows, first + 1, last)
