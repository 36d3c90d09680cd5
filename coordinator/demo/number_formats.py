"""Play the demo once per number format of the nodes, and compare how the runs learn.

1. The demos follow one another. Each is a run of its own, from the same seed.
2. A demo that fails or is interrupted ends the comparison. The table has the runs up to then.
3. One format alone is a plain demo, without a table.
"""

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from echo2.coordinator.demo.demo import Played, Programs, play
from echo2.coordinator.demo.demo_settings import DemoOptions
from echo2.coordinator.metrics.views import RunState
from echo2.engines.engine import Dtype
from echo2.runtime.exit_codes import Exit

HEADINGS = ("nodes in", "sampled", "greedy", "steps", "accepted", "refused", "seconds")


def play_each(
    options: DemoOptions, dtypes: Sequence[Dtype], programs: Programs | None = None, console: Console | None = None
) -> int:
    """Play the demo in each of `dtypes` and return the exit code. Raises `LocalFault` if a run cannot be made."""
    console = console or Console(highlight=False)
    ends: dict[Dtype, Played] = {}
    for dtype in dict.fromkeys(dtypes):
        ends[dtype] = play(replace(options, dtype=dtype), programs, console)
        if ends[dtype].code != Exit.OK:
            break
    if len(ends) > 1:
        console.print(comparison(ends))
    return max(one.code for one in ends.values())


def comparison(ends: dict[Dtype, Played]) -> Table:
    """Draw a row per demo: held-out accuracy at its begin and end, steps, groups."""
    table = Table(title="the same demo, nodes in each number format", box=None, padding=(0, 1), title_justify="left")
    for number, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for dtype, one in ends.items():
        table.add_row(dtype, *(_cells(one.final, one.seconds) if one.final else ["–"] * (len(HEADINGS) - 1)))
    return table


def _cells(state: RunState, seconds: float) -> list[str]:
    shown = state.evaluations[:1] + state.evaluations[-1:]
    return [
        " → ".join(f"{one.sampled:.3f}" for one in shown),
        " → ".join(f"{one.greedy:.3f}" for one in shown),
        str(state.step),
        str(state.accepted),
        str(sum(state.refused.values())),
        f"{seconds:.0f}",
    ]
