"""The parts that all commands of `echo2-node` share: the program's name, its options, and the end by an error.

An error ends a command with one line on stderr and an exit code (runtime/cli_errors.py, node/errors.py).
"""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from echo2.node.errors import own_code
from echo2.runtime.cli_errors import report_errors
from echo2.runtime.command_app import CommandApp
from echo2.runtime.named_folder import FOLDER

PROGRAM: Final = "echo2-node"
errors_reported = report_errors(PROGRAM, own_code)
NodeApp = partial(CommandApp, errors_reported)

InviteFile = Annotated[
    Path | None, typer.Option("--invite-file", help="A file with the invite: all users see a command's arguments.")
]
Home = Annotated[
    Path | None, typer.Option("--home", **FOLDER, help="Folder of this node: key, weights, outbox, receipts.")
]
Gpu = Annotated[
    str | None, typer.Option("--gpu", help="auto; or cpu, mps, metal, cuda:1, ..; several: 0,1 or cuda:0,cpu; all.")
]
Device = Annotated[str | None, typer.Option("--gpu", help="Only this device: 1, cuda:1, cpu; several: 0,1.")]
Engine = Annotated[str | None, typer.Option("--engine", help="auto, transformers, llamacpp, vllm or server.")]
NumberFormat = Annotated[str | None, typer.Option("--dtype", help="auto, float32, float16, bfloat16 or blocks.")]
Server = Annotated[
    str | None, typer.Option("--server", help="Address of the running server that the engine server uses.")
]
Listen = Annotated[list[str] | None, typer.Option("--listen", help="Multiaddress to listen on; may be repeated.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="JSON for programs.")]

C = TypeVar("C", bound=Callable[..., object])


def work_options(
    gpu: Gpu = None,
    engine: Engine = None,
    dtype: NumberFormat = None,
    rows: Annotated[
        int | None, typer.Option(help="Most rollouts at a time; by default as many as gain and fit.")
    ] = None,
    server: Server = None,
    threads: Annotated[str | None, typer.Option(help="CPU threads of each engine; auto.")] = None,
    priority: Annotated[
        str | None, typer.Option(help="Beside your own programs: idle (the default), low or normal.")
    ] = None,
    hours: Annotated[str | None, typer.Option(help="When to work: mon-fri 20:00-07:00, sat-sun; else always.")] = None,
    yield_to: Annotated[list[str] | None, typer.Option(help="Rest while this program runs; may be repeated.")] = None,
    yield_when: Annotated[
        list[str] | None,
        typer.Option(help="Rest on gpu, fullscreen, keyboard, battery (the default), metered; may be repeated."),
    ] = None,
    quiet: Annotated[float | None, typer.Option(help="Seconds of quiet until work goes on; 60.")] = None,
    uplink: Annotated[float | None, typer.Option(help="Most upload to peers, in Mbit/s.")] = None,
    downlink: Annotated[float | None, typer.Option(help="Most download from peers, in Mbit/s.")] = None,
    month_up: Annotated[float | None, typer.Option(help="Most upload in a calendar month, in GB.")] = None,
    month_down: Annotated[float | None, typer.Option(help="Most download in a calendar month, in GB.")] = None,
    base: Annotated[
        str | None, typer.Option(help="Folder of a copy of the base model, or a hub's cache; auto; none.")
    ] = None,
    disk: Annotated[float | None, typer.Option(help="Most disk space for weights, in GB; 50.")] = None,
    duty: Annotated[
        list[str] | None, typer.Option(help="Percent of the time that devices compute: 50; of GPU 1 alone: 1=50.")
    ] = None,
    reserve: Annotated[list[str] | None, typer.Option(help="Memory of devices left to others, in GB; or 1=4.")] = None,
    hottest: Annotated[
        list[str] | None, typer.Option(help="Temperature above which a device rests, in °C; or 1=70.")
    ] = None,
    power: Annotated[list[str] | None, typer.Option(help="Most power of each GPU, in W; or 1=200.")] = None,
    slow_hours: Annotated[str | None, typer.Option(help="When the slow caps (slow_...) are in force.")] = None,
    slow_uplink: Annotated[float | None, typer.Option(help="Most upload while slow, in Mbit/s.")] = None,
    slow_downlink: Annotated[float | None, typer.Option(help="Most download while slow, in Mbit/s.")] = None,
    slow_duty: Annotated[int | None, typer.Option(help="Percent of the time to compute while slow.")] = None,
    name: Annotated[str | None, typer.Option(help="Public name on the leaderboard.")] = None,
    home: Home = None,
    listen: Listen = None,
    via: Annotated[
        list[str] | None, typer.Option(help="Route to peers: direct, relay, https; may be repeated.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End once one group has its final answer.")] = False,
    log: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    json_logs: Annotated[bool | None, typer.Option("--json-logs", help="Log JSON lines.")] = None,
) -> None:
    """The options of a node that works, which `join` and `run` share."""


def with_options_of(options: Callable[..., object]) -> Callable[[C], C]:
    """Return a decorator that gives a command the parameters of `options` in place of its `**flags`: typer reads a
    command's options from its signature."""

    def extend(command: C) -> C:
        signature, shared = inspect.signature(command), inspect.signature(options).parameters
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        command.__signature__ = signature.replace(parameters=[*own, *shared.values()])  # type: ignore[attr-defined]
        command.__annotations__ |= {name: one.annotation for name, one in shared.items()}
        return command

    return extend
