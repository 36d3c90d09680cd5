"""On PYTHONPATH, makes a coordinator kill itself (SIGKILL) while it closes an epoch and opens the next.

`DIES_AT` is how many steps of that it does first; a step is the begin or the end of an entry of the market, or a moment
at which others come first. Epochs before `DIES_FROM` seconds of its life are turned over unharmed.
"""

import os
import sys

if "echo2.coordinator.cli" in sys.orig_argv and "run" in sys.orig_argv and "DIES_AT" in os.environ:
    import signal
    import time
    from collections.abc import Callable, Iterator
    from typing import Any

    from echo2.coordinator.epochs.epoch_clock import EpochClock
    from echo2.coordinator.epochs.market_service import MarketService

    left, began = int(os.environ["DIES_AT"]), time.monotonic() + float(os.environ["DIES_FROM"])
    turning = False

    def step() -> None:
        global left
        if turning:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def between_steps(method: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*given: Any) -> Any:
            step()
            outcome = method(*given)
            step()
            return outcome

        return stepped

    def turned_over(method: Callable[..., Any]) -> Callable[..., Any]:
        def turned(self: EpochClock, *given: Any) -> Iterator[bool]:
            global turning
            steps, dies = method(self, *given), self._service.state.open is not None and time.monotonic() > began
            while True:
                turning = dies
                try:
                    others = next(steps)
                    if others:
                        step()
                except StopIteration:
                    return
                finally:
                    turning = False
                yield others

        return turned

    MarketService.append = between_steps(MarketService.append)  # type: ignore[method-assign]
    MarketService.append_all = between_steps(MarketService.append_all)  # type: ignore[method-assign]
    EpochClock._turn_over = turned_over(EpochClock._turn_over)  # type: ignore[method-assign]
