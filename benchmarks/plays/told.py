"""Tell compared runs: the terms of a simulation from flags, and the rows of its table. Pure."""

from typing import Final

from benchmarks.plays.comparison import Compared, NodeClass, RunFigures, VersionTerms
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import MBIT

LITTLE: Final = 0.03
"""Share of idle time that limits nothing."""
MB: Final = 1_000_000
GB: Final = 1_000_000_000
HEAD: Final = (
    f"{'':<12} {'steps':>6} {'idle':>7} {'age':>5} {'leases':>7} {'lost':>6} {'wasted':>6} "
    f"{'active':>7} {'scorer':>7} {'copies':>7} {'cost':>9}"
)
FOOT: Final = (
    "idle: of the learner's time; scorer: of its time at work; age: steps, of the groups learned; leases: per group "
    "learned; copies: of a version, sent by the coordinator per step; cost: of a step\n"
    "lost: prompts leased whose group could not be learned from, of all\n"
    "wasted: tokens sampled and not learned from, of all sampled"
)
SELECTION_HEAD: Final = f"{'':<12} {'signal':>15} {'useful':>13} {'passed':>15} {'strength':>13} {'solved':>15}"
SELECTION_FOOT: Final = (
    "signal: of the groups learned from, those whose rewards differ; useful: leases per such group\n"
    "passed: rollouts through the learner's pass, of those of groups learned from; strength: their mean absolute "
    "advantage\nsolved: mean success of all prompts at the end, in the model of simulated_prompts.py"
)


def node_class(text: str) -> NodeClass:
    """Read `COUNT:SPEED:ASK`. Raises `LocalFault`."""
    parts = text.split(":")
    try:
        number, speed, ask = int(parts[0]), float(parts[1]), float(parts[2])
        whole = len(parts) == 3 and 1 <= number <= 100_000 and 1e-6 <= speed <= 1e6 and 0 <= ask <= 1e6
    except (ValueError, IndexError):
        whole = False
    if not whole:
        raise LocalFault(
            f"{text!r} is no class of nodes: write COUNT:SPEED:ASK, as 6:1.5:0.70 for six nodes of speed 1.5 that ask "
            "for 0.70 per hour"
        )
    return NodeClass(number, speed, ask)


def version_terms(
    version_mb: float | None, uplink: float, node_uplink: float, node_downlink: float, uplink_price: float
) -> VersionTerms | None:
    """Return what it takes to send a version; None without `version_mb`. Lines in Mbit/s; price per GB. Raises
    `LocalFault`."""
    if version_mb is None:
        if uplink_price:
            raise LocalFault("--uplink-price needs --version-mb too: how large a version is")
        return None
    return VersionTerms(version_mb * MB, uplink * MBIT, node_uplink * MBIT, node_downlink * MBIT, uplink_price / GB)


def bottleneck(mean: RunFigures) -> str:
    """Say what limits a run, by its figures."""
    if mean.idle <= LITTLE:
        return "The bottleneck is the learner, as it should be: it hardly waits."
    if mean.scored >= 1 - LITTLE:
        return "The bottleneck is the scorer: --scorers, or a device with a smaller --scorer-load, shorten a step."
    return "The bottleneck is the nodes and the lines to them: more or quicker ones shorten a step."


def row(one: Compared, seeds: int) -> str:
    """Return a row of the table; with several seeds, the cost with its standard error."""
    mean, error = one.mean, f" ± {one.error.cost:.4f}" if seeds > 1 else ""
    return f"{one.name:<12} {_cells(mean)}{error}"


def selection_row(one: Compared) -> str:
    """Return a row of the second table, with standard errors."""
    mean, error = one.mean, one.error
    return (
        f"{one.name:<12} {mean.signal:>7.1%} ± {error.signal:>5.1%} {mean.useful:>6.2f} ± {error.useful:>4.2f} "
        f"{mean.passed:>7.1%} ± {error.passed:>5.1%} {mean.strength:>6.3f} ± {error.strength:>4.3f} "
        f"{mean.solved:>7.1%} ± {error.solved:>5.1%}"
    )


def _cells(mean: RunFigures) -> str:
    return (
        f"{mean.steps:>6.1f} {mean.idle:>7.1%} {mean.age:>5.2f} {mean.leases:>7.2f} "
        f"{mean.lost:>6.1%} {mean.wasted:>6.1%} {mean.active:>7.1f} {mean.scored:>7.1%} "
        f"{mean.copies:>7.1f} {mean.cost:>9.4f}"
    )
