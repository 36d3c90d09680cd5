"""`echo2-coord demo`, `plan`, `gpu-check`, `simulate` and `redteam`: a run tried out before others join."""

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from echo2.coordinator.command_line.adapter_options import BaseFormatOption, LoraRank, adapter_of
from echo2.coordinator.command_line.checkout_commands import PASSED_ON, pass_on
from echo2.coordinator.command_line.command_options import CommandApp
from echo2.runtime.gpu_check_app import add_gpu_check

if TYPE_CHECKING:
    from echo2.coordinator.metrics.views import RunState

trials_app = CommandApp()
MOST_FIGURE: Final = 1_000_000_000
"""No figure of a plan is larger, nor infinite: 30 years, in seconds."""


def figure(least: float, meaning: str, default: str | bool = True) -> Any:
    """Make the option of a figure of a plan. `meaning`: its text of help. `default`: words for its default; True: the
    value itself."""
    return typer.Option(min=least, max=MOST_FIGURE, help=meaning, show_default=default)


class DemoFormat(Enum):
    """The number formats of the demo's nodes; typer takes no list of literals."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


@trials_app.command()
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
    ways: Annotated[bool, typer.Option("--ways", help="One node behind a relay, one over HTTPS only.")] = False,
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
        bool, typer.Option("--pay", help="The same, paid out over a provider that fails at times. Needs a checkout.")
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


def _measure(device: str, quick: bool, as_json: bool, file: Path | None) -> Iterable[str]:
    """Measure a device for `gpu-check`."""
    from echo2.engines.gpu_check.checking import check, show

    return show(check(device, quick=quick), as_json=as_json, file=file)


add_gpu_check(trials_app, _measure)


@trials_app.command()
def plan(
    home: Annotated[
        Path | None, typer.Option(help="A running run, whose measurements stand for flags.", show_default="only flags")
    ] = None,
    step_seconds: Annotated[float | None, figure(0.001, "Seconds of the learner's step (T).")] = None,
    rollouts: Annotated[int | None, figure(1, "Rollouts per step (R).")] = None,
    group: Annotated[int | None, figure(2, "Rollouts per group.")] = None,
    tokens: Annotated[float | None, figure(1, "Sampled tokens per rollout.")] = None,
    node_tokens: Annotated[float | None, figure(0.001, "Tokens per second of a node.")] = None,
    staleness: Annotated[int | None, figure(0, "S, steps that a group may be old.")] = None,
    publish_every: Annotated[int | None, figure(1, "Steps from one version to the next (kappa).", "auto")] = None,
    gamma: Annotated[float | None, figure(1.0, "Supply over the need.", "the run's, else 1.1")] = None,
    version_mb: Annotated[float | None, figure(0.0, "MB of a version's diff.")] = None,
    uplink: Annotated[float | None, figure(0.001, "Uplink of the coordinator, Mbit/s.")] = None,
    node_uplink: Annotated[float | None, figure(0.0, "Uplink of a node, Mbit/s.")] = None,
    node_downlink: Annotated[float | None, figure(0.001, "Downlink of a node, Mbit/s.")] = None,
    at_once: Annotated[int | None, figure(1, "Groups at once in a node (c).", "1")] = None,
    load_seconds: Annotated[float | None, figure(0.0, "Seconds in which a node loads a version.", "1.0")] = None,
    scorer_tokens: Annotated[float | None, figure(0.001, "Tokens per second that a scorer verifies.")] = None,
    scorers: Annotated[int | None, figure(1, "Scorers.", "the run's, else 1")] = None,
    nodes: Annotated[int | None, figure(1, "Plan for so many.", "as needed")] = None,
    node_price: Annotated[float, figure(0.0, "Price of a node per hour.")] = 0.0,
    learner_price: Annotated[float, figure(0.0, "Price of the learner's device per hour.")] = 0.0,
    own_tokens: Annotated[float | None, figure(0.001, "Tokens per second of a machine of yours.")] = None,
    own_price: Annotated[float | None, figure(0.0, "Price of such a machine per hour.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="A model's folder: what it takes of a card's memory.", show_default="none")
    ] = None,
    card: Annotated[str | None, typer.Option(help="Memory of a card: 80GB.", show_default="this machine's")] = None,
    limit: Annotated[int, figure(1, "Tokens of the longest rollout.")] = 8192,
) -> None:
    """Say how many nodes a run needs, at which S and period, and what a step costs; or, with --model, what the learner
    takes of a card's memory, and the settings with which it fits."""
    if model is not None:
        return print("\n".join(_describe_card(model, card, limit)))
    from echo2.coordinator.training.plan_terms import PlanFlags, describe_run_plan

    flags = PlanFlags(
        step_seconds, rollouts, group, tokens, node_tokens, staleness, publish_every, gamma, version_mb, uplink,
        node_uplink, node_downlink, at_once, load_seconds, scorer_tokens, scorers, nodes, node_price, learner_price,
        own_tokens, own_price,
    )  # fmt: skip
    print("\n".join(describe_run_plan(flags, None if home is None else _state_of(home))))


def _describe_card(model: Path, card: str | None, limit: int) -> list[str]:
    """Return what a learner takes of a card's memory. `card`: its memory; None: that of this machine. Raises
    `LocalFault`."""
    from echo2.coordinator.learner.memory_plan import card_bytes, describe_memory
    from echo2.coordinator.run.model_folder import count_memory
    from echo2.runtime.errors import LocalFault

    named = 0 if card is None else card_bytes(card)
    counted = count_memory(model)
    if not named and not counted.card:
        raise LocalFault("this machine has no card that PyTorch sees: name one, as in --card 80GB")
    return describe_memory(counted, limit, named or counted.card)


def _state_of(home: Path) -> "RunState":
    """Return the state of a running run."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.metrics import status
    from echo2.coordinator.run import root_files

    place = RunFolder(home)
    return status.decode(status.fetch_of(place, None, root_files.run_id(place)))


@trials_app.command(context_settings=PASSED_ON)
def simulate(context: typer.Context) -> None:
    """Simulate a fleet on the product's own rules: idle share, age of groups, cost of a step. Needs a checkout."""
    pass_on(context, "simulate")


@trials_app.command(context_settings=PASSED_ON)
def redteam(context: typer.Context) -> None:
    """Attack a coordinator of this machine, on loopback only, and report what held. Needs a checkout."""
    pass_on(context, "redteam")
