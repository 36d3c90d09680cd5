"""`echo2-coord`: the operator's commands. Each body imports its modules itself, so that `--help` is fast.

An error ends a command with one line on stderr and an exit code (runtime/cli_errors.py, coordinator/errors.py).
"""

import os
import sys
import time
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import typer

from runtime.cli_errors import print_error, report_errors
from runtime.closed_pipe import exit_on_closed_pipe
from runtime.errors import LocalFault
from runtime.exit_codes import Exit
from runtime.units import unix_milliseconds

if TYPE_CHECKING:
    from coordinator.config import CoordinatorConfig
    from coordinator.run.setup import Run
    from weights.lora.adapter_folder import AdapterOrder
    from weights.lora.frozen_base import BaseFormat

PROGRAM: Final = "echo2-coord"

app = typer.Typer(
    name=PROGRAM,
    help="Run a reinforcement-learning run whose rollouts come from volunteers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
keys_app = typer.Typer(help="The run's keys.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")
nodes_app = typer.Typer(help="Nodes: their standing, and your remarks on them.", no_args_is_help=True)
app.add_typer(nodes_app, name="nodes")
policy_app = typer.Typer(help="The published versions in the run's store.", no_args_is_help=True)
app.add_typer(policy_app, name="policy")
ledger_app = typer.Typer(help="The ledger of accepted work.", no_args_is_help=True)
app.add_typer(ledger_app, name="ledger")
verdict_app = typer.Typer(help="Verdicts on groups, by the lease.", no_args_is_help=True)
app.add_typer(verdict_app, name="verdict")
task_app = typer.Typer(help="Tasks that a run can learn.", no_args_is_help=True)
app.add_typer(task_app, name="task")

Home = Annotated[Path, typer.Option("--home", envvar="ECHO2_COORD_HOME", help="The run folder.")]
Peer = Annotated[str, typer.Argument(metavar="NODE", help="Its peer id: 12D3Koo...", show_default=False)]
LeaseId = Annotated[str, typer.Argument(metavar="LEASE", help="Its 32 hexadecimal digits.", show_default=False)]
LoraRank = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="Train an adapter of this rank, the model frozen.", show_default="whole model"),
]
BaseFormatOption = Annotated[
    Literal["bfloat16", "q8_0", "q4_0"], typer.Option("--base-format", help="The frozen model's, with --lora-rank.")
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting, as often as needed.")
]


