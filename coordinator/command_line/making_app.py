"""`echo2-coord init`: a new run."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echo2.coordinator.command_line import command_options
from echo2.coordinator.command_line.adapter_options import BaseFormatOption, LoraRank, adapter_of
from echo2.coordinator.command_line.command_options import PROGRAM, CommandApp, Home, Sets, settings_of
from echo2.coordinator.demo.interruption import terminated_like_interrupted
from echo2.runtime.cli_errors import print_error
from echo2.runtime.terminal_question import ask_agreement

if TYPE_CHECKING:
    from echo2.coordinator.run.setup import Run
    from echo2.coordinator.settings.config import CoordinatorConfig

making_app = CommandApp()


@making_app.command()
@terminated_like_interrupted()
def init(
    folder: Annotated[Path, typer.Argument(help="The run folder to make.", show_default=False)],
    model: Annotated[
        str,
        typer.Option(
            help="tiny, smollm2, a model folder, hf:ORG/NAME[@REVISION] of the hub, or RUN@VERSION, or RUN@best."
        ),
    ] = "tiny",
    name: Annotated[str | None, typer.Option(help="The run's name.", show_default="the folder's")] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="The task to learn; several times, as '3 add': several by weight.", show_default="by model"),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps after which it finishes.", show_default="endless")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the page.", show_default="8420")] = None,
    lora_rank: LoraRank = None,
    lora_alpha: Annotated[
        float | None, typer.Option(min=0.001, help="The adapter's factor is alpha / rank.", show_default="2 x rank")
    ] = None,
    lora_targets: Annotated[
        str | None, typer.Option(help="Its layers, such as q_proj,v_proj.", show_default="all of attention and MLP")
    ] = None,
    base_format: BaseFormatOption = "bfloat16",
    sets: Sets = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
    calibrate: Annotated[bool, typer.Option(help="Calibrate admitted classes that are not exact.")] = True,
    root_key_plan: Annotated[
        str | None, typer.Option("--root-keys", metavar="M-of-N", help="Root keys: how many of how many must sign.")
    ] = None,
    root_out: Annotated[
        Path | None, typer.Option(help="Folder for the root keys, outside the run folder.", show_default="keys/")
    ] = None,
) -> None:
    """Make a run: keys, signed documents, model, settings, Calibrations. Prints the invite."""
    from echo2.coordinator.command_line import policy_folder
    from echo2.coordinator.run import keys, model_folder, root_keys, setup

    _report_left_over(folder)
    root_plan = root_keys.plan(root_key_plan, root_out, folder)
    flags = settings_of_init(sets, name=name, task=task, steps=steps, port=port)
    with policy_folder.model_of_version(model) as source:
        config = setup.settings_for(source, flags, name=folder.resolve().name)
        if not yes and _at_a_terminal() and not _confirm_run(config):
            return
        new_run = setup.init(
            folder,
            source,
            config,
            now=command_options.now(),
            adapter=adapter_of(lora_rank, lora_alpha, lora_targets, base_format),
            secret=keys.passphrase(),
            report=_say,
            root_plan=root_plan,
            check_model=partial(model_folder.check_model, divided=config.learner.ranks * config.learner.hosts > 1),
        )
    closed = _open_classes(new_run, calibrate=calibrate)
    _print_made(new_run, root_keys.meaning(root_plan, new_run.folder.path))
    for sentence in closed:
        print_error(PROGRAM, sentence)


def _report_left_over(folder: Path) -> None:
    """Set the log up, and report what an `init` that was killed has left beside the folder."""
    from echo2.coordinator.run.draft import left_over
    from echo2.runtime.logs import set_up_logging, to_stream

    set_up_logging(to_stream(), level="warning")  # what the children print while they open is for no operator
    for sentence in left_over(folder):
        print_error(PROGRAM, sentence)


def _open_classes(new_run: "Run", *, calibrate: bool) -> list[str]:
    """Calibrate the admitted classes that are not exact, if so; return what is to be said of those that stay closed."""
    from echo2.coordinator.calibration import own_classes

    if calibrate:
        return own_classes.calibrate_own(new_run, command_options.now(), _say)
    return own_classes.how_to_open(new_run)


def settings_of_init(
    sets: list[str] | None,
    *,
    name: str | None = None,
    task: list[str] | None = None,
    steps: int | None = None,
    port: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the settings that the options of `init` say, by section; None: the option was not given."""
    from echo2.coordinator.run import task_mix

    tasks = task_mix.join_mix(task) if task else None
    return settings_of(sets, run={"name": name, "task": tasks, "steps": steps}, web={"port": port})


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()


