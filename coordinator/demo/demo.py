"""`echo2-coord demo`: a whole run on this machine in a few minutes, over real sockets, with one process per daemon.

1. The demo uses a fresh folder, the loopback alone, and ports chosen by the system (port 0). It reads no file or
   setting of the user's. Only a failure or the option `keep` leaves the folder, and its path is printed; else it is
   removed, however the demo ends.
2. The demo reads the page's address from the run folder, and everything else from the run's public API, the invite
   included.
3. During the run one node is killed without warning and another joins late, unless `faults` is off; the screen reports
   both. No other process may crash. With `engines` neither happens: coordinator/demo/engine_nodes.py has the faults
   then, and says when the demo may end.
4. Nodes drain and exit with the run, or on one SIGINT. Every group gets its verdict; then the coordinator stops.
5. The exit code is 0 only if coordinator/demo/summary.py finds no shortcoming, and none is in the payments of a demo
   with `pay` (benchmarks/payments/pay_trial.py), which ends once it has paid.
6. Nodes that compute in 16 bits are of a class that is not exact. It is calibrated when the run is made, by the
   function that `echo2-coord init` calls, with the fewest tokens that a Calibration may have.
"""

import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec
import structlog
from rich.console import Console
from rich.text import Text

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.demo import engine_nodes, summary
from echo2.coordinator.demo.demo_payments import EPOCHS, PROVIDER, DemoPayments, MakePayments, load_payments
from echo2.coordinator.demo.demo_settings import (
    ASKS,
    NARROW_ROUTES,
    DemoOptions,
    DemoSettings,
    sections_of,
    settings_of,
)
from echo2.coordinator.demo.engine_nodes import EngineFaults
from echo2.coordinator.demo.interruption import ignore_signals, terminated_like_interrupted
from echo2.coordinator.demo.market_summary import PlayedMarket, market_lines, played_market
from echo2.coordinator.demo.processes import ProcessFault, ProcessGroup, ProcessorTimes
from echo2.coordinator.demo.screen import Screen, screen_for, working
from echo2.coordinator.metrics import status
from echo2.coordinator.metrics.views import RunState
from echo2.engines.registry import is_exact
from echo2.p2p.errors import Unreachable
from echo2.p2p.multiaddr import Route
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from echo2.runtime.figures import figure
from echo2.runtime.python_command import module_command
from echo2.runtime.units import unix_milliseconds

API_POLL_SECONDS: Final = 0.5
"""Seconds between two requests to the run's API."""
_START_SECONDS: Final = 60.0  # seconds until the coordinator's first answer
_SILENCE_SECONDS: Final = 20.0  # seconds that a running coordinator may leave requests unanswered
_DRAIN_SECONDS: Final = 60.0  # seconds for nodes to exit, and as many for the last verdicts
_BY_THEMSELVES: Final = 10.0  # seconds for nodes to learn that the run is finished, and exit
_COORDINATOR: Final = "coordinator"
_NAMES: Final = ("brave-otter", "quiet-heron", "lucky-newt", "swift-marten", "calm-bison", "keen-gecko")
_LATE_NODE: Final = "late-lynx"
_ROUTE_OPTIONS: Final[Mapping[Route, Sequence[str]]] = {
    "direct": ("--listen", "/ip4/127.0.0.1/tcp/0"),
    "relay": ("--listen", ""),
    "https": ("--via", "https"),
}
_ROUTE_NOTES: Final[Mapping[Route, str]] = {
    "relay": "{name} has no open port: other nodes reach it through the coordinator's relay",
    "https": "{name} connects over HTTPS only",
}