class DemoFormat(Enum):
    """The number formats of the demo's nodes; typer takes no list of literals."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


def main() -> None:
    """Run the command line."""
    with exit_on_closed_pipe(Exit.CLOSED_PIPE):
        app()


def _own_code(error: BaseException) -> Exit | None:
    from coordinator.errors import own_code

    return own_code(error)


errors_reported = report_errors(PROGRAM, _own_code)


@app.command()
@errors_reported
def init(
    folder: Annotated[Path, typer.Argument(help="The run folder to make.", show_default=False)],
    model: Annotated[str, typer.Option(help="tiny, smollm2, or the path of a model folder.")] = "tiny",
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
    from coordinator.run import keys, own_classes, root_keys, setup, task_mix
    from coordinator.run.draft import left_over

    for sentence in left_over(folder):
        print_error(PROGRAM, sentence)
    tasks = task_mix.joined(task) if task else None
    root_plan = root_keys.plan(root_key_plan, root_out, folder)
    flags = _flags(sets, run={"name": name or folder.resolve().name, "task": tasks, "steps": steps}, web={"port": port})
    config = setup.settings_for(model, flags)
    if not yes and _at_a_terminal() and not _confirmed(config):
        return
    new_run = setup.init(
        folder,
        model,
        config,
        now=unix_milliseconds(),
        adapter=_adapter(lora_rank, lora_alpha, lora_targets, base_format),
        secret=keys.passphrase(),
        report=_say_making,
        root_plan=root_plan,
    )
    if calibrate:
        closed = own_classes.calibrate_own(new_run, unix_milliseconds(), _say_making)
    else:
        closed = own_classes.how_to_open(new_run)
    _print_made(new_run, root_keys.meaning(root_plan, new_run.folder.path))
    for sentence in closed:
        print_error(PROGRAM, sentence)


@app.command()
@errors_reported
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
    from coordinator.main import check_start, serve_until_stopped
    from coordinator.run import keys, setup
    from runtime.logs import LEVELS, set_up_logging, to_file, to_stream
    from runtime.settings import SettingsFault

    if log_level not in LEVELS:
        raise SettingsFault(f"--log-level should be one of {', '.join(LEVELS)}, not {log_level!r}")
    flags = _flags(sets, run={"steps": steps}, web={"port": port}, guard={"auto_rollback": auto_rollback or None})
    loaded = setup.load_run(home, now=unix_milliseconds(), flags=flags, secret=keys.passphrase())
    check_start(loaded)
    set_up_logging(to_stream(), to_file(loaded.folder.log), level=log_level, named=True)
    serve_until_stopped(loaded)


@app.command()
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
    pacing: Annotated[
        Literal["fresh", "room"], typer.Option(help="room: leases by room alone, to compare ages of groups.")
    ] = "fresh",
) -> int:
    """Play a whole run on this machine, CPU only: coordinator, learner and volunteers."""
    from coordinator.demo.demo_settings import DemoOptions
    from coordinator.demo.engine_nodes import classes_of
    from coordinator.demo.number_formats import play_each

    adapter = _adapter(lora_rank, None, None, base_format)
    classes = () if engines is None else classes_of(engines)
    options = DemoOptions(
        model, nodes, seconds, seed, keep, faults, ways, adapter, engines=classes, task=task, mode=mode, pacing=pacing
    )
    return play_each(options, [one.value for one in dtype or [DemoFormat.FLOAT32]])


@app.command()
@errors_reported
def status(
    home: Home = Path("."),
    url: Annotated[str | None, typer.Option(help="The coordinator's page.", show_default="by the run folder")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole state, as /api/v1/run gives it.")] = False,
) -> None:
    """Print the state of a running coordinator."""
    from coordinator import config
    from coordinator.run.run_folder import RunFolder
    from coordinator.web import status as asked

    place = RunFolder(home)
    body = asked.fetch(url or asked.address_in(place, config.load(place.config).web))
    print(body.decode() if as_json else "\n".join(asked.lines(asked.decode(body), home)))


@app.command()
@errors_reported
def plan(
    home: Annotated[
        Path | None, typer.Option(help="A running run, whose measurements stand for flags.", show_default="flags alone")
    ] = None,
    step_seconds: Annotated[float | None, typer.Option(min=0.001, help="T, of the learner's step.")] = None,
    rollouts: Annotated[int | None, typer.Option(min=1, help="R, per step.")] = None,
    group: Annotated[int | None, typer.Option(min=2, help="Rollouts per group.")] = None,
    tokens: Annotated[float | None, typer.Option(min=1, help="Sampled tokens per rollout.")] = None,
    node_tokens: Annotated[float | None, typer.Option(min=0.001, help="Tokens per second of a node.")] = None,
    staleness: Annotated[int | None, typer.Option(min=0, help="S.")] = None,
    publish_every: Annotated[int | None, typer.Option(min=1, help="kappa.", show_default="auto")] = None,
    gamma: Annotated[float, typer.Option(min=1.0, help="Reserve.")] = 1.1,
    version_mb: Annotated[float | None, typer.Option(min=0.0, help="Of a version's diff, MB.")] = None,
    uplink: Annotated[float | None, typer.Option(min=0.001, help="The coordinator's, Mbit/s.")] = None,
    node_uplink: Annotated[float | None, typer.Option(min=0.0, help="A node's, Mbit/s.")] = None,
    node_downlink: Annotated[float | None, typer.Option(min=0.001, help="A node's, Mbit/s.")] = None,
    at_once: Annotated[int, typer.Option(min=1, help="c, groups at once in a node.")] = 1,
    load_seconds: Annotated[float, typer.Option(min=0.0, help="A node's, to load a version.")] = 1.0,
    verdict_seconds: Annotated[float, typer.Option(min=0.0, help="From a group's receipt to its verdict.")] = 1.0,
    nodes: Annotated[int | None, typer.Option(min=1, help="Plan for so many.", show_default="as needed")] = None,
    node_price: Annotated[float, typer.Option(min=0.0, help="Of a node, per hour.")] = 0.0,
    learner_price: Annotated[float, typer.Option(min=0.0, help="Of the learner, per hour.")] = 0.0,
    own_tokens: Annotated[
        float | None, typer.Option(min=0.001, help="Tokens per second of a machine of yours.")
    ] = None,
    own_price: Annotated[float | None, typer.Option(min=0.0, help="Of such a machine, per hour.")] = None,
) -> None:
    """Say how many nodes a run needs, at which S and period, and what a step costs."""
    from coordinator import config
    from coordinator.run.run_folder import RunFolder
    from coordinator.training.plan_terms import PlanFlags, told
    from coordinator.web import status as asked

    state = None
    if home is not None:
        place = RunFolder(home)
        state = asked.decode(asked.fetch(asked.address_in(place, config.load(place.config).web)))
    flags = PlanFlags(
        step_seconds, rollouts, group, tokens, node_tokens, staleness, publish_every, gamma, version_mb, uplink,
        node_uplink, node_downlink, at_once, load_seconds, verdict_seconds, nodes, node_price, learner_price,
        own_tokens, own_price,
    )  # fmt: skip
    print("\n".join(told(flags, state)))


@app.command()
@errors_reported
def simulate(
    nodes: Annotated[int, typer.Option(min=1, max=100_000, help="Number of nodes.")] = 200,
    minutes: Annotated[float, typer.Option(min=1, help="Simulated time.")] = 60.0,
    supply: Annotated[float, typer.Option(min=0.01, help="What they make, over what the learner consumes.")] = 1.5,
    equal: Annotated[bool, typer.Option("--equal", help="Equal nodes, instead of a tenfold spread.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Groups per step.")] = 64,
    staleness: Annotated[int, typer.Option(min=1, help="S.")] = 4,
    publish_every: Annotated[int, typer.Option(min=1, help="kappa.")] = 1,
    at_once: Annotated[int, typer.Option(min=1, help="Groups at once in a node.")] = 1,
    step_seconds: Annotated[float, typer.Option(min=0.001, help="T.")] = 60.0,
    life: Annotated[
        float | None, typer.Option(min=0.1, help="Mean minutes until a node leaves.", show_default="it stays")
    ] = None,
    away: Annotated[float, typer.Option(min=0.1, help="Mean minutes until it is back.")] = 5.0,
    broadcast: Annotated[float, typer.Option(min=0.0, help="Seconds of a version to the nodes.")] = 12.0,
    star: Annotated[float, typer.Option(min=0.0, help="The same without peers, for --ablate.")] = 0.0,
    gamma: Annotated[float, typer.Option(min=1.0, help="Reserve of active nodes.")] = 1.1,
    price: Annotated[float, typer.Option(min=0.0, help="Median ask per hour; 0: nobody asks.")] = 0.0,
    learner_price: Annotated[float, typer.Option(min=0.0, help="Of the learner, per hour.")] = 0.0,
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
        float | None, typer.Option(min=0.001, help="MB of a version; for --broadcast and --star.")
    ] = None,
    uplink: Annotated[float, typer.Option(min=0.001, help="The coordinator's, Mbit/s.")] = 1000.0,
    node_uplink: Annotated[float, typer.Option(min=0.0, help="A node's, Mbit/s.")] = 100.0,
    node_downlink: Annotated[float, typer.Option(min=0.001, help="A node's, Mbit/s.")] = 1000.0,
    uplink_price: Annotated[float, typer.Option(min=0.0, help="Per GB that the coordinator sends.")] = 0.0,
    prompts: Annotated[
        int, typer.Option(min=0, max=65_536, help="Prompts of several difficulties; 0: all are alike.")
    ] = 0,
    group: Annotated[int, typer.Option(min=2, max=1024, help="Rollouts per group, with --prompts.")] = 8,
    ablate: Annotated[bool, typer.Option("--ablate", help="Also without single rules.")] = False,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs per row.")] = 1,
    svg: Annotated[Path | None, typer.Option(help="Draw them to this file.", show_default="not drawn")] = None,
) -> None:
    """Simulate a fleet on the product's own rules: idle share, age of groups, cost of a step."""
    from coordinator.simulation import comparison, drawn_runs, told

    if publish_every > staleness + 1:
        raise LocalFault(f"publish-every is {publish_every}, and S = {staleness} allows at most {staleness + 1}")
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
        svg.write_text(drawn_runs.draw(rows, minutes * 60))


