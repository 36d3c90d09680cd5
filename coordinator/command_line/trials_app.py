"""`echo2-coord demo`, `plan`, `simulate` and `redteam`: a run tried out before strangers join."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from echo2.coordinator.command_line.adapter_options import BaseFormatOption, LoraRank, adapter_of
from echo2.coordinator.command_line.command_options import errors_reported
from echo2.runtime.errors import LocalFault

trials_app = typer.Typer()
MOST: Final = 1_000_000_000
"""No figure of a plan is larger, nor infinite: 30 years, in seconds."""


class DemoFormat(Enum):
    """The number formats of the demo's nodes; typer takes no list of literals."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


@trials_app.command()
@errors_reported
def demo(
    model: Annotated[Literal["tiny", "smollm2"], typer.Option(help="tiny or smollm2.")] = "tiny",
    nodes: Annotated[
        int | None, typer.Option(min=1, max=16, help="Volunteers on this machine.", show_default="by model")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Longest time that it runs, seconds.", show_default="by model")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the model and the learner.")] = 0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the run folder.")] = False,
    faults: Annotated[bool, typer.Option(help="Kill a node during the run, and let one join late.")] = True,
    ways: Annotated[bool, typer.Option("--ways", help="One node behind a relay, one over HTTPS alone.")] = False,
    lora_rank: LoraRank = None,
    base_format: BaseFormatOption = "bfloat16",
    dtype: Annotated[
        list[DemoFormat] | None,
        typer.Option(help="The nodes' number format; several: one demo each, compared.", show_default="float32"),
    ] = None,
    engines: Annotated[
        str | None,
        typer.Option(help="One node per engine class: transformers/float32/cpu,vllm/float32/cpu. Kills each engine."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="A task that the volunteers lack, played turn by turn.")] = None,
    mode: Annotated[
        Literal["async", "sequential"], typer.Option(help="sequential: nodes generate while the learner waits.")
    ] = "async",
    market: Annotated[
        bool, typer.Option("--market", help="Nodes with different asks, paid by a market of epochs of seconds.")
    ] = False,
    pay: Annotated[
        bool, typer.Option("--pay", help="The same, and paid out over a simulated provider that fails at times.")
    ] = False,
) -> int:
    """Play a whole run on this machine, CPU only: coordinator, learner and volunteers."""
    from echo2.coordinator.demo.demo_settings import DemoOptions
    from echo2.coordinator.demo.engine_nodes import classes_of
    from echo2.coordinator.demo.number_formats import play_each

    adapter = adapter_of(lora_rank, None, None, base_format)
    classes = () if engines is None else classes_of(engines)
    options = DemoOptions(
        model, nodes, seconds, seed, keep, faults, ways, adapter, engines=classes, task=task, mode=mode,
        market=market, pay=pay,
    )  # fmt: skip
    return play_each(options, [one.value for one in dtype or [DemoFormat.FLOAT32]])