class DemoFault(Exception):
    """The demo cannot continue. `logs`: names of the processes whose logs explain it."""

    def __init__(self, message: str, logs: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.logs = tuple(logs)


@dataclass(frozen=True)
class Programs:
    """The programs of a demo: the real commands, or stand-ins in tests. `make(home, settings, seed)` makes the run
    folder. `node(invite, home, name, route)`: the route "relay" starts a node that no peer can dial, "https" one that
    connects over HTTPS only."""

    make: Callable[[Path, DemoSettings, int], None]
    coordinator: Callable[[Path], list[str]]
    node: Callable[[str, Path, str, Route], list[str]]


@dataclass(frozen=True)
class Played:
    """The end of a demo. `final`: the last state of the run, `seconds` after the nodes were started; None: the demo
    did not come so far."""

    code: int
    final: RunState | None = None
    seconds: float = 0.0


def real_programs() -> Programs:
    """Return the two commands of this installation, run by this interpreter."""
    return Programs(_make_run, _coordinator_argv, _node_argv)


def play(options: DemoOptions, programs: Programs | None = None, console: Console | None = None) -> Played:
    """Run the demo to its end. Raises `LocalFault` if the run cannot be made."""
    settings = settings_of(options)
    make_payments = load_payments() if settings.pay else None
    console = console or Console(highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="echo2-demo-"))
    logs = folder / "logs"
    logs.mkdir()
    (folder / "tmp").mkdir()
    processes = ProcessGroup(logs, environment(os.environ, folder))
    played, keep = Played(int(Exit.INTERNAL)), options.keep
    with terminated_like_interrupted():
        try:
            try:
                played = _demo(
                    options, settings, programs or real_programs(), processes, folder, console, make_payments
                )
                keep = keep or played.code != Exit.OK
            except (DemoFault, ProcessFault) as fault:
                keep = True
                _print_fault(console, processes, fault)
            except KeyboardInterrupt:
                played = Played(int(Exit.INTERRUPTED))
                console.print("interrupted: stopping all processes …")
        finally:
            with ignore_signals():
                processes.stop()
                if not keep:
                    shutil.rmtree(folder, ignore_errors=True)
    if keep:
        console.print(Text(f"The run, its keys and all logs are in {folder}"), soft_wrap=True)
    return played