@app.command()
@errors_reported
def pause(
    home: Home = Path("."),
    why: Annotated[str, typer.Option(help="A reason; the page shows it.")] = "",
) -> None:
    """Pause a running coordinator: no lease, no step. Groups of open leases are still accepted and paid."""
    from coordinator.run import operator_commands

    operator_commands.command(home, "pause", why=why)
    print("paused until `echo2-coord resume`; a step that has begun is still finished")


@app.command()
@errors_reported
def resume(home: Home = Path(".")) -> None:
    """Resume a paused run at once, whatever paused it."""
    from coordinator.run import operator_commands

    was = operator_commands.command(home, "resume")["was_paused"]
    print("the run goes on" if was else "the run was not paused")


@app.command()
@errors_reported
def calibrate(
    engine_class: Annotated[str, typer.Argument(metavar="CLASS", help="As transformers/bfloat16/cpu.")],
    home: Home = Path("."),
    tokens: Annotated[
        int | None, typer.Option(min=2_000, max=1_000_000, help="Tokens per machine.", show_default="by the settings")
    ] = None,
) -> None:
    """Calibrate an engine class that is not exact, and open it to nodes. Works while the coordinator runs."""
    from coordinator.run import calibrate as calibration
    from coordinator.run import keys, setup

    loaded = setup.load_run(home, now=unix_milliseconds(), secret=keys.passphrase())
    wanted = tokens or loaded.config.calibration.tokens
    path = calibration.calibrate(loaded, engine_class, wanted, unix_milliseconds())
    print(f"{engine_class} is calibrated: {path}")
    print("a running coordinator opens it within half a minute")


