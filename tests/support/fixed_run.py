"""The source of a web site in tests: one fixed state of a run, and the pages of its nodes."""

from coordinator.metrics.views import RunState
from coordinator.web.node_rows import Cursor, Page


class FixedRun:
    """A source that always returns `state`. `calls`: how often the state was requested."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.calls = 0

    async def current_state(self) -> RunState:
        self.calls += 1
        return self.state

    def nodes(self, after: Cursor | None, most: int) -> Page:
        """Return at most `most` nodes of the state after `after`."""
        first = 0 if after is None else after.rank
        rows = self.state.nodes[first : first + most]
        last = Cursor(first + len(rows), rows[-1].weight, bytes(32)) if len(rows) == most else None
        return Page(rows, first + 1, last)
