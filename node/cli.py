"""The command line `echo2-node`. A command imports the modules that compute or connect only when it runs.

An error ends a command with one line on stderr and an exit code (runtime/cli_errors.py, node/errors.py).
"""

import json
import os
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from echo2.node.errors import BadConfig, own_code
from echo2.runtime.cli_errors import report_errors
from echo2.runtime.closed_pipe import exit_on_closed_pipe
from echo2.runtime.exit_codes import Exit
from echo2.runtime.gpu_check_app import add_gpu_check
from echo2.runtime.named_folder import FOLDER
from echo2.runtime.own_memory import keep_private
from echo2.runtime.printable import printable
from echo2.runtime.service_app import service_app
from echo2.runtime.service_unit import Service
from echo2.runtime.terminal_question import ask_agreement

PROGRAM: Final = "echo2-node"
errors_reported = report_errors(PROGRAM, own_code)

app = typer.Typer(
    name=PROGRAM, help="Give this machine's idle time to a run, and be credited for it.", no_args_is_help=True,
    pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None,
)  # fmt: skip
receipts_app = typer.Typer(help="The run's signed answers to this node's work.", no_args_is_help=True)
keys_app = typer.Typer(help="The identity of this node.", no_args_is_help=True)
config_app = typer.Typer(help="Settings: a flag overrides ECHO2_..., which overrides the file.", no_args_is_help=True)
app.add_typer(receipts_app, name="receipts")
app.add_typer(keys_app, name="keys")
payout_app = typer.Typer(help="The account to which this node's pay goes.", no_args_is_help=True)
privacy_app = typer.Typer(help="What others see of this node.", no_args_is_help=True)
app.add_typer(privacy_app, name="privacy")
app.add_typer(config_app, name="config")
app.add_typer(payout_app, name="payout")
engine_app = typer.Typer(help="Engines that live in an environment of their own.", no_args_is_help=True)
app.add_typer(engine_app, name="engine")

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
Rows = Annotated[
    int | None, typer.Option("--rows", help="Most rollouts at a time; by default as many as gain and fit.")
]
Priority = Annotated[
    str | None, typer.Option("--priority", help="Beside your own programs: idle (the default), low or normal.")
]
Hours = Annotated[str | None, typer.Option("--hours", help="When to work: mon-fri 20:00-07:00, sat-sun; else always.")]
YieldTo = Annotated[list[str] | None, typer.Option("--yield-to", help="Rest while this program runs; may be repeated.")]
YieldWhen = Annotated[
    list[str] | None,
    typer.Option(
        "--yield-when", help="Rest on gpu, fullscreen, keyboard, battery (the default), metered; may be repeated."
    ),
]
Quiet = Annotated[float | None, typer.Option("--quiet", help="Seconds of quiet until work goes on; 60.")]
Uplink = Annotated[float | None, typer.Option("--uplink", help="Most upload to peers, in Mbit/s.")]
Downlink = Annotated[float | None, typer.Option("--downlink", help="Most download from peers, in Mbit/s.")]
MonthUp = Annotated[float | None, typer.Option("--month-up", help="Most upload in a calendar month, in GB.")]
MonthDown = Annotated[float | None, typer.Option("--month-down", help="Most download in a calendar month, in GB.")]
Disk = Annotated[float | None, typer.Option("--disk", help="Most disk space for weights, in GB; 50.")]
Base = Annotated[
    str | None, typer.Option("--base", help="Folder of a copy of the base model, or a hub's cache; auto; none.")
]
Duty = Annotated[int | None, typer.Option("--duty", help="Percent of the time that a device computes; 100.")]
Reserve = Annotated[float | None, typer.Option("--reserve", help="Memory of each device left to others, in GB.")]
Hottest = Annotated[float | None, typer.Option("--hottest", help="Temperature above which a device rests, in °C.")]
Power = Annotated[int | None, typer.Option("--power", help="Most power of each GPU, in W.")]
SlowHours = Annotated[str | None, typer.Option("--slow-hours", help="When the slow caps (slow_...) are in force.")]
Name = Annotated[str | None, typer.Option("--name", help="Public name on the leaderboard.")]
Listen = Annotated[list[str] | None, typer.Option("--listen", help="Multiaddress to listen on; may be repeated.")]
Via = Annotated[list[str] | None, typer.Option("--via", help="Route to peers: direct, relay, https; may be repeated.")]
Fingerprint = Annotated[
    str | None,
    typer.Option("--accept-fingerprint", help="Join the run of this fingerprint, by its page or on the local network."),
]
Once = Annotated[bool, typer.Option("--once", help="End once one group has its final answer.")]
JsonLogs = Annotated[bool | None, typer.Option("--json-logs", help="Log JSON lines.")]
Level = Annotated[str | None, typer.Option("--log", help="debug, info, warning or error.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="JSON for programs.")]


class NumbersAsArguments(TyperCommand):
    """A command that reads a word such as -1 or -0.5/h as an argument, so that its own sentence about the value is
    printed. Any other word with a hyphen in front is an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a call; `ctx` is click's context of it."""
        ctx.ignore_unknown_options = any(re.match(r"-\.?\d", word) for word in args)
        return super().parse_args(ctx, args)


def _seconds(duration: str) -> float:
    number, unit = duration[:-1], duration[-1:]
    if unit not in "smhd" or not number.replace(".", "", 1).isdecimal() or float(number) <= 0:
        raise typer.BadParameter("a duration is a number above 0 and s, m, h or d: 90s, 30m, 2h", param_hint="--for")
    return float(number) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]


@app.command()
@errors_reported
def join(
    invite: Annotated[
        str | None,
        typer.Argument(help="The run's invite, or its page's address; -: from standard input; or in ECHO2_INVITE."),
    ] = None,
    invite_file: InviteFile = None,
    gpu: Gpu = None,
    engine: Engine = None,
    dtype: NumberFormat = None,
    rows: Rows = None,
    server: Server = None,
    priority: Priority = None,
    hours: Hours = None,
    yield_to: YieldTo = None,
    yield_when: YieldWhen = None,
    quiet: Quiet = None,
    uplink: Uplink = None,
    downlink: Downlink = None,
    month_up: MonthUp = None,
    month_down: MonthDown = None,
    base: Base = None,
    disk: Disk = None,
    duty: Duty = None,
    reserve: Reserve = None,
    hottest: Hottest = None,
    power: Power = None,
    slow_hours: SlowHours = None,
    name: Name = None,
    home: Home = None,
    listen: Listen = None,
    via: Via = None,
    accept_fingerprint: Fingerprint = None,
    once: Once = False,
    log: Level = None,
    json_logs: JsonLogs = None,
) -> int:
    """Join a run, and work for it until stopped. Ctrl-C finishes the groups under way; a second one ends at once.

    Without an invite: the run joined last; else one discovered on the local network, once its fingerprint is typed."""
    return _daemon(
        once, invite=_invite_text(invite, invite_file), accept_fingerprint=accept_fingerprint,
        gpu=gpu, engine=engine, dtype=dtype, rows=rows, server=server, priority=priority,
        hours=hours, yield_to=yield_to, yield_when=yield_when, quiet=quiet,
        uplink=uplink, downlink=downlink, month_up=month_up, month_down=month_down, base=base, disk=disk, duty=duty,
        reserve=reserve, hottest=hottest, power=power, slow_hours=slow_hours, name=name,
        home=home, listen=listen, via=via, log=log, json_logs=json_logs,
    )  # fmt: skip


@app.command()
@errors_reported
def run(
    gpu: Gpu = None,
    engine: Engine = None,
    dtype: NumberFormat = None,
    rows: Rows = None,
    server: Server = None,
    priority: Priority = None,
    hours: Hours = None,
    yield_to: YieldTo = None,
    yield_when: YieldWhen = None,
    quiet: Quiet = None,
    uplink: Uplink = None,
    downlink: Downlink = None,
    month_up: MonthUp = None,
    month_down: MonthDown = None,
    base: Base = None,
    disk: Disk = None,
    duty: Duty = None,
    reserve: Reserve = None,
    hottest: Hottest = None,
    power: Power = None,
    slow_hours: SlowHours = None,
    name: Name = None,
    home: Home = None,
    listen: Listen = None,
    via: Via = None,
    once: Once = False,
    log: Level = None,
    json_logs: JsonLogs = None,
) -> int:
    """Continue the run that was joined last."""
    return _daemon(
        once, gpu=gpu, engine=engine, dtype=dtype, rows=rows, server=server, priority=priority,
        hours=hours, yield_to=yield_to, yield_when=yield_when, quiet=quiet,
        uplink=uplink, downlink=downlink, month_up=month_up, month_down=month_down, base=base, disk=disk, duty=duty,
        reserve=reserve, hottest=hottest, power=power, slow_hours=slow_hours, name=name, home=home, listen=listen,
        via=via, log=log, json_logs=json_logs,
    )  # fmt: skip


@app.command()
@errors_reported
def status(
    home: Home = None,
    as_json: Json = False,
    share: Annotated[
        bool, typer.Option("--share", help="Print this node's address on the page, and its badge.")
    ] = False,
) -> None:
    """Show the state of the running node."""
    answer = _ask(home, command="status")
    if not share:
        return _show(answer, as_json)
    from echo2.node.control.share_report import share_of

    _show(share_of(answer), as_json)


@app.command()
@errors_reported
def top(
    once: Annotated[bool, typer.Option("--once", help="Print one screen, and end.")] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Watch the running node: devices, groups, points, lines, and keys to pause, resume, finish, switch caps."""
    from echo2.node.top import top_report

    def ask(**asked: Any) -> dict[str, Any]:
        return _ask(home, **asked)

    if not once and not as_json:
        return top_report.show(ask)
    for text_line in top_report.once(ask, as_json=as_json) if once else top_report.stream(ask):
        _say(text_line)


@app.command()
@errors_reported
def slow(
    switch: Annotated[str, typer.Argument(help="on, off; or auto: slow_hours count again.")] = "on",
    home: Home = None,
) -> None:
    """Switch the running node to its slow caps (slow_uplink, slow_downlink, slow_duty), or back."""
    states = {"on": True, "off": False, "auto": None}
    if switch not in states:
        raise BadConfig(f"slow takes on, off or auto, not {switch!r}")
    _show(_ask(home, command="slow", slow=states[switch]), False)


@app.command()
@errors_reported
def why(
    lease: Annotated[
        str | None, typer.Option(metavar="LEASE", help="Of this lease's verdict.", show_default="of the node")
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show the one rule that blocks work now, and recent refusals; or the basis of one verdict."""
    if lease is not None:
        _show_verdict(home, lease, as_json)
        return
    _show(_ask(home, command="why"), as_json)


@app.command()
@errors_reported
def appeal(
    lease: Annotated[str, typer.Argument(help="Its 32 hexadecimal digits.", show_default=False)],
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Ask for another check of a refused group, by another scorer process; later it shows both answers."""
    _show_verdict(home, lease, as_json, ask=True)


@app.command()
@errors_reported
def pause(
    duration: Annotated[
        float | None, typer.Option("--for", parser=_seconds, metavar="TIME", help="For how long: 90s, 30m, 2h.")
    ] = None,
    gpu: Device = None,
    home: Home = None,
) -> None:
    """Request no new work, and free the device within seconds."""
    _show(_ask(home, command="pause", seconds=duration, gpu=gpu), False)


@app.command()
@errors_reported
def resume(gpu: Device = None, home: Home = None) -> None:
    """End a pause; a rule that blocks (--hours, --yield-to, --yield-when) is overridden until it has ended once."""
    _show(_ask(home, command="resume", gpu=gpu), False)


@app.command()
@errors_reported
def finish(home: Home = None) -> None:
    """Complete the groups under way, deliver every submission, end."""
    _show(_ask(home, command="finish"), False)


@app.command()
@errors_reported
def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are added, until Ctrl-C.")] = False,
    most: Annotated[int, typer.Option("--most", min=1, max=10_000, help="How many lines, the last ones.")] = 50,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show the log of the node, running or not."""
    from echo2.node.control import log_view

    place = _home(home)
    for text_line in log_view.last_lines(place, most):
        _say(text_line if as_json else log_view.readable(text_line))
    for text_line in log_view.follow(place) if follow else ():
        _say(text_line if as_json else log_view.readable(text_line))


@privacy_app.command("show")
@errors_reported
def privacy_show(home: Home = None, as_json: Json = False) -> None:
    """Show what is public of the running node, and what the run's operator sees of it."""
    from echo2.node.control import privacy_report

    config = _config(home=home)
    status, seen = _ask(home, command="status"), _ask(home, command="privacy")
    if as_json:
        return typer.echo(json.dumps(seen))
    for text_line in privacy_report.lines(config, status, seen):
        _say(text_line)


@privacy_app.command("forget")
@errors_reported
def privacy_forget(home: Home = None) -> None:
    """Take name, team and device of this node off the run's page, now and later. Its key and its work stay."""
    from echo2.node.config_file import set_key
    from echo2.node.control import privacy_report
    from echo2.node.errors import NoDaemonAnswers

    place = _config(home=home).home
    for key, value in (("name", ""), ("team", ""), ("show_hardware", "false")):
        set_key(key, value, os.environ, place)
    try:
        _ask(place, command="privacy", forget=True)
    except NoDaemonAnswers:
        applied = False
    else:
        applied = True
    for text_line in privacy_report.forgotten(applied):
        _say(text_line)


@app.command()
@errors_reported
def leave(
    home: Home = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete key and receipts too: standing, and points, go with them.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Finish, and delete the run's weights from this machine. Key and receipts stay, for another time."""
    from echo2.node.control.leaving import GROUP_SECONDS, check_worked
    from echo2.node.control.leaving import leave as leave_run

    config = _config(home=home)
    check_worked(config.home)
    if forget and not yes and not ask_agreement("Delete key and receipts of this node for good?", default=False):
        raise BadConfig("nothing is deleted")
    leave_run(config.home, config.drain + GROUP_SECONDS, _say, forget=forget)


@app.command()
@errors_reported
def version() -> None:
    """Print the version of echo2 and of its protocol."""
    from echo2.protocol.numbers import build

    _say(build())


@app.command()
@errors_reported
def update(home: Home = None) -> None:
    """Print how this installation is updated, and whether the run asks for it. It changes nothing."""
    from echo2.node.control.update_report import lines

    for text_line in lines(_config(home=home).home):
        _say(text_line)


@engine_app.command("install")
@errors_reported
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
    installing.install(engine, cpu=cpu, say=_say)
    _say(f"{engine} is installed in {place}: nodes and commands of this user find it there")


@app.command()
@errors_reported
def discover(
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=60, help="How long to listen.")] = 3.0,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List the runs of the local network, whose announcements are not verified, and of your directories (setting
    directories: lists of runs, each signed by its author)."""
    from echo2.node.control import discover_report

    rows = discover_report.discover_runs(_config(home=home), seconds)
    for row in [json.dumps(rows)] if as_json else discover_report.lines(rows):
        _say(row)


@app.command()
@errors_reported
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

    invite = _invite_text(invite, invite_file)
    config = _config(invite=invite, home=home, gpu=gpu, engine=engine, server=server, listen=listen)
    lines, code = diagnose(config, as_json=as_json)
    for text_line in lines:
        _say(text_line)
    return code


def _measure(device: str, quick: bool, as_json: bool, file: Path | None) -> Iterable[str]:
    """Measure a device for `gpu-check`."""
    from echo2.engines.gpu_check.checking import check, show

    return show(check(device, quick=quick), as_json=as_json, file=file)


add_gpu_check(app, errors_reported, _measure)


@app.command()
@errors_reported
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

    for text_line in timed(_config(home=home, gpu=gpu, engine=engine, dtype=dtype), again=again, as_json=as_json):
        _say(text_line)


@app.command()
@errors_reported
def earnings(
    explain: Annotated[
        bool, typer.Option("--explain", help="Each term of the newest epochs, or days, with its ledger entry.")
    ] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show what this node has earned, what it may expect, and why it stands by, if it does."""
    from echo2.node.control.earnings_report import report

    for text_line in report(_config(home=home), explain=explain, as_json=as_json):
        _say(text_line)


@receipts_app.command("list")
@errors_reported
def receipts_list(
    home: Home = None,
    as_json: Json = False,
    most: Annotated[int, typer.Option("--most", min=1, help="How many, newest first.")] = 50,
) -> None:
    """List this node's groups and the run's answers."""
    from echo2.node.rollouts.receipts import lines, list_submissions

    rows = list_submissions(_config(home=home).home, most)
    for text_line in map(json.dumps, rows) if as_json else lines(rows):
        _say(text_line)


@receipts_app.command("fetch")
@errors_reported
def receipts_fetch(home: Home = None, as_json: Json = False) -> None:
    """Let the running node fetch the proofs of receipts that have none yet."""
    _show(_ask(home, command="fetch"), as_json)


@receipts_app.command("verify")
@errors_reported
def receipts_verify(home: Home = None) -> int:
    """Check every Receipt, and its proof in the ledger, against the run's ledger key, offline."""
    from echo2.node.rollouts.receipts import verify_receipts

    checked = verify_receipts(_config(home=home).home, _passphrase())
    for fault in checked.faults:
        _say(fault)
    typer.echo(checked.sentence())
    return Exit.TRUST if checked.faults else Exit.OK


@keys_app.command("show")
@errors_reported
def keys_show(home: Home = None) -> None:
    """Show the public key and peer id of this node."""
    from echo2.node.key_change import own_key
    from echo2.p2p.identity import peer_id, public_bytes

    public = public_bytes(own_key(_config(home=home).home, _passphrase()))
    typer.echo(f"node  {peer_id(public)}\nkey   {public.hex()}")


@keys_app.command("backup")
@errors_reported
def keys_backup(
    copy: Annotated[Path, typer.Argument(help="The copy that it writes; an existing file stays.", show_default=False)],
    home: Home = None,
) -> None:
    """Copy this node's key: who has it has the node's standing."""
    from echo2.node.key_change import backup

    typer.echo("\n".join(backup(_config(home=home).home, copy, _passphrase())))


@keys_app.command("rotate")
@errors_reported
def keys_rotate(
    home: Home = None,
    give_up: Annotated[
        bool,
        typer.Option("--give-up", help="Also if the last rotation was not heard, or today: nothing follows then."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Replace this node's key while the node is stopped. Its standing follows; the old key is worth nothing then."""
    from echo2.node.key_change import own_key, rotate
    from echo2.p2p.identity import peer_id, public_bytes
    from echo2.runtime.units import unix_milliseconds

    old = peer_id(public_bytes(own_key(_config(home=home).home, _passphrase())))
    ends = f"End the key {old}, whose points stay on the page under it, and work under a new one?"
    if not yes and not ask_agreement(ends, default=False):
        raise BadConfig("the key is not replaced")
    typer.echo("\n".join(rotate(_config(home=home).home, _passphrase(), unix_milliseconds(), give_up=give_up)))


@keys_app.command("dispute")
@errors_reported
def keys_dispute(home: Home = None) -> None:
    """Say that somebody else replaced this node's key: within 72 hours its balance stays with it.

    The next start of the node tells the run. The balance is then paid to the account that was in force before."""
    from echo2.node.key_change import dispute

    typer.echo("\n".join(dispute(_config(home=home).home, _passphrase())))


@config_app.command("path")
@errors_reported
def config_path_command(home: Home = None) -> None:
    """Show the path of the user's settings file; with --home, of that home's own one, which goes before it."""
    from echo2.node.config import home_file
    from echo2.node.home_place import config_path

    typer.echo(config_path() if home is None else home_file(home))


@config_app.command("get")
@errors_reported
def config_get(
    key: Annotated[str | None, typer.Argument(help="One key; absent: all.")] = None,
    origin: Annotated[bool, typer.Option("--origin", help="Show the source of each value.")] = False,
    home: Home = None,
) -> None:
    """Show the settings now in force, of the node in a home."""
    from echo2.node.config import list_settings

    for text_line in list_settings(key, origin=origin, home=home):
        _say(text_line)


@config_app.command("set", cls=NumbersAsArguments)
@errors_reported
def config_set(
    key: Annotated[str, typer.Argument(help="One key, as in `config get`, or KEY=VALUE.", show_default=False)],
    value: Annotated[
        str | None, typer.Argument(help="Its value, as in `config set ask 0.12/h`.", show_default=False)
    ] = None,
    home: Home = None,
) -> None:
    """Write one setting, and say to which file. ask, tariff and watts belong to one node, that of --home; so does any
    other setting if --home is given. The running node takes an ask at once; all others count from its next start."""
    if value is None:
        key, equals, value = key.partition("=")
        if not equals:
            raise BadConfig(f"write a value behind {key}, as in `echo2-node config set uplink 8`")
    _write_setting(key, value, home)


@config_app.command("unset")
@errors_reported
def config_unset(
    key: Annotated[str, typer.Argument(help="One key, as in `config get`.", show_default=False)], home: Home = None
) -> None:
    """Remove one setting from the home's file, or else from the user's."""
    _write_setting(key, None, home)


@config_app.command("schema")
@errors_reported
def config_schema() -> None:
    """Print the JSON schema of all settings, for editors and programs."""
    from echo2.node.config import NodeConfig

    typer.echo(json.dumps(NodeConfig.model_json_schema(), indent=1))


@payout_app.command("set")
@errors_reported
def payout_set(
    account: Annotated[str, typer.Argument(help="As the run's rail reads it.", show_default=False)], home: Home = None
) -> None:
    """Name the account to which this node's pay goes. It counts 24 hours later; until then the one before is paid."""
    from echo2.node.control.payout_orders import name

    for text_line in name(_config(home=home).home, account):
        _say(text_line)


@payout_app.command("show")
@errors_reported
def payout_show(home: Home = None) -> None:
    """Show which account is in force, which one follows and when, the least payment and the fee."""
    from echo2.node.control.payout_orders import describe_payee

    for text_line in describe_payee(_config(home=home).home):
        _say(text_line)


def _service(home: Path | None) -> Service:
    from echo2.node.control.node_service import service_of

    return service_of(_config(home=home))


app.add_typer(service_app(PROGRAM, _service, errors_reported), name="service")


def main() -> None:
    """Run the command line: the entry point of the distribution."""
    keep_private()
    with exit_on_closed_pipe(Exit.CLOSED_PIPE):
        app()


def _daemon(once: bool, **flags: Any) -> int:
    from echo2.node.main import start

    return start(_config(**flags), once=once, passphrase=_passphrase())


def _invite_text(invite: str | None, file: Path | None) -> str | None:
    """Return the invite of an argument, of a file or of standard input. Raises `BadConfig`."""
    from echo2.p2p.discovery.invite import MOST_INVITE_CHARACTERS

    if file is not None and invite is not None:
        raise BadConfig("an invite is given twice: name it, or its file by --invite-file")
    if file is None:
        return sys.stdin.read(MOST_INVITE_CHARACTERS).strip() if invite == "-" else invite
    try:
        return file.read_bytes()[:MOST_INVITE_CHARACTERS].decode(errors="replace").strip()
    except OSError as error:
        raise BadConfig(f"the invite's file {file} cannot be read ({error.strerror}): correct --invite-file") from error


def _home(home: Path | None) -> Path:
    from echo2.node.home_place import home_without_settings

    place = home_without_settings(home)
    return place if place is not None else Path(_config().home)


def _config(**flags: Any) -> Any:
    from echo2.node.config import load_config

    return load_config(flags)[0]


def _write_setting(key: str, value: str | None, home: Path | None) -> None:
    from echo2.node.config_file import write_setting
    from echo2.node.control.ask_orders import check, consequences

    at = _config(home=home).home
    run = check(at, value) if key == "ask" else None
    written = write_setting(key, value, os.environ, home)
    after = ["it counts from the next start of the node on"]
    if key == "ask":
        after = consequences(at, run, value or written.config.ask)
    elif key in ("tariff", "watts"):
        after = ["`echo2-node earnings` counts with it from now on"]
    for text_line in [*written.lines(), *after]:
        _say(text_line)


def _passphrase() -> str | None:
    return os.environ.get("ECHO2_KEY_PASSPHRASE")


def _ask(home: Path | None, **asked: Any) -> dict[str, Any]:
    from echo2.node.control.owner_socket import ask_daemon
    from echo2.node.errors import NoDaemonAnswers

    place = _home(home)
    try:
        return ask_daemon(place, **asked)
    except NoDaemonAnswers:
        from echo2.node.control.stored_fork import check_no_fork

        check_no_fork(place)
        raise


def _show_verdict(home: Path | None, lease: str, as_json: bool, *, ask: bool = False) -> None:
    from echo2.node.control.owner_socket import ask_verdict

    verdict = ask_verdict(_home(home), lease, ask=ask)
    if not as_json:
        verdict["answers"] = [
            {**one, "at": f"{datetime.fromtimestamp(one['at'] / 1000, UTC):%Y-%m-%d %H:%M UTC}"}
            for one in verdict["answers"]
        ]
    _show(verdict, as_json)


def _say(text: object) -> None:
    """Print one row for people: a coordinator's or a peer's words may be in it."""
    typer.echo(printable(text))


def _show(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(answer))
        return
    for name, value in answer.items():
        if isinstance(value, list):
            _say(f"{name.replace('_', ' ')}: {'none' if not value else ''}")
            for text in _rows(value):
                _say(f"  {text}")
        elif isinstance(value, dict):
            _say(f"{name.replace('_', ' ')}: {_count_words(value)}")
        elif value not in (None, ""):
            _say(f"{name.replace('_', ' ')}: {value}")


def _count_words(named: dict[str, Any]) -> str:
    return ", ".join(f"{value} {name}" for name, value in named.items() if value is not None) or "none"


def _rows(rows: list[Any]) -> list[str]:
    """Return texts as they are, and rows of named cells in columns, under their names; empty columns are left out."""
    if not rows or isinstance(rows[0], str):
        return rows
    used = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    rows = [{name: row[name] for name in used} for row in rows]
    table = [[name.replace("_", " ") for name in rows[0]]]
    table += [["" if cell is None else str(cell) for cell in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in table]


if __name__ == "__main__":
    main()