@app.command()
@errors_reported
def recheck(home: Home = Path(".")) -> int:
    """Run the verdicts by evidence again, from ledger and stored tokens. Exits with 81 if one comes out otherwise."""
    from coordinator.run import replay_report
    from coordinator.run.run_folder import RunFolder

    replayed = replay_report.replay(RunFolder(home))
    print("\n".join(replay_report.lines(replayed)))
    return Exit.TRUST if replayed.faults else Exit.OK


@ledger_app.command("export")
@errors_reported
def ledger_export(
    folder: Annotated[Path, typer.Argument(help="The folder to write; an earlier export is continued.")],
    home: Home = Path("."),
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Also entries that no head covers yet.")] = False,
) -> None:
    """Export the ledger: entries, signed heads, Roots, RunSpec, Calibrations. Works while the coordinator runs."""
    from coordinator.accounts import ledger_export
    from coordinator.run.run_folder import RunFolder

    done = ledger_export.export(RunFolder(home), folder, unsigned=unsigned)
    print(f"{done.entries} entries in {done.size} bytes and {done.heads} heads are in {folder}")
    print(f"anybody verifies it with: echo2-coord ledger verify {folder}")


@ledger_app.command("verify")
@errors_reported
def ledger_verify(
    folder: Annotated[Path, typer.Argument(help="An export, by `ledger export`.", show_default=False)],
) -> None:
    """Verify an export, without keys: chain, tree, heads, signatures, balances. Exits with 81 at the first fault."""
    from coordinator.accounts import ledger_audit

    print("\n".join(ledger_audit.lines(ledger_audit.audit(folder))))


@ledger_app.command("balance")
@errors_reported
def ledger_balance(home: Home = Path(".")) -> None:
    """Print the balance of every account, in milli-RE. Works while the coordinator runs."""
    from coordinator.accounts.ledger import Ledger
    from coordinator.database import Database
    from coordinator.run.run_folder import RunFolder

    with Database.read(RunFolder(home).database) as database:
        for account, amount in Ledger(database).balances().items():
            print(f"{amount:>20}  {account}")


@ledger_app.command("head")
@errors_reported
def ledger_head(home: Home = Path(".")) -> None:
    """Print the newest signed head as a checkpoint, which witnesses of transparency logs read."""
    from coordinator.accounts import ledger_export
    from coordinator.run.run_folder import RunFolder

    print(ledger_export.newest_note(RunFolder(home)), end="")


@app.command()
@errors_reported
def doctor(home: Home = Path(".")) -> None:
    """Say which protections of the run's keys are in force here, and what to do for the others."""
    from coordinator.run import key_checks
    from coordinator.run.run_folder import RunFolder

    print("\n".join(one.described() for one in key_checks.examine(RunFolder(home), unix_milliseconds())))


@app.command()
@errors_reported
def invite(home: Home = Path(".")) -> None:
    """Print the invite: the only string that a volunteer needs. It holds no secret. Its fingerprint goes to stderr."""
    from coordinator import config
    from coordinator.run import https_identity, keys, setup
    from coordinator.run.run_folder import RunFolder
    from coordinator.web import status
    from p2p.discovery.invite import Invite
    from p2p.identity import peer_id

    place = RunFolder(home)
    settings = config.load(place.config)
    roots, chain, _, _ = setup.read_documents(place)
    if https_identity.ports_are_chosen_at_start(settings):
        text = status.invite_of_the_running(place, settings.web)
    else:
        peer = peer_id(keys.identity(chain))
        text = setup.invite(settings, roots, chain[0].run, peer, https_identity.pin(place, settings))
    print(text)
    print(f"fingerprint: {Invite.from_text(text).fingerprint}", file=sys.stderr)