def environment(inherited: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of every process: no setting of the user's, no model hub, one OpenMP thread that sleeps
    while it waits."""
    kept = {name: value for name, value in inherited.items() if not name.startswith("ECHO2_")}
    ours = {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(folder / "tmp"),
        "ECHO2_CONFIG": str(folder / "node.toml"),
    }
    return {**kept, **ours}


def _demo(
    options: DemoOptions,
    settings: DemoSettings,
    programs: Programs,
    processes: ProcessGroup,
    folder: Path,
    console: Console,
    make_payments: MakePayments | None,
) -> Played:
    began, trial = time.monotonic(), None
    if make_payments is not None:
        trial = make_payments(folder, processes.env)
        processes.start(PROVIDER, trial.provider_argv())
        settings = replace(settings, more=trial.sections())
    parts = f"making the run: {', '.join(_parts(options))}"
    with working(console, parts):
        console.print(Text(parts))
        programs.make(folder / "run", settings, options.seed)
        if trial is not None:
            trial.give_role(unix_milliseconds())
    console.print(f"made in {time.monotonic() - began:.0f} s")
    processes.start(_COORDINATOR, programs.coordinator(folder / "run"))
    screen = screen_for(console)
    demo_run = DemoRun(settings, programs, processes, folder, screen, faults=options.faults, trial=trial)
    try:
        final = demo_run.run()
    finally:
        screen.close()
    flaws: list[str] = []
    if settings.market:
        flaws = _print_market(folder / "run", final, demo_run, console)
    return Played(_verdict(final, demo_run, console, flaws), final, demo_run.seconds)


def _print_market(home: Path, final: RunState, demo_run: "DemoRun", console: Console) -> list[str]:
    """Print the market of a run whose coordinator has ended, and its payments; return what is wrong with these."""
    flaws, lines, trial = list[str](), [""], demo_run.trial
    played, currency = _market(home)
    lines += market_lines(played, {node.id: node.name for node in final.nodes}, currency)
    if trial is not None:
        trial.look_back(demo_run.ended_in_order())
        told, flaws = trial.judge(played.payments)
        lines += told
    for text_line in lines:
        console.print(Text(text_line), soft_wrap=True)
    return flaws


def _market(home: Path) -> tuple[PlayedMarket, str]:
    """Return the market of a run, from its ledger, and its currency."""
    from echo2.coordinator.accounts.ledger import Ledger
    from echo2.coordinator.database.database import Database
    from echo2.coordinator.run.setup import read_documents

    place = RunFolder(home)
    spec = read_documents(place)[3]
    with Database.read(place.database) as database:
        return played_market(spec.run, Ledger(database).entries()), spec.currency


def _parts(options: DemoOptions) -> list[str]:
    """Name what is made before the demo begins, for people."""
    parts = ["keys", f"the model {options.model}"]
    engine_class = f"transformers/{options.dtype}/cpu"
    return parts if is_exact(engine_class) else [*parts, f"a Calibration of {options.dtype}"]


def _verdict(final: RunState, demo_run: "DemoRun", console: Console, flaws: Sequence[str] = ()) -> int:
    settings, lines = demo_run.settings, ["", *summary.summary(final, demo_run.seconds, demo_run.busy)]
    if not settings.whole:
        lines += ["", *summary.curve(final)]
    missing = [*summary.shortcomings(final, settings), *flaws]
    lines += ["", *(f"FAILED    {one}" for one in missing)] if missing else ["", "The demo went well."]
    for text_line in lines:
        console.print(Text(text_line), soft_wrap=True)
    return int(Exit.INTERNAL) if missing else int(Exit.OK)


@dataclass
class DemoRun:
    """A demo from the coordinator's start to its end. `trial`: its payments; None: there are none. `seconds`: seconds
    since the nodes were started. `busy`: share of the processors' time in them."""

    settings: DemoSettings
    programs: Programs
    processes: ProcessGroup
    folder: Path
    screen: Screen
    faults: bool
    trial: DemoPayments | None = None
    url: str = ""
    seconds: float = 0.0
    busy: float = 0.0
    _nodes: list[str] = field(default_factory=list)
    _victim: str | None = None
    _answered: float = 0.0
    _engines: EngineFaults = field(init=False)

    def __post_init__(self) -> None:
        logs, pid = self.processes.logs, self.processes.pid
        self._engines = EngineFaults(
            self.settings.engines, self.faults, pid, lambda name: logs / f"{name}.log", self.screen.say
        )
        if self.trial is not None:
            self.trial.say = self.screen.say

    def run(self) -> RunState:
        """Run the demo and return the final state of the run. Raises `DemoFault`, `ProcessFault`."""
        state = self._wait_for(_START_SECONDS, lambda state: bool(state.invite), "the coordinator's invite")
        self.screen.say(f"the leaderboard is at {self.url}/")
        for name, route in zip(self._node_names(), self._routes, strict=True):
            if route != "direct":
                self.screen.say(_ROUTE_NOTES[route].format(name=name))
            self._join(name, state.invite, route)
        began, processors = time.monotonic(), ProcessorTimes.now()
        while not self._may_end(state) and self.seconds < self.settings.seconds:
            self.screen.show(state, self.seconds, self.url)
            time.sleep(API_POLL_SECONDS)
            state = self._poll() or state
            self.seconds, self.busy = time.monotonic() - began, processors.share_until(ProcessorTimes.now())
            self._act(state)
        if state.phase != "finished" and self.settings.whole:
            raise DemoFault(
                f"not finished within {figure(self.settings.seconds)} s: step {state.step} of {self.settings.steps}, "
                f"phase {state.phase}",
                [_COORDINATOR, *self._nodes[:1]],
            )
        if self.settings.engines and (waiting := self._engines.waiting(state.nodes)):
            raise DemoFault(f"not within {figure(self.settings.seconds)} s: the work of {', '.join(waiting)}", waiting)
        if self.trial is not None and not self.trial.done:
            raise DemoFault(f"not paid within {figure(self.settings.seconds)} s: wait longer with --seconds")
        return self._end(finished=state.phase == "finished")

    def _may_end(self, state: RunState) -> bool:
        engines_done = bool(self.settings.engines) and not self._engines.waiting(state.nodes)
        return state.phase == "finished" or engines_done or (self.trial is not None and self.trial.done)

    def ended_in_order(self) -> list[str]:
        """Return the names of the nodes that were not killed."""
        return [name for name in self._nodes if name != self._victim]

    def _node_names(self) -> list[str]:
        if self.settings.engines:
            return [engine_nodes.node_name(one) for one in self.settings.engines]
        return [_NAMES[place] if place < len(_NAMES) else f"node-{place + 1}" for place in range(self.settings.nodes)]

    @property
    def _routes(self) -> list[Route]:
        narrow = NARROW_ROUTES if self.settings.ways else ()
        plain: list[Route] = ["direct"] * (self.settings.nodes - len(narrow))
        return [*plain, *narrow]

    def _join(self, name: str, invite: str, route: Route = "direct") -> None:
        self._nodes.append(name)
        engines = [one for one in self.settings.engines if engine_nodes.node_name(one) == name]
        options = [option for one in engines for option in engine_nodes.node_options(one)]
        own = {"ECHO2_ASK": ASKS[(len(self._nodes) - 1) % len(ASKS)]} if self.settings.market else {}
        self.processes.start(name, [*self.programs.node(invite, self.folder / name, name, route), *options], own)

    def _act(self, state: RunState) -> None:
        """Kill one node and let another join, each once, at the settings' shares of the steps (rule 3)."""
        if self.settings.engines:
            self._engines.act(state.nodes)
            return
        if self.trial is not None and state.market is not None and not self.trial.done:
            last = state.market.last
            if last is not None and last.epoch >= EPOCHS:
                self.screen.say(f"epoch {last.epoch} has closed: the run pays out")
                self.trial.pay(state.nodes, [name for name in self._nodes if self.processes.alive(name)])
        share = state.step / self.settings.steps
        if not self.faults or state.phase != "learning":
            return
        if share >= self.settings.join_at and _LATE_NODE not in self._nodes:
            self.screen.say(f"step {state.step}: {_LATE_NODE} joins late")
            self._join(_LATE_NODE, state.invite)
        if share >= self.settings.kill_at and self._victim is None and len(self._nodes) > 1:
            self._victim = self._nodes[max(0, min(2, self._routes.count("direct")) - 1)]
            self.screen.say(f"step {state.step}: {self._victim} is killed (SIGKILL), without warning")
            self.processes.kill(self._victim)

    def _end(self, finished: bool) -> RunState:
        """End the nodes, wait for the last verdicts, and stop the coordinator; return the final state (rule 4)."""
        running = [name for name in self._nodes if self.processes.alive(name)]
        if finished:  # nodes learn of it, and exit
            running = self.processes.wait(running, _BY_THEMSELVES)
        if running:
            self.screen.say(f"stopping {', '.join(running)}: each drains first")
        for name in running:
            self.processes.tell(name, signal.SIGINT)
        for name in self.processes.wait(running, _DRAIN_SECONDS):
            raise ProcessFault(f"{name} did not end within {figure(_DRAIN_SECONDS)} s of Ctrl-C", [name])
        state = self._wait_for(_DRAIN_SECONDS, lambda state: state.undecided == 0, "the last verdicts")
        self.processes.check(may_end=self._nodes)
        self.processes.end(_COORDINATOR, signal.SIGTERM, _DRAIN_SECONDS)
        return state

    def _wait_for(self, seconds: float, good: Callable[[RunState], bool], what: str) -> RunState:
        """Return the first state for which `good` is true. `what`: its name in the message. Raises `DemoFault`."""
        self._answered = until = time.monotonic() + seconds
        while time.monotonic() < until:
            state = self._poll()
            if state is not None and good(state):
                return state
            time.sleep(API_POLL_SECONDS)
        raise DemoFault(f"{what} did not arrive within {figure(seconds)} s", [_COORDINATOR])

    def _poll(self) -> RunState | None:
        """Return the current state; None: no answer this time. Raises `ProcessFault`; `DemoFault` after
        `_SILENCE_SECONDS`."""
        state = self._ask()
        try:
            self._check(state)
        except ProcessFault:  # nodes exit with the run, which may have finished since
            state = self._ask()
            self._check(state)
        if time.monotonic() - self._answered > _SILENCE_SECONDS:
            raise DemoFault(f"the coordinator has not answered for {figure(_SILENCE_SECONDS)} s", [_COORDINATOR])
        return state

    def _ask(self) -> RunState | None:
        with suppress(Unreachable, FileNotFoundError):
            self.url = self.url or RunFolder(self.folder / "run").page.read_text().strip()
            state = status.decode(status.fetch(self.url))
            self._answered = max(self._answered, time.monotonic())
            return state
        return None

    def _check(self, state: RunState | None) -> None:
        ending = state is not None and state.phase in ("finishing", "finished")
        self.processes.check(may_end=self._nodes if ending else ())


def _make_run(home: Path, settings: DemoSettings, seed: int) -> None:
    """Make the run folder by the function that `echo2-coord init` calls. Raises `LocalFault`."""
    from echo2.coordinator.calibration import own_classes
    from echo2.coordinator.run import first_model, setup

    os.environ["TMPDIR"] = str(home.parent / "tmp")  # the learner process that makes the model inherits it
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # errors are raised
    warm_up = msgspec.structs.replace(first_model.default_warm_up(), seed=seed, **settings.warm_up)
    config = setup.settings_for(settings.model, sections_of(settings, seed), env={})
    run = setup.init(home, settings.model, config, now=unix_milliseconds(), warm_up=warm_up, adapter=settings.adapter)
    if settings.calibrate:
        for closed in own_classes.calibrate_own(run, unix_milliseconds(), lambda text_line: None):
            raise LocalFault(closed)


def _coordinator_argv(home: Path) -> list[str]:
    return module_command("echo2.coordinator.cli", "run", "--home", str(home), "--port", "0")


def _node_argv(invite: str, home: Path, name: str, route: Route) -> list[str]:
    chosen = ["--gpu", "cpu", "--priority", "normal", "--home", str(home), "--name", name, *_ROUTE_OPTIONS[route]]
    return module_command("echo2.node.cli", "join", invite, *chosen)


def _print_fault(console: Console, processes: ProcessGroup, fault: Exception) -> None:
    console.print(Text(f"FAILED    {fault}"), soft_wrap=True)
    for name in getattr(fault, "logs", getattr(fault, "names", ())):
        console.print(Text(f"\nthe last lines of {name}'s log:"))
        for text_line in processes.tail(name):
            console.print(Text(f"  {text_line}"), soft_wrap=True)
