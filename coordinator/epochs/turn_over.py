"""Turn an epoch over in steps, between which the event loop serves others.

Rules
1. The steps: the work of each node is measured; the epoch is closed; the next one is opened; pay that has vested moves;
   pay that is due is released; a snapshot is stored. All that concerns one node is computed ahead, node by node
   (coordinator/market/node_memo.py), and once more where it has changed since. Each entry is written with its effect in
   one transaction.
2. A group counts in the epoch that ends if its verdict's entry stands before `epoch.closed`, else in the next one. None
   is accepted, and no lease given, between `epoch.closed` and the next `epoch.opened`: such a verdict or request opens
   the next epoch first (`finish_opening`).
3. A process that ends between two steps goes on behind the last one, as far as the ledger tells: an epoch that was
   announced is opened, and the one that runs is settled. A snapshot that was not finished is none.
4. Steps of one epoch end before those of another begin.
"""

import contextlib
import gc
import time
from collections.abc import Iterator
from typing import Final

from echo2.coordinator.epochs.market_service import MarketService
from echo2.coordinator.market.epochs import close_epoch, release, vest

STEP_SLICE_SECONDS: Final = 0.05
"""Seconds of steps at once. A step that writes an entry is a slice of its own."""
Steps = Iterator[bool]
"""Yields after each step: whether others come first now."""


@contextlib.contextmanager
def _pause_collection() -> Iterator[None]:
    """Run the block without a garbage collection: among the objects of 10,000 nodes one takes 0.1 s, and it can be made
    in another iteration of the event loop."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class TurnOver:
    """The steps that are under way."""

    def __init__(self, service: MarketService) -> None:
        self._service = service
        self._steps: Steps | None = None
        self._opens = False
        self._settled = 0
        """The epoch in which pay was settled last."""

    @property
    def under_way(self) -> bool:
        """Whether steps are left."""
        return self._steps is not None

    def begin(self, steps: Steps, *, opens: bool = False) -> None:
        """Begin with steps. `opens`: they open an epoch. Call only while none are under way (rule 4)."""
        assert self._steps is None
        self._steps, self._opens = steps, opens

    def go_on(self) -> bool:
        """Make steps for a slice; return whether some may be left."""
        with _pause_collection():
            until = time.monotonic() + STEP_SLICE_SECONDS
            while (others := self._step()) is not None:
                if others or time.monotonic() >= until:
                    return True
            return False

    def finish_opening(self) -> None:
        """Open the next epoch now, if the one before is closed and the steps under way open one (rule 2)."""
        while self._opens and self._service.state.open is None and self._step() is not None:
            pass

    def _step(self) -> bool | None:
        """Make a step; return whether others come first now, or None: no step is left."""
        if self._steps is None:
            return None
        try:
            return next(self._steps)
        except StopIteration:
            self._steps = None
            return None

    def measure_work(self, at: int) -> Steps:
        """Measure the work of each node in the open epoch, which closes at `at`."""
        state = self._service.state
        for node in list(state.records):
            state.work_of(node).measured.throughput.rate(0)
            state.merged_tranches(node, at)
            yield False

    def close(self, at: int) -> Steps:
        """Close the open epoch; return the steps that store a snapshot."""
        self._service.read()
        self._service.append(close_epoch(self._service.state, at))
        return self._service.snapshot(at)

    def settle(self, at: int) -> Steps:
        """Move what has vested up to `at`, then release what is due."""
        state = self._service.state
        for ahead, make in ((state.vested_tranches, vest), (state.released_tranches, release)):
            for node in list(state.tranches):
                ahead(node, at)
                yield False
            self._service.read()
            self._service.append(make(state, at))
            yield True
            for _ in state.free_stepwise():
                yield False
        self._settled = state.epoch

    @property
    def unsettled(self) -> bool:
        """Whether the process before ended between the opening of the present epoch and the settlement (rule 3)."""
        state = self._service.state
        return state.open is not None and self._settled < state.epoch and not {"vested", "released"} <= state.settled