@keys_app.command("show")
@errors_reported
def keys_show(home: Home = Path(".")) -> None:
    """Show the public half of each key, and where its file is. Opens no private key."""
    from coordinator import config
    from coordinator.run import keys, setup
    from coordinator.run.run_folder import RunFolder

    place = RunFolder(home)
    config.read(place.config)
    _, chain, _, _ = setup.read_documents(place)
    root = chain[-1]
    signers = root.roles[keys.ROOT]
    print(f"run      {root.run.hex()}")
    print(f"Root     {root.serial}, expires {time.strftime('%Y-%m-%d', time.gmtime(root.expires / 1000))}")
    print(f"signed   by {signers.threshold} of {len(signers.keys)} root keys")
    for key in keys.shown(place, chain):
        there = str(key.path) if key.present else "offline" if key.role == keys.ROOT else f"missing: {key.path}"
        print(f"{key.role:<9}{key.fingerprint}  {key.peer}  {there}")


Request = Annotated[
    Path | None, typer.Option("--request", help="Write a request to this file, to be signed where the root key is.")
]
Role = Annotated[
    Literal["root", "policy", "channel", "ledger", "network"], typer.Argument(help="The role whose key it is.")
]
RootPlace = Annotated[
    Path | None, typer.Option("--keys", help="The folder with the root keys.", show_default="keys/ of the run folder")
]


@keys_app.command("renew")
@errors_reported
def keys_renew(home: Home = Path("."), request: Request = None, place: RootPlace = None) -> None:
    """Give the run another year: a new Root with the same keys."""
    _change(home, None, request, place)


@keys_app.command("rotate")
@errors_reported
def keys_rotate(role: Role, home: Home = Path("."), request: Request = None, place: RootPlace = None) -> None:
    """Replace the key of a role. Documents that the old key signed before stay valid."""
    _change(home, role, request, place)


@keys_app.command("revoke")
@errors_reported
def keys_revoke(
    role: Role,
    home: Home = Path("."),
    request: Request = None,
    since: Annotated[str | None, typer.Option("--from", help="UTC, as 2026-11-22T08:00.", show_default="now")] = None,
    place: RootPlace = None,
) -> None:
    """Replace the stolen key of a role: the old key is invalid from a given time on."""
    from coordinator.run.keys_commands import time_of

    now = unix_milliseconds()
    _change(home, role, request, place, now if since is None else time_of(since, now))


@keys_app.command("make-root")
@errors_reported
def keys_make_root(
    out: Annotated[Path, typer.Option("--out", help="The folder of the new key.")] = Path("."),
) -> None:
    """Make another root key, and print its public half for `export-root --add`. It counts once a Root names it."""
    from coordinator.run import keys, root_keys
    from p2p.identity import public_bytes

    public = public_bytes(root_keys.make(out, keys.passphrase()))
    print(f"{public.hex()}\nfingerprint {keys.spaced(public)}, in {out}")


@keys_app.command("export-root")
@errors_reported
def keys_export_root(
    request: Annotated[Path, typer.Argument(help="The request that it writes.", show_default=False)],
    home: Home = Path("."),
    threshold: Annotated[
        int | None, typer.Option(min=1, max=16, help="Root keys that must sign.", show_default="as before")
    ] = None,
    add: Annotated[list[str] | None, typer.Option(metavar="KEY", help="A root key to add, from make-root.")] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="FINGERPRINT", help="A root key that counts no more.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--revoke-from", help="When the dropped keys were stolen.", show_default="not stolen")
    ] = None,
) -> None:
    """Write a request for other root keys or another threshold; without options, for another year."""
    from coordinator.run import keys_commands
    from coordinator.run.root_request import SetChange

    now = unix_milliseconds()
    change = SetChange(
        threshold,
        [keys_commands.key_of(one) for one in add or []],
        [one.replace(" ", "").lower() for one in drop or []],
        None if since is None else keys_commands.time_of(since, now),
    )
    print("\n".join(keys_commands.export_root(home, request, change, now=now)))


@keys_app.command("sign-root")
@keys_app.command("sign", hidden=True)
@errors_reported
def keys_sign(
    request: Annotated[Path, typer.Argument(help="The request.", show_default=False)],
    place: Annotated[Path, typer.Option("--keys", help="The folder with the root keys.")] = Path("."),
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
    set_changes: Annotated[
        bool, typer.Option("--changes-root", help="Sign other root keys or another threshold, too.")
    ] = False,
) -> None:
    """Sign a request with the root keys in a folder. Needs no run folder and no network."""
    from coordinator.run import keys, keys_commands

    def confirm(lines: list[str]) -> bool:
        print("\n".join(lines), flush=True)
        return yes or typer.confirm("Sign this?", default=False)

    lines = keys_commands.sign(request, place, secret=keys.passphrase(), confirm=confirm, set_changes=set_changes)
    print("\n".join(lines))