@trials_app.command()
@errors_reported
def plan(
    home: Annotated[
        Path | None, typer.Option(help="A running run, whose measurements stand for flags.", show_default="flags alone")
    ] = None,
    step_seconds: Annotated[
        float | None, typer.Option(min=0.001, max=MOST, help="Seconds of the learner's step (T).")
    ] = None,
    rollouts: Annotated[int | None, typer.Option(min=1, max=MOST, help="Rollouts per step (R).")] = None,
    group: Annotated[int | None, typer.Option(min=2, max=MOST, help="Rollouts per group.")] = None,
    tokens: Annotated[float | None, typer.Option(min=1, max=MOST, help="Sampled tokens per rollout.")] = None,
    node_tokens: Annotated[float | None, typer.Option(min=0.001, max=MOST, help="Tokens per second of a node.")] = None,
    staleness: Annotated[int | None, typer.Option(min=0, max=MOST, help="S, steps that a group may be old.")] = None,
    publish_every: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Steps from one version to the next (kappa).", show_default="auto"),
    ] = None,
    gamma: Annotated[float, typer.Option(min=1.0, max=MOST, help="Supply over the need, as leases.gamma.")] = 1.1,
    version_mb: Annotated[float | None, typer.Option(min=0.0, max=MOST, help="MB of a version's diff.")] = None,
    uplink: Annotated[
        float | None, typer.Option(min=0.001, max=MOST, help="Uplink of the coordinator, Mbit/s.")
    ] = None,
    node_uplink: Annotated[float | None, typer.Option(min=0.0, max=MOST, help="Uplink of a node, Mbit/s.")] = None,
    node_downlink: Annotated[
        float | None, typer.Option(min=0.001, max=MOST, help="Downlink of a node, Mbit/s.")
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, max=MOST, help="Groups at once in a node (c).")] = 1,
    load_seconds: Annotated[
        float, typer.Option(min=0.0, max=MOST, help="Seconds in which a node loads a version.")
    ] = 1.0,
    verdict_seconds: Annotated[
        float, typer.Option(min=0.0, max=MOST, help="Seconds from a group's arrival to its verdict.")
    ] = 1.0,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Plan for so many.", show_default="as needed")
    ] = None,
    node_price: Annotated[float, typer.Option(min=0.0, max=MOST, help="Price of a node per hour.")] = 0.0,
    learner_price: Annotated[
        float, typer.Option(min=0.0, max=MOST, help="Price of the learner's device per hour.")
    ] = 0.0,
    own_tokens: Annotated[
        float | None, typer.Option(min=0.001, max=MOST, help="Tokens per second of a machine of yours.")
    ] = None,
    own_price: Annotated[
        float | None, typer.Option(min=0.0, max=MOST, help="Price of such a machine per hour.")
    ] = None,
) -> None:
    """Say how many nodes a run needs, at which S and period, and what a step costs."""
    from echo2.coordinator import config
    from echo2.coordinator.run import setup
    from echo2.coordinator.run.run_folder import RunFolder
    from echo2.coordinator.training.plan_terms import PlanFlags, told
    from echo2.coordinator.web import status as asked

    state = None
    if home is not None:
        place = RunFolder(home)
        web = config.load(place.config).web
        state = asked.decode(asked.fetch_of(place, web, setup.read_documents(place)[3].run))
    flags = PlanFlags(
        step_seconds, rollouts, group, tokens, node_tokens, staleness, publish_every, gamma, version_mb, uplink,
        node_uplink, node_downlink, at_once, load_seconds, verdict_seconds, nodes, node_price, learner_price,
        own_tokens, own_price,
    )  # fmt: skip
    print("\n".join(told(flags, state)))


