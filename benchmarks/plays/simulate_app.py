"""`echo2-coord simulate`: its options, and the table that it prints."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.plays import comparison, drawn_runs, told
from echo2.coordinator.command_line.checkout_commands import PASSED_APP
from echo2.coordinator.command_line.command_options import CommandApp
from echo2.coordinator.command_line.trials_app import figure
from echo2.runtime.errors import LocalFault

simulate_app = CommandApp(**PASSED_APP)


@simulate_app.command()
def simulate(
    nodes: Annotated[int, typer.Option(min=1, max=100_000, help="Number of nodes.")] = 200,
    minutes: Annotated[float, figure(1, "Simulated time.")] = 60.0,
    supply: Annotated[float, figure(0.01, "Supply of the nodes, over the consumption of the learner.")] = 1.5,
    equal: Annotated[bool, typer.Option("--equal", help="Equal nodes, instead of a tenfold spread.")] = False,
    batch: Annotated[int, figure(1, "Groups per step.")] = 64,
    staleness: Annotated[int, figure(1, "S, steps that a group may be old.")] = 4,
    publish_every: Annotated[int, figure(1, "Steps from one version to the next (kappa).")] = 1,
    at_once: Annotated[int, figure(1, "Groups at once in a node.")] = 1,
    step_seconds: Annotated[float, figure(0.001, "Seconds of the learner's step (T).")] = 60.0,
    life: Annotated[float | None, figure(0.1, "Mean minutes until a node leaves.", "it stays")] = None,
    away: Annotated[float, figure(0.1, "Mean minutes until it is back.")] = 5.0,
    broadcast: Annotated[float, figure(0.0, "Seconds of a version to the nodes.")] = 12.0,
    star: Annotated[float, figure(0.0, "Seconds of a version to all nodes without peers, for --ablate.")] = 0.0,
    gamma: Annotated[float, figure(1.0, "Supply of the active nodes over the need.")] = 1.1,
    price: Annotated[float, figure(0.0, "Median ask per hour; 0: nobody asks.")] = 0.0,
    learner_price: Annotated[float, figure(0.0, "Price of the learner's device per hour.")] = 0.0,
    scorer_load: Annotated[float, figure(0.001, "Time of one scorer for a step's groups, over the step's.")] = 0.3,
    scorers: Annotated[int, typer.Option(min=1, max=1024, help="Scorers.")] = 1,
    length_spread: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="Standard deviation of the logarithm of prompts' lengths.")
    ] = 0.0,
    gives_back: Annotated[
        bool, typer.Option("--gives-back", help="A node that is back gives its open leases back.")
    ] = False,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="COUNT:SPEED:ASK of nodes alike, repeated; for --nodes, --equal and --price."),
    ] = None,
    version_mb: Annotated[float | None, figure(0.001, "MB of a version; for --broadcast and --star.")] = None,
    uplink: Annotated[float, figure(0.001, "Uplink of the coordinator, Mbit/s.")] = 1000.0,
    node_uplink: Annotated[float, figure(0.0, "Uplink of a node, Mbit/s.")] = 100.0,
    node_downlink: Annotated[float, figure(0.001, "Downlink of a node, Mbit/s.")] = 1000.0,
    uplink_price: Annotated[float, figure(0.0, "Price per GB that the coordinator sends.")] = 0.0,
    prompts: Annotated[
        int, typer.Option(min=0, max=65_536, help="Prompts of several difficulties; 0: all are alike.")
    ] = 0,
    group: Annotated[int, typer.Option(min=2, max=1024, help="Rollouts per group, with --prompts.")] = 8,
    ablate: Annotated[bool, typer.Option("--ablate", help="Also without single rules.")] = False,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs per row.")] = 1,
    svg: Annotated[Path | None, typer.Option(help="Draw them to this file.", show_default="not drawn")] = None,
) -> None:
    """Simulate a fleet on the product's own rules: idle share, age of groups, cost of a step."""
    if publish_every > staleness + 1:
        raise LocalFault(f"publish-every is {publish_every}, and S = {staleness} allows at most {staleness + 1}")
    if svg is not None and not svg.parent.is_dir():
        raise LocalFault(f"--svg names {svg}, and there is no folder {svg.parent}: make it, or name another file")
    terms = comparison.FleetTerms(
        nodes, supply, not equal, batch, staleness, publish_every, at_once, step_seconds,
        life * 60 if life is not None else float("inf"), away * 60, broadcast, star, gamma, price, learner_price,
        length_spread, gives_back, tuple(told.node_class(text) for text in classes or ()),
        told.version_terms(version_mb, uplink, node_uplink, node_downlink, uplink_price), prompts, group,
        scorers, scorer_load,
    )  # fmt: skip
    rows = _print_rows(terms, minutes, seeds, ablate=ablate)
    if svg is not None:
        try:
            svg.write_text(drawn_runs.draw(rows, minutes * 60))
        except OSError as fault:
            raise LocalFault(f"cannot write {svg}: {fault.strerror}; name another file") from fault


def _print_rows(terms: comparison.FleetTerms, minutes: float, seeds: int, *, ablate: bool) -> list[comparison.Compared]:
    """Print the table of what is simulated, row by row; return its rows."""
    print(told.HEAD)
    rows = list[comparison.Compared]()
    try:
        for row in comparison.compared(terms, minutes * 60, seeds, ablate):
            print(told.row(row, seeds), flush=True)
            rows.append(row)
    except ValueError as fault:
        raise LocalFault(f"{fault} in {minutes:g} minutes: raise --minutes, or --supply") from fault
    print(told.FOOT)
    print(told.bottleneck(rows[0].mean))
    if terms.prompts:
        print("\n".join([told.SELECTION_HEAD, *map(told.selection_row, rows), told.SELECTION_FOOT]))
    return rows
