"""`echo2-coord run` and the commands about a run that exists."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from echo2.coordinator.command_line import command_options
from echo2.coordinator.command_line.command_options import CommandApp, Home, Sets, errors_reported, settings_of
from echo2.coordinator.demo.interruption import noting_the_end
from echo2.coordinator.metrics.trackers import Tool
from echo2.runtime.exit_codes import Exit

running_app = CommandApp()


@running_app.command()
def run(
    home: Home = Path("."),
    port: Annotated[int | None, typer.Option(help="Port of the page.", show_default="from the settings")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps after which it finishes.")] = None,
    auto_rollback: Annotated[
        bool, typer.Option("--auto-rollback", help="Publish the best version again where the policy breaks.")
    ] = False,
    sets: Sets = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the coordinator of a run folder until it is stopped."""
    from echo2.coordinator.command_line.process_life import check_start, serve_until_stopped
    from echo2.coordinator.run import keys, setup
    from echo2.runtime.logs import LEVELS, set_up_logging, to_file, to_stream
    from echo2.runtime.settings import SettingsFault

    if log_level not in LEVELS:
        raise SettingsFault(f"--log-level should be one of {', '.join(LEVELS)}, not {log_level!r}")
    flags = settings_of_run(sets, port=port, steps=steps, auto_rollback=auto_rollback)
    loaded = setup.load_run(home, now=command_options.now(), flags=flags, secret=keys.passphrase())
    check_start(loaded)
    set_up_logging(to_stream(), to_file(loaded.folder.log), level=log_level, named=True)
    serve_until_stopped(loaded)


