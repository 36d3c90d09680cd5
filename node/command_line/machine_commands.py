"""The commands about this machine: its build, engines and devices, and its routes to a run."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from echo2.node.command_line.node_answers import config_of, invite_text, say
from echo2.node.command_line.node_options import (
    Engine,
    Gpu,
    Home,
    InviteFile,
    Json,
    Listen,
    NodeApp,
    NumberFormat,
    Server,
    Yes,
)
from echo2.runtime.gpu_check_app import add_gpu_check
from echo2.runtime.terminal_question import ask_agreement

machine_app = NodeApp()
engine_app = NodeApp(help="Engines that live in an environment of their own.", no_args_is_help=True)


@machine_app.command()
def version() -> None:
    """Print the version of echo2 and of its protocol."""
    from echo2.protocol.numbers import build

    say(build())


@machine_app.command()
def update(home: Home = None) -> None:
    """Print how this installation is updated, and whether the run asks for it. It changes nothing."""
    from echo2.node.control.update_report import lines

    for text_line in lines(config_of(home=home).home):
        say(text_line)


@engine_app.command("install")
def engine_install(
    engine: Annotated[str, typer.Argument(help="The engine: vllm.")],
    cpu: Annotated[bool, typer.Option("--cpu", help="vLLM for CPUs, to try it without a card.")] = False,
    yes: Yes = False,
) -> None:
    """Make the environment in which an engine lives that pins its own libraries; again after an update of echo2."""
    from echo2.engines.vllm import own_environment
    from echo2.node.control import engine_install as installing

    installing.check(engine, cpu=cpu)
    place, size = own_environment.folder(), installing.SIZES[cpu]
    if not yes and not ask_agreement(f"Install {engine} into {place} ({size})?", default=True):
        return
    installing.install(engine, cpu=cpu, say=say)
    say(f"{engine} is installed in {place}: nodes and commands of this user find it there")


@machine_app.command()
def discover(
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=60, help="How long to listen.")] = 3.0,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List the runs of the local network, whose announcements are not verified, and of your directories (setting
    directories: lists of runs, each signed by its author)."""
    from echo2.node.control import discover_report

    rows = discover_report.discover_runs(config_of(home=home), seconds)
    for row in [json.dumps(rows)] if as_json else discover_report.lines(rows):
        say(row)


@machine_app.command()
def doctor(
    invite: Annotated[
        str | None, typer.Argument(help="The run's invite; -: from standard input; absent: of the run joined last.")
    ] = None,
    invite_file: InviteFile = None,
    home: Home = None,
    gpu: Gpu = None,
    engine: Engine = None,
    server: Server = None,
    listen: Listen = None,
    as_json: Json = False,
) -> int:
    """Test this machine and its routes to the run; name the exact fix of each fault."""
    from echo2.node.control.doctor import diagnose

    invite = invite_text(invite, invite_file)
    config = config_of(invite=invite, home=home, gpu=gpu, engine=engine, server=server, listen=listen)
    lines, code = diagnose(config, as_json=as_json)
    for text_line in lines:
        say(text_line)
    return code


def _measure(device: str, quick: bool, as_json: bool, file: Path | None) -> Iterable[str]:
    """Measure a device for `gpu-check`."""
    from echo2.engines.gpu_check.checking import check, show

    return show(check(device, quick=quick), as_json=as_json, file=file)


add_gpu_check(machine_app, _measure)


@machine_app.command()
def bench(
    home: Home = None,
    gpu: Gpu = None,
    engine: Engine = None,
    dtype: NumberFormat = None,
    again: Annotated[bool, typer.Option("--again", help="Time the engines anew, while no node runs here.")] = False,
    as_json: Json = False,
) -> None:
    """Show how fast each engine of this machine generates with the model of the run joined last, and which one is used.

    The rates are those that `join --gpu auto` measured and kept. With --gpu 0,1 and --again, those of each device."""
    from echo2.node.control.bench import bench as timed

    for text_line in timed(config_of(home=home, gpu=gpu, engine=engine, dtype=dtype), again=again, as_json=as_json):
        say(text_line)