@trials_app.command()
@errors_reported
def simulate(
    nodes: Annotated[int, typer.Option(min=1, max=100_000, help="Number of nodes.")] = 200,
    minutes: Annotated[float, typer.Option(min=1, max=MOST, help="Simulated time.")] = 60.0,
    supply: Annotated[
        float, typer.Option(min=0.01, max=MOST, help="What they make, over what the learner consumes.")
    ] = 1.5,
    equal: Annotated[bool, typer.Option("--equal", help="Equal nodes, instead of a tenfold spread.")] = False,
    batch: Annotated[int, typer.Option(min=1, max=MOST, help="Groups per step.")] = 64,
    staleness: Annotated[int, typer.Option(min=1, max=MOST, help="S, steps that a group may be old.")] = 4,
    publish_every: Annotated[
        int, typer.Option(min=1, max=MOST, help="Steps from one version to the next (kappa).")
    ] = 1,
    at_once: Annotated[int, typer.Option(min=1, max=MOST, help="Groups at once in a node.")] = 1,
    step_seconds: Annotated[float, typer.Option(min=0.001, max=MOST, help="Seconds of the learner's step (T).")] = 60.0,
    life: Annotated[
        float | None, typer.Option(min=0.1, max=MOST, help="Mean minutes until a node leaves.", show_default="it stays")
    ] = None,
    away: Annotated[float, typer.Option(min=0.1, max=MOST, help="Mean minutes until it is back.")] = 5.0,
    broadcast: Annotated[float, typer.Option(min=0.0, max=MOST, help="Seconds of a version to the nodes.")] = 12.0,
    star: Annotated[
        float, typer.Option(min=0.0, max=MOST, help="Seconds of a version to all nodes without peers, for --ablate.")
    ] = 0.0,
    gamma: Annotated[float, typer.Option(min=1.0, max=MOST, help="Supply of the active nodes over the need.")] = 1.1,
    price: Annotated[float, typer.Option(min=0.0, max=MOST, help="Median ask per hour; 0: nobody asks.")] = 0.0,
    learner_price: Annotated[
        float, typer.Option(min=0.0, max=MOST, help="Price of the learner's device per hour.")
    ] = 0.0,
    length_spread: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="Standard deviation of the logarithm of prompts' lengths.")
    ] = 0.0,
    hedges: Annotated[float, typer.Option(min=0.0, max=0.05, help="Most hedges, of all leases.")] = 0.0,
    moves: Annotated[bool, typer.Option("--moves", help="Lost groups of over a minute go on elsewhere.")] = False,
    gives_back: Annotated[
        bool, typer.Option("--gives-back", help="A node that is back gives its open leases back.")
    ] = False,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="COUNT:SPEED:ASK of nodes alike, repeated; for --nodes, --equal and --price."),
    ] = None,
    version_mb: Annotated[
        float | None, typer.Option(min=0.001, max=MOST, help="MB of a version; for --broadcast and --star.")
    ] = None,
    uplink: Annotated[float, typer.Option(min=0.001, max=MOST, help="Uplink of the coordinator, Mbit/s.")] = 1000.0,
    node_uplink: Annotated[float, typer.Option(min=0.0, max=MOST, help="Uplink of a node, Mbit/s.")] = 100.0,
    node_downlink: Annotated[float, typer.Option(min=0.001, max=MOST, help="Downlink of a node, Mbit/s.")] = 1000.0,
    uplink_price: Annotated[
        float, typer.Option(min=0.0, max=MOST, help="Price per GB that the coordinator sends.")
    ] = 0.0,
    prompts: Annotated[
        int, typer.Option(min=0, max=65_536, help="Prompts of several difficulties; 0: all are alike.")
    ] = 0,
    group: Annotated[int, typer.Option(min=2, max=1024, help="Rollouts per group, with --prompts.")] = 8,
    ablate: Annotated[bool, typer.Option("--ablate", help="Also without single rules.")] = False,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs per row.")] = 1,
    svg: Annotated[Path | None, typer.Option(help="Draw them to this file.", show_default="not drawn")] = None,
) -> None:
    """Simulate a fleet on the product's own rules: idle share, age of groups, cost of a step."""
    from echo2.coordinator.simulation import comparison, drawn_runs, told

    if publish_every > staleness + 1:
        raise LocalFault(f"publish-every is {publish_every}, and S = {staleness} allows at most {staleness + 1}")
    if svg is not None and not svg.parent.is_dir():
        raise LocalFault(f"--svg names {svg}, and there is no folder {svg.parent}: make it, or name another file")
    terms = comparison.FleetTerms(
        nodes, supply, not equal, batch, staleness, publish_every, at_once, step_seconds,
        life * 60 if life is not None else float("inf"), away * 60, broadcast, star, gamma, price, learner_price,
        length_spread, hedges, moves, gives_back, tuple(told.node_class(text) for text in classes or ()),
        told.version_terms(version_mb, uplink, node_uplink, node_downlink, uplink_price), prompts, group,
    )  # fmt: skip
    print(told.HEAD)
    rows = list[comparison.Compared]()
    try:
        for row in comparison.compared(terms, minutes * 60, seeds, ablate):
            print(told.row(row, seeds), flush=True)
            rows.append(row)
    except ValueError as fault:
        raise LocalFault(f"{fault} in {minutes:g} minutes: raise --minutes, or --supply") from fault
    print(told.FOOT)
    if prompts:
        print("\n".join([told.SELECTION_HEAD, *map(told.selection_row, rows), told.SELECTION_FOOT]))
    if svg is not None:
        try:
            svg.write_text(drawn_runs.draw(rows, minutes * 60))
        except OSError as fault:
            raise LocalFault(f"cannot write {svg}: {fault.strerror}; name another file") from fault


@trials_app.command()
@errors_reported
def redteam(
    quick: Annotated[bool, typer.Option("--quick", help="The main attacks, for a shorter time: 90 s.")] = False,
    attack: Annotated[
        list[str] | None,
        typer.Option(help="A family, or a part of an attack's sentence; as often as needed.", show_default="all"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    home: Annotated[
        Path | None, typer.Option("--home", help="A run folder whose settings are tried.", show_default="none")
    ] = None,
) -> None:
    """Attack a coordinator of this machine, on the loopback alone, and tell what held. Exits with 1 if a row broke."""
    from rich.console import Console

    from echo2.coordinator.redteam.command import play

    if not play(attack or [], quick=quick, as_json=as_json, home=home, console=Console(highlight=False)):
        raise SystemExit(1)