def settings_of_run(
    sets: list[str] | None, *, port: int | None = None, steps: int | None = None, auto_rollback: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the settings that the options of `run` say, by section; None: the option was not given."""
    return settings_of(sets, run={"steps": steps}, web={"port": port}, guard={"auto_rollback": auto_rollback or None})


@running_app.command()
def status(
    home: Home = Path("."),
    url: Annotated[str | None, typer.Option(help="The coordinator's page.", show_default="by the run folder")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole state, as /api/v1/run gives it.")] = False,
) -> None:
    """Print the state of a running coordinator; in a copy of its folder, what the copy has."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.metrics import status as asked
    from echo2.coordinator.run import root_files

    place = RunFolder(home)
    try:
        body = asked.fetch(url) if url else asked.fetch_of(place, None, root_files.run_id(place))
    except asked.OtherFolder:
        if not as_json:
            from echo2.coordinator.metrics.stored_run import stored_lines

            print("\n".join(stored_lines(place, command_options.now())))
        raise
    print(body.decode() if as_json else "\n".join(asked.lines(asked.decode(body), home)))


@running_app.command()
def pause(
    home: Home = Path("."),
    why: Annotated[str, typer.Option(help="A reason; the page shows it.")] = "",
) -> None:
    """Pause a running coordinator: no lease, no step. Groups of open leases are still accepted and paid."""
    from echo2.coordinator.run import operator_commands

    operator_commands.command(home, "pause", why=why)
    print("paused until `echo2-coord resume`; a step that has begun is still finished")


@running_app.command()
def resume(home: Home = Path(".")) -> None:
    """Resume a paused run at once, whatever paused it."""
    from echo2.coordinator.run import operator_commands

    was = operator_commands.command(home, "resume")["was_paused"]
    print("the run goes on" if was else "the run was not paused")


@running_app.command()
def finish(home: Home = Path(".")) -> None:
    """End the run for good: what was learned is published, open leases are taken and paid, nodes are told and end."""
    from echo2.coordinator.run import operator_commands

    last = operator_commands.command(home, "finish")["last"]
    print(f"the run ends with step {last}, also after a restart (run.steps); page and ledger stay up until Ctrl-C")


@running_app.command()
def calibrate(
    engine_class: Annotated[
        str, typer.Argument(metavar="CLASS", help="A number format, as bfloat16, or a class, as llamacpp/float16/cpu.")
    ],
    home: Home = Path("."),
    tokens: Annotated[
        int | None, typer.Option(min=2_000, max=1_000_000, help="Tokens per machine.", show_default="by the settings")
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Widen by landed groups of this kind of device, as the log names it."),
    ] = None,
    costs: Annotated[
        bool,
        typer.Option("--costs", help="Measure what tokens cost instead, by which groups are weighed from then on."),
    ] = False,
) -> None:
    """Calibrate a number format, or an engine class, and open it to nodes. Works while the coordinator runs."""
    from echo2.coordinator.calibration import calibrate as calibration
    from echo2.coordinator.calibration import cost_times
    from echo2.coordinator.run import keys, setup
    from echo2.coordinator.settings.computing import check_present

    loaded = setup.load_run(home, now=command_options.now(), secret=keys.passphrase())
    check_present(loaded.config.learner, loaded.config.scorer)
    if costs:
        path, factors = cost_times.calibrate_costs(loaded, engine_class, command_options.now())
        print(f"{factors.sentence()}: {path}")
        print("a running coordinator weighs groups by it within half a minute")
        return
    wanted = tokens or loaded.config.calibration.tokens
    path = calibration.calibrate(loaded, engine_class, wanted, command_options.now(), device or ())
    print(f"{engine_class} is calibrated: {path}")
    print("a running coordinator opens it within half a minute")


@running_app.command()
def recheck(home: Home = Path(".")) -> int:
    """Run the verdicts by evidence again, from ledger and stored tokens. Exits with 81 if one comes out otherwise."""
    from echo2.coordinator.command_line import replay_report
    from echo2.coordinator.database.run_folder import RunFolder

    replayed = replay_report.replay(RunFolder(home))
    print("\n".join(replay_report.lines(replayed)))
    return Exit.TRUST if replayed.faults else Exit.OK


@running_app.command()
def report(
    file: Annotated[Path, typer.Argument(help="The HTML file to write; it must not exist.", show_default=False)],
    home: Home = Path("."),
) -> None:
    """Write one HTML file on the run: curves, tables, settings, versions, who took part. It loads nothing."""
    from echo2.coordinator.web import report_file

    print(report_file.write(home, file))


page_app = CommandApp(help="The run's page and yours: their addresses, and a copy for a web host.")


@page_app.callback(invoke_without_command=True)
@errors_reported
def show_pages(context: typer.Context, home: Home = Path(".")) -> None:
    """Print the addresses of the public page and of your own, which asks for the token in its address."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.metrics import status

    if context.invoked_subcommand is None:
        print("\n".join(status.pages_in(RunFolder(home))))


@page_app.command("export")
def export_page(
    folder: Annotated[Path, typer.Argument(help="The folder to write: empty or missing.", show_default=False)],
    home: Home = Path("."),
) -> None:
    """Write a copy of the public page, with those of its nodes, for any web host."""
    from echo2.coordinator.web.pages import page_export

    print(page_export.export(home, folder, command_options.now()))


@running_app.command()
def doctor(home: Home = Path(".")) -> None:
    """Say whether keys, child processes, newcomers, addresses, ports, disk, memory, tasks, clock, page and rates are in
    order, and what to do for each that is not."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.metrics import status
    from echo2.coordinator.run import key_checks, price_mode, setup
    from echo2.coordinator.settings import config
    from echo2.coordinator.web import machine_checks

    place = RunFolder(home)
    settings = config.load(place.config)
    checks = key_checks.examine(place, settings.payout, command_options.now())
    _, _, _, spec = setup.read_documents(place)
    strangers = status.hidden_strangers(place, settings.web, spec.run)
    checks.append(key_checks.KeyCheck("addresses of newcomers", *strangers))
    checks.append(key_checks.device_and_threads(settings.learner, settings.scorer))
    checks += key_checks.ray_cluster(settings.scorer)
    checks += machine_checks.examine(place, settings, spec)
    print("\n".join(one.describe_finding() for one in checks))
    price_mode.check_price_mode(settings, spec)
    if remark := price_mode.cap_remark(settings, spec):
        print(remark)


@running_app.command()
def invite(home: Home = Path(".")) -> None:
    """Print the invite: the only string that a volunteer needs. It holds no secret. Its fingerprint goes to stderr."""
    from echo2.coordinator.database.run_folder import RunFolder
    from echo2.coordinator.metrics import status
    from echo2.coordinator.run import https_identity, keys, setup
    from echo2.coordinator.settings import config
    from echo2.p2p.discovery.invite import Invite
    from echo2.p2p.identity import peer_id

    place = RunFolder(home)
    settings = config.load(place.config)
    roots, chain, _, spec = setup.read_documents(place)
    if https_identity.ports_are_chosen_at_start(settings):
        text = status.invite_of_the_running(place, settings.web, spec.run)
    else:
        peer = peer_id(keys.identity(chain))
        text = setup.invite(settings, roots, chain[0].run, peer, https_identity.pin(place, settings))
    print(text)
    print(f"fingerprint: {Invite.from_text(text).fingerprint}", file=sys.stderr)


@running_app.command()
def directory(
    runs: Annotated[
        Path, typer.Argument(help="A TOML file: [[runs]] with invite, name, description, model, task, state, page.")
    ],
    out: Annotated[Path, typer.Argument(help="The signed list; an older one there is replaced.")],
    key: Annotated[Path, typer.Option("--key", help="Your key for directories; it is made where there is none.")],
    days: Annotated[int, typer.Option("--days", min=1, max=365, help="Days until the list counts as old.")] = 30,
) -> None:
    """Write a directory: a signed list of runs that anybody may host, and name to volunteers as URL#KEY."""
    from echo2.coordinator.nodes import directory_file

    print("\n".join(directory_file.write_directory(runs, out, key, days, command_options.now())))


@running_app.command()
def version() -> None:
    """Print the version of echo2 and of its protocol."""
    from echo2.protocol.numbers import build

    print(build())


track_app = CommandApp(
    help="Send a run's curves to a tracker, from history.jsonl: the coordinator neither waits for it nor knows it.",
    no_args_is_help=True,
)

Logs = Annotated[Path, typer.Argument(help="The folder that the tracker reads.", show_default=False)]
Tracker = Annotated[Tool, typer.Option("--to", help="The tracker, an extra of echo2 each.")]


@track_app.command("replay")
def track_replay(logs: Logs, to: Tracker = "tensorboard", home: Home = Path(".")) -> None:
    """Write the whole history into a folder for a tracker, in the place of what was written there before."""
    from echo2.coordinator.metrics import track

    print(track.replay(home, logs, to))


@track_app.command("follow")
def track_follow(logs: Logs, to: Tracker = "tensorboard", home: Home = Path(".")) -> None:
    """Do as `replay`, and go on with what the coordinator adds, until Ctrl-C. Run it as a service of its own."""
    from echo2.coordinator.metrics import track

    with noting_the_end() as wait:
        track.follow(home, logs, lambda sentence: print(sentence, flush=True), to, wait)


@running_app.command()
def relay(
    home: Annotated[Path, typer.Option("--home", help="Folder of the relay's key.")] = Path("relay"),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="TCP port.")] = 4101,
    host: Annotated[
        str | None, typer.Option(help="Public IP address or name.", show_default="addresses of this machine")
    ] = None,
    rate: Annotated[float, typer.Option(min=0.1, max=1e5, help="Most that is relayed, Mbit/s.")] = 100.0,
) -> None:
    """Relay between a run and nodes that cannot reach each other, on a host with a public address. Prints its address,
    for network.relays."""
    import asyncio

    from echo2.coordinator.nodes.relay_server import serve_relay

    asyncio.run(serve_relay(home, port, host, rate, lambda address: print(address, flush=True)))