@keys_app.command("import-root")
@keys_app.command("install", hidden=True)
@errors_reported
def keys_install(
    signed: Annotated[list[Path], typer.Argument(help="The signed Root; several files of one.", show_default=False)],
    home: Home = Path("."),
) -> None:
    """Install a signed Root. A running coordinator switches to it at once."""
    from coordinator.run import keys, keys_commands

    print("\n".join(keys_commands.install(home, *signed, secret=keys.passphrase())))


@nodes_app.command("ls")
@errors_reported
def nodes_ls(
    home: Home = Path("."),
    rank: Annotated[Literal["new", "known", "proven"] | None, typer.Option(help="Only these.")] = None,
    out: Annotated[Literal["suspended", "banned"] | None, typer.Option(help="Only these.")] = None,
    most: Annotated[int, typer.Option(min=1, max=10_000, help="Nodes per page.")] = 50,
    page: Annotated[int, typer.Option(min=1, help="Number of the page.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> None:
    """List nodes and their standing, most recently seen first. Works while the coordinator runs."""
    import msgspec

    from coordinator.accounts import nodes_report
    from coordinator.run.run_folder import RunFolder

    rows = nodes_report.list_keys(RunFolder(home).database, unix_milliseconds(), most, page, rank, out)
    print(msgspec.json.encode(rows).decode() if as_json else "\n".join(nodes_report.format_keys(rows)))


@nodes_app.command("show")
@errors_reported
def nodes_show(
    node: Peer,
    home: Home = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> None:
    """Show one node: standing, reasons of its last groups, strikes, suspensions with their evidence."""
    import msgspec

    from coordinator.accounts import nodes_report
    from coordinator.run.run_folder import RunFolder

    key_report = nodes_report.describe_key(RunFolder(home).database, node, unix_milliseconds())
    print(msgspec.json.encode(key_report).decode() if as_json else "\n".join(nodes_report.format_report(key_report)))


@nodes_app.command("evidence")
@errors_reported
def nodes_evidence(node: Peer, home: Home = Path(".")) -> None:
    """Compare a node's groups of the last 24 hours with the others'. Evidence for you; no verdict follows."""
    from coordinator.rollouts import over_time_report
    from coordinator.run.run_folder import RunFolder

    print("\n".join(over_time_report.report(RunFolder(home).database, node)))


@nodes_app.command("vouch")
@errors_reported
def nodes_vouch(node: Peer, home: Home = Path("."), why: Annotated[str, typer.Option(help="A reason.")] = "") -> None:
    """Vouch for a node: its rank is known from now on, as after 3 accepted groups."""
    _remark(home, "vouch", node, why)


@nodes_app.command("ban")
@errors_reported
def nodes_ban(node: Peer, why: Annotated[str, typer.Option(help="The node is told.")], home: Home = Path(".")) -> None:
    """Ban a node until you lift the ban. It keeps its earnings."""
    _remark(home, "ban", node, why)


@nodes_app.command("unban")
@errors_reported
def nodes_unban(node: Peer, home: Home = Path("."), why: Annotated[str, typer.Option(help="A reason.")] = "") -> None:
    """Lift a node's ban, or end its suspension."""
    _remark(home, "unban", node, why)


@nodes_app.command("note")
@errors_reported
def nodes_note(node: Peer, text: str, home: Home = Path(".")) -> None:
    """Add a note on a node. It stays in the ledger for ever, visible to every reader of the ledger."""
    _remark(home, "note", node, text)


@verdict_app.command("show")
@errors_reported
def verdict_show(lease: LeaseId, home: Home = Path(".")) -> None:
    """Show a verdict: statistic, threshold, Calibration, stored evidence, further checks. Works at any time."""
    from coordinator.rollouts import verdict_commands
    from coordinator.run import replay_report
    from coordinator.run.run_folder import RunFolder

    place = RunFolder(home)
    print("\n".join(verdict_commands.show(place, replay_report.classes_of(place), lease)))


@verdict_app.command("rerun")
@errors_reported
def verdict_rerun(lease: LeaseId, home: Home = Path(".")) -> None:
    """Have a verdict checked again by another scorer process, within 24 hours. Needs the running coordinator."""
    from coordinator.rollouts import verdict_commands

    print(verdict_commands.submit(home, "rerun", lease))


@verdict_app.command("reverse")
@errors_reported
def verdict_reverse(
    lease: LeaseId, why: Annotated[str, typer.Option(help="The node is told.")], home: Home = Path(".")
) -> None:
    """Reverse a verdict: pay a refused group, or take an accepted one back. Needs the running coordinator."""
    from coordinator.rollouts import verdict_commands

    print(verdict_commands.submit(home, "reverse", lease, why))


@policy_app.command("ls")
@errors_reported
def policy_ls(
    home: Home = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> None:
    """List the versions and the edges that lead to them. Works while the coordinator runs."""
    import msgspec

    from coordinator.run import versions_report
    from coordinator.run.run_folder import RunFolder

    rows = versions_report.versions(RunFolder(home))
    print(msgspec.json.encode(rows).decode() if as_json else "\n".join(versions_report.lines(rows)))


@policy_app.command("verify")
@errors_reported
def policy_verify(home: Home = Path(".")) -> int:
    """Hash every payload and snapshot again. Exits with 81 if one has changed."""
    from coordinator.run import versions_report
    from coordinator.run.run_folder import RunFolder

    findings = versions_report.verify(RunFolder(home))
    bad = [one for one in findings if one.fault is not None]
    for one in bad:
        fix = "stop the coordinator and move this file away"
        print_error(PROGRAM, f"{one.path} (version {one.version} of era {one.era}): {one.fault}; {fix}")
    print(f"{len(findings)} files hashed again: {len(findings) - len(bad)} intact, {len(bad)} damaged")
    return Exit.TRUST if bad else Exit.OK


@policy_app.command("rollback")
@errors_reported
def policy_rollback(
    version: Annotated[
        int | None, typer.Argument(min=0, help="Its number.", show_default="the best by held-out results")
    ] = None,
    home: Home = Path("."),
    rate_factor: Annotated[
        float, typer.Option(min=0.000001, max=1000, help="Of the learning rate, relative to the present one.")
    ] = 1.0,
) -> None:
    """Publish a kept version again, as a newer one in a new era. Ends a pause of the guard."""
    from coordinator.run import operator_commands

    print(operator_commands.command(home, "rollback", version=version, factor=rate_factor)["said"])


@task_app.command("ls")
@errors_reported
def task_ls() -> None:
    """List the tasks of this build, those that need an extra, and the plug-ins."""
    from coordinator.run import task_trial

    print("\n".join(task_trial.list_families()))


@task_app.command("try")
@errors_reported
def task_try(
    name: Annotated[str, typer.Argument(help="As in run.task: NAME or NAME:ARGUMENT.", show_default=False)],
    split: Annotated[Literal["train", "heldout"], typer.Option(help="Which prompts.")] = "train",
    prompts: Annotated[int, typer.Option(min=1, max=1000, help="Number of prompts.")] = 3,
    answer: Annotated[list[str] | None, typer.Option(help="An answer to score, as often as needed.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Show the answers of a model: smollm2, or the path of a model folder.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Of another version.", show_default="the folder's")] = None,
    answers: Annotated[int, typer.Option(min=1, max=256, help="The model's answers to a prompt.")] = 4,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most sampled tokens of one.", show_default="128, or half of the context")
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Its most likely answer alone.")] = False,
    template: Annotated[Literal["plain", "chat"], typer.Option(help="As run.template.")] = "plain",
    thinking: Annotated[
        bool | None, typer.Option(help="As run.thinking.", show_default="not passed to the template")
    ] = None,
) -> None:
    """Show prompts of a task and scores: of its own answers and yours, or with --model of a model's."""
    from coordinator.run import model_trial, task_mix, task_trial

    name = task_mix.only(name)
    if model is not None and answer:
        raise LocalFault("--answer and --model are for two calls: leave out one of them")
    trial = model_trial.ModelTrial(split, prompts, answers, limit, greedy, template, thinking)
    if model is not None:
        model_trial.try_model(name, model, weights, trial, partial(print, flush=True))
        return
    if weights is not None or trial != model_trial.ModelTrial(split, prompts):
        raise LocalFault(
            "--weights, --answers, --limit, --greedy, --template and --thinking say how a model answers: add --model"
        )
    for part in task_trial.try_task(name, split, prompts, answer or []):
        print(part)


@task_app.command("measure")
@errors_reported
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
    from coordinator.run import poker_measure

    task, measured_model = poker_measure.poker_task(name), poker_measure.model_of(model, weights, template)
    policy = poker_measure.measured(task, measured_model, hands)
    if policy is not None:
        print(f"exploitability {policy.exploitability:.4f} chips per hand (nash_conv {policy.nash_conv:.4f})")
        print(f"probability of a legal move {policy.legal:.4f}, of which the policy is made")
    if number := play if play is not None else 200 * (policy is None):
        won = poker_measure.won(task, measured_model, number, limit)
        print(
            f"won {won.mean:+.3f} chips per hand from {task.opponent} in {number} hands "
            f"(95 % interval {won.low:+.3f} to {won.high:+.3f})"
        )


@app.command()
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

    from coordinator.redteam.command import play

    if not play(attack or [], quick=quick, as_json=as_json, home=home, console=Console(highlight=False)):
        raise SystemExit(1)


@app.command()
@errors_reported
def version() -> None:
    """Print the version of echo2 and of its protocol."""
    import importlib.metadata

    from protocol.numbers import SPOKEN

    try:
        release = importlib.metadata.version("echo2")
    except importlib.metadata.PackageNotFoundError:
        release = "from source, not installed"
    print(f"echo2 {release}, protocol {SPOKEN[0]} to {SPOKEN[1]}")


def _remark(home: Path, word: str, node: str, why: str) -> None:
    from coordinator.accounts import operator_remarks

    print(operator_remarks.submit_remark(home, word, node, why, unix_milliseconds()))


def _change(
    home: Path, role: str | None, request: Path | None, place: Path | None = None, since: int | None = None
) -> None:
    from coordinator.run import keys, keys_commands

    now, secret = unix_milliseconds(), keys.passphrase()
    lines = keys_commands.change(home, role, now=now, secret=secret, since=since, out=request, root_place=place)
    print("\n".join(lines))


def _adapter(rank: int | None, alpha: float | None, targets: str | None, base: str) -> "AdapterOrder | None":
    """Return the adapter that `init` is to make; None: none. Raises `LocalFault` for options that need --lora-rank."""
    from runtime.errors import LocalFault
    from weights.lora.adapter_folder import AdapterOrder

    if rank is None:
        if alpha is not None or targets is not None or base != "bfloat16":
            raise LocalFault("--lora-alpha, --lora-targets and --base-format describe an adapter: add --lora-rank")
        return None
    chosen = None if targets is None else [name for name in targets.split(",") if name]
    return AdapterOrder(rank, alpha if alpha is not None else 2.0 * rank, chosen, cast("BaseFormat", base))


def _flags(sets: list[str] | None, **sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings given on the command line, by section; options that were not given are left out."""
    from coordinator.config import from_assignments

    flags = from_assignments(sets or [])
    for section, values in sections.items():
        flags.setdefault(section, {}).update({key: value for key, value in values.items() if value is not None})
    return flags


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()


def _confirmed(config: "CoordinatorConfig") -> bool:
    print("These are signed, and cannot be changed later:")
    _print_signed(config)
    try:
        return typer.confirm("Make this run?", default=True)
    except typer.Abort:
        raise KeyboardInterrupt from None


def _print_signed(config: "CoordinatorConfig") -> None:
    from coordinator.config import SIGNED

    for key in (*SIGNED, "kind", "template", "thinking"):
        value = getattr(config.run, key)
        value = "not passed to the template" if value is None else value
        print(f"  {key:<14}{', '.join(value) if isinstance(value, tuple) else value}")


def _say_making(part: str) -> None:
    print(f"making {part}", flush=True)


def _print_made(run: "Run", about_root_keys: list[str]) -> None:
    from coordinator.run.https_identity import ports_are_chosen_at_start
    from coordinator.run.keys import PASSPHRASE_VARIABLE

    encrypted = "encrypted" if os.environ.get(PASSPHRASE_VARIABLE) else f"in the clear ({PASSPHRASE_VARIABLE} is unset)"
    joining = f"echo2-node join {run.invite()}"
    if ports_are_chosen_at_start(run.config):
        joining = (
            f"`echo2-coord invite --home {run.folder.path}` prints the invite while it runs (port 0: any free one)"
        )
    print("\nSigned, by --model where no option said otherwise:")
    _print_signed(run.config)
    print(
        f"\nThe run is in {run.folder.path}; its keys are {encrypted}.\n\n"
        f"Start it:         echo2-coord run --home {run.folder.path}\n"
        f"Volunteers join:  {joining}\n"
    )
    print("\n".join(about_root_keys))


if __name__ == "__main__":
    main()
