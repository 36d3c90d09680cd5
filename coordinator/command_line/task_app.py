"""`echo2-coord task`: the tasks, tried and measured."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from echo2.coordinator.command_line.command_options import CommandApp
from echo2.coordinator.demo.interruption import terminated_like_interrupted
from echo2.runtime.errors import LocalFault

task_app = CommandApp(help="Tasks that a run can learn.", no_args_is_help=True)


@task_app.command("ls")
def task_ls() -> None:
    """List the tasks of this build, those that need an extra, and the plug-ins."""
    from echo2.coordinator.calibration import task_trial

    print("\n".join(task_trial.list_families()))


@task_app.command("try")
@terminated_like_interrupted()
def task_try(
    name: Annotated[str, typer.Argument(help="As in run.task: NAME or NAME:ARGUMENT.", show_default=False)],
    split: Annotated[Literal["train", "heldout"], typer.Option(help="Which prompts.")] = "train",
    prompts: Annotated[int, typer.Option(min=1, max=1000, help="Number of prompts.")] = 3,
    answer: Annotated[list[str] | None, typer.Option(help="An answer to score, as often as needed.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Show the answers of a model: smollm2, a folder, hf:ORG/NAME, or RUN@VERSION."),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Of another version.", show_default="the folder's")] = None,
    answers: Annotated[int, typer.Option(min=1, max=256, help="The model's answers to a prompt.")] = 4,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most sampled tokens of one.", show_default="128, or half of the context")
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Only its most likely answer.")] = False,
    template: Annotated[Literal["plain", "chat"], typer.Option(help="As run.template.")] = "plain",
    thinking: Annotated[
        bool | None, typer.Option(help="As run.thinking.", show_default="not passed to the template")
    ] = None,
) -> None:
    """Show prompts of a task and scores: of its own answers and yours, or with --model of a model's."""
    from echo2.coordinator.calibration import model_trial, task_trial
    from echo2.coordinator.command_line import policy_folder
    from echo2.coordinator.run import model_folder, task_mix

    name = task_mix.only(name)
    if model is not None and answer:
        raise LocalFault("--answer and --model are for two calls: leave out one of them")
    trial = model_trial.ModelTrial(split, prompts, answers, limit, greedy, template, thinking)
    if model is not None:
        with policy_folder.model_of_version(model) as named:
            folder = model_folder.fetch_named(named, partial(print, flush=True))
            model_trial.try_model(name, folder, weights, trial, partial(print, flush=True))
        return
    if weights is not None or trial != model_trial.ModelTrial(split, prompts):
        raise LocalFault(
            "--weights, --answers, --limit, --greedy, --template and --thinking say how a model answers: add --model"
        )
    for part in task_trial.try_task(name, split, prompts, answer or []):
        print(part)


@task_app.command("measure")
@terminated_like_interrupted()
def task_measure(
    name: Annotated[str, typer.Argument(help="poker:kuhn, poker:leduc or poker:holdem.", show_default=False)],
    model: Annotated[Path, typer.Argument(help="Folder of a model.", show_default=False)],
    weights: Annotated[Path | None, typer.Option(help="Of another version.", show_default="the folder's")] = None,
    hands: Annotated[int, typer.Option(min=1, max=1000, help="Hand numbers to ask for (kuhn, leduc).")] = 4,
    play: Annotated[
        int | None,
        typer.Option(min=0, max=100_000, help="Held-out hands to play.", show_default="200 in holdem, else 0"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most sampled tokens of a hand that is played.")] = 64,
    template: Annotated[Literal["plain", "chat"], typer.Option(help="As run.template.")] = "plain",
) -> None:
    """Tell how well a model plays poker: what it can lose (0 is an equilibrium), and what it wins from the opponent."""
    from echo2.coordinator.calibration import poker_measure

    task, measured_model = poker_measure.poker_task(name), poker_measure.model_of(model, weights, template)
    policy = poker_measure.measure_policy(task, measured_model, hands)
    if policy is not None:
        print(f"exploitability {policy.exploitability:.4f} chips per hand (nash_conv {policy.nash_conv:.4f})")
        print(f"probability of a legal move {policy.legal:.4f}, of which the policy is made")
    if number := play if play is not None else 200 * (policy is None):
        won = poker_measure.measure_winnings(task, measured_model, number, limit)
        print(
            f"won {won.mean:+.3f} chips per hand from {task.opponent} in {number} hands "
            f"(95 % interval {won.low:+.3f} to {won.high:+.3f})"
        )