def _confirm_run(config: "CoordinatorConfig") -> bool:
    print("These are signed, and cannot be changed later:")
    _print_signed(config)
    return ask_agreement("Make this run?", default=True)


def _print_signed(config: "CoordinatorConfig") -> None:
    from echo2.coordinator.settings.config import SIGNED_KEYS

    pay = f"{config.payout.currency}, by a market" if config.market.enabled else "points"
    print(f"  {'pay':<14}{pay}")
    for key in (*SIGNED_KEYS, "kind", "template", "thinking"):
        value = getattr(config.run, key)
        value = "not passed to the template" if value is None else "not stated" if value == "" else value
        print(f"  {key:<14}{', '.join(value) if isinstance(value, tuple) else value}")


def _say(sentence: str) -> None:
    print(sentence, flush=True)


def _print_made(run: "Run", about_root_keys: list[str]) -> None:
    from echo2.coordinator.run.https_identity import ports_are_chosen_at_start
    from echo2.coordinator.run.keys import PASSPHRASE_VARIABLE
    from echo2.coordinator.settings.computing import computing_of
    from echo2.p2p.discovery.invite import Invite

    encrypted = "encrypted" if os.environ.get(PASSPHRASE_VARIABLE) else f"in the clear ({PASSPHRASE_VARIABLE} is unset)"
    if ports_are_chosen_at_start(run.config):
        joining = (
            f"`echo2-coord invite --home {run.folder.path}` prints the invite while it runs (port 0: any free one)"
        )
    else:
        fingerprint = Invite.from_text(run.invite()).fingerprint
        joining = f"echo2-node join {run.invite()}\nor by the page:   they compare the fingerprint {fingerprint}"
    print(f"\n{computing_of(run.config.learner, run.config.scorer).sentence()}.")
    print("\nSigned, by --model where no option said otherwise:")
    _print_signed(run.config)
    print(
        f"\nThe run is in {run.folder.path}; its keys are {encrypted}.\n\n"
        f"Start it:         echo2-coord run --home {run.folder.path}\n"
        f"Volunteers join:  {joining}\n"
    )
    print("\n".join(about_root_keys))


config_app = CommandApp(help="Settings of a run: a variable overrides coordinator.toml.", no_args_is_help=True)


@config_app.command("get")
def config_get(
    key: Annotated[str | None, typer.Argument(help="One key, or a section; absent: all.")] = None,
    origin: Annotated[bool, typer.Option("--origin", help="Show the source of each value.")] = False,
    home: Home = Path("."),
) -> None:
    """Show the settings in force, with their meanings."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.settings import config_edits

    print("\n".join(config_edits.list_settings(RunFolder(home).config, key, origin=origin)))


@config_app.command("diff")
def config_diff(home: Home = Path(".")) -> None:
    """Show the settings that differ from their defaults, where they come from, and the last changes."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.metrics import setting_changes
    from echo2.coordinator.settings import config_edits

    place = RunFolder(home)
    print("\n".join([*config_edits.list_differences(place.config), *setting_changes.lines_of(place.database)]))


@config_app.command("set")
def config_set(
    assigned: Annotated[
        list[str],
        typer.Argument(
            metavar="SECTION.KEY=VALUE...", help="One or several; or one key and its value.", show_default=False
        ),
    ],
    home: Home = Path("."),
) -> None:
    """Write settings into coordinator.toml, all or none. A running coordinator takes those that change at once."""
    from echo2.coordinator.run import operator_commands

    print("\n".join(operator_commands.change_settings(home, assigned, [])))


@config_app.command("unset")
def config_unset(
    keys: Annotated[list[str], typer.Argument(metavar="SECTION.KEY...", show_default=False)], home: Home = Path(".")
) -> None:
    """Remove settings from coordinator.toml, all or none: their defaults count, as by `config set`."""
    from echo2.coordinator.run import operator_commands

    print("\n".join(operator_commands.change_settings(home, [], keys)))


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of all settings, for editors and programs."""
    import json

    from echo2.coordinator.settings.config import CoordinatorConfig

    print(json.dumps(CoordinatorConfig.model_json_schema(), indent=1))
