"""A whole run as real processes on 127.0.0.1: what `echo2-coord run` and `echo2-node join` start, with logs in files.

Every process seen is remembered by pid and start time. So a test can assert that no child outlived its parent, and its
end can stop all of them, one by one.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import psutil

from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.learner.messages import WarmUp
from echo2.coordinator.metrics.views import NodeRow, RunState
from echo2.coordinator.run import setup
from echo2.coordinator.run.model_folder import TINY_MODEL
from echo2.coordinator.settings.config import GuardKind
from echo2.p2p.identity import load_key, peer_id, public_bytes
from tests.support.paths import ROOT

T = TypeVar("T")
PATIENCE = 240.0
"""Seconds that anything may take. On two cores that twelve others want a start of torch takes up to forty, and a
coordinator starts its scorer after its learner."""
ROLES = {
    "learner": "echo2.coordinator.learner",
    "scorer": "echo2.engines.process.host",
    "engine": "echo2.engines.process.host",
}
"""Child -> the module that its command line names."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}


def until(what: str, condition: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """Wait until `condition` is true, and return its value; it may fail to connect meanwhile."""
    ends = time.monotonic() + seconds
    while True:
        try:
            outcome = condition()
        except OSError:
            outcome = None
        if outcome:
            return outcome
        assert time.monotonic() < ends, f"waited {seconds:g} s in vain until {what}"
        time.sleep(0.05)


def make_template(
    folder: Path,
    run: Mapping[str, Any] | None = None,
    leases: Mapping[str, Any] | None = None,
    more: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Make a run folder to copy: the smallest model, twenty steps of warm-up, a learner step well below 1 s. `run`,
    `leases`: further settings of these sections. `more`: further sections."""
    flags: dict[str, dict[str, Any]] = {
        "run": {
            "name": "faults", "task": "reverse", "group_size": 4, "batch_groups": 2, "limit": 6, "heldout": 4,
            "evaluate_every": 100, "staleness": 64, **(run or {}),
        },
        "network": {"listen": ("/ip4/127.0.0.1/tcp/0",)},
        "https": {"listen": ("/ip4/127.0.0.1/tcp/0",)},
        # Nearly every version is in the journal alone: each start of the learner makes steps again.
        "learner": {"checkpoint_share": 1e-4},
        # A lease must outlive its node's way back: a killed node delivers once its engine has started again. It stays
        # open so long where the group was lost with the engine, and counts as the node's.
        "leases": {
            "minimum_seconds": 240.0, "maximum_seconds": 240.0, "per_node": 16, **(leases or {}),
        },
        "guard": {"warn_only": get_args(GuardKind)},  # such a small model learns nothing
        **{name: dict(section) for name, section in (more or {}).items()},
    }  # fmt: skip
    config = setup.settings_for(TINY_MODEL, flags, env={})
    warm_up = WarmUp(folder="", task="", task_version=0, steps=20, noise=0.3, batch=32, shape=_SHAPE)
    setup.init(folder, TINY_MODEL, config, now=time.time_ns() // 1_000_000, warm_up=warm_up)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Program:
    """One command of this project as a process. `log`: both of its outputs, over all of its starts."""

    def __init__(self, argv: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.argv, self.log, self.env = argv, log, env or {}
        self.within: list[str] = []
        """The command before it that runs it elsewhere: `ip netns exec NAME`."""
        self.popen: subprocess.Popen[bytes] | None = None
        self._seen: set[psutil.Process] = set()

    def start(self, *more: str, **options: Any) -> None:
        """Start it, with `more` arguments this time."""
        assert self.popen is None or self.popen.poll() is not None
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **self.env}
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [*self.within, sys.executable, "-m", *self.argv, *more],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True,
                preexec_fn=_die_with_the_tests, **options,
            )  # fmt: skip

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.popen.pid)

    @property
    def alive(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def children(self) -> list[psutil.Process]:
        """Return its living descendants, and remember them."""
        try:
            processes = self.process.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._seen.update(processes)
        return processes

    def child(self, role: str) -> psutil.Process:
        """Wait for the living child of this role, and return it."""
        return until(f"{self.log.stem} has a {role}", lambda: self._child(role))

    def _child(self, role: str) -> psutil.Process | None:
        for process in self.children():
            try:
                if ROLES[role] in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                    return process
            except psutil.NoSuchProcess:
                continue
        return None

    def send(self, number: signal.Signals) -> None:
        assert self.popen is not None
        self.children()
        self.popen.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL to it alone, and wait for it. Its descendants must end by themselves."""
        self.send(signal.SIGKILL)
        self.wait()

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait for its end, and return its exit code."""
        return self.popen.wait(seconds)

    def kill_children(self, *roles: str) -> None:
        """Send SIGKILL to the children of these roles; wait for those not there yet."""
        victims = [self.child(role) for role in roles]
        for victim in victims:
            victim.kill()
        until("the killed ones are gone", lambda: not any(map(_runs, victims)))
        for role in roles:
            self.child(role)

    def orphans(self) -> list[psutil.Process]:
        """Return the running descendants of earlier starts that do not belong to the present process."""
        mine = set(self.children()) if self.alive else set()
        return [process for process in self._seen - mine if _runs(process)]

    def end(self) -> None:
        """End every process, one by one, in any state (teardown)."""
        if self.popen is not None and self.alive:
            self.kill()
        for process in self._seen:
            if _runs(process):
                process.kill()

    def last_words(self) -> str:
        """Return the last line of its log."""
        return self.log.read_text(errors="replace").strip().splitlines()[-1]

    def lines(self) -> list[dict[str, Any]]:
        """Return the log lines that are JSON."""
        events = []
        for text_line in self.log.read_text(errors="replace").splitlines() if self.log.exists() else []:
            if text_line.startswith("{"):
                events.append(json.loads(text_line))
        return events


def _die_with_the_tests() -> None:
    """End this new process when the tests are killed (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Coordinator(Program):
    """A coordinator on a copy of the template."""

    def __init__(self, template: Path, folder: Path, disk: Path | None = None) -> None:
        """`disk`: folder of its home, if not `folder`, which has its log."""
        self.home = Path(shutil.copytree(template, (disk or folder) / "run"))
        self.web = free_port()
        super().__init__(
            ["echo2.coordinator.cli", "run", "--home", str(self.home), "--port", str(self.web)],
            folder / "coordinator.log",
        )

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.home)

    def state(self) -> RunState:
        """Return the run as the page shows it. Raises OSError while the page does not answer."""
        assert self.alive, f"the coordinator has ended: {self.last_words()}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.web}/api/v1/run", timeout=5) as answer:
            return msgspec.json.decode(answer.read(), type=RunState)

    def past(self, version: int) -> RunState:
        """Wait for a version above `version`, and return the run as the page shows it."""

        def newer() -> RunState | None:
            state = self.state()
            return state if state.version > version else None

        return until(f"version {version + 1} is out", newer)

    def invite(self) -> str:
        return until("the coordinator has an invite", lambda: self.state().invite or None)

    def row(self, node: "Volunteer") -> NodeRow:
        return next(row for row in self.state().nodes if row.id == node.peer_id)


class Volunteer(Program):
    """A node with a home of its own."""

    def __init__(
        self,
        folder: Path,
        name: str,
        env: dict[str, str] | None = None,
        *,
        disk: Path | None = None,
        via: str | None = None,
        gpu: str = "cpu",
        listen: str = "/ip4/127.0.0.1/tcp/0",
    ) -> None:
        """`listen`: where it listens; empty: where a node does by default."""
        self.home, self.name = (disk or folder) / name, name
        routes = [*(["--listen", listen] if listen else []), *(["--via", via] if via else [])]
        argv = [
            "echo2.node.cli",
            "join",
            "--gpu",
            gpu,
            "--priority",
            "normal",
            "--home",
            str(self.home),
            "--name",
            name,
            "--json-logs",
            "--log",
            "debug",
            *routes,
        ]
        super().__init__(argv, folder / f"{name}.log", env)

    @property
    def peer_id(self) -> str:
        return peer_id(public_bytes(load_key(self.home / "node.key", None)))

    @property
    def data(self) -> Path:
        """Return its folder of this run."""
        (folder,) = (self.home / "runs").iterdir()
        return folder

    def versions(self) -> list[tuple[int, int]]:
        """Return (era, version) in the order of loading, over all of its starts."""
        return [(event["era"], event["version"]) for event in self.lines() if event.get("event") == "version held"]

    def accepted(self) -> int:
        if not list(self.home.glob("runs/*/outbox.sqlite")):
            return 0
        query = "SELECT count(*) FROM submissions WHERE state = 'accepted'"
        with closing(sqlite3.connect(self.data / "outbox.sqlite", timeout=PATIENCE)) as outbox:
            made = outbox.execute("SELECT 1 FROM sqlite_master WHERE name = 'submissions'").fetchone()
            return int(outbox.execute(query).fetchone()[0]) if made else 0

    def ask(self, command: str) -> dict[str, Any]:
        """Run `echo2-node COMMAND --json` from outside, and return its answer."""
        argv = [sys.executable, "-m", "echo2.node.cli", command, "--json", "--home", str(self.home)]
        done = subprocess.run(argv, capture_output=True, timeout=PATIENCE, check=True, cwd=ROOT)
        return dict(json.loads(done.stdout))


class Run:
    """One coordinator and its volunteers. `disk`: the folder of the coordinator's home, if not `folder`."""

    def __init__(self, template: Path, folder: Path, disk: Path | None = None) -> None:
        self.folder = folder
        self.coordinator = Coordinator(template, folder, disk)
        self.volunteers: list[Volunteer] = []

    def volunteer(
        self,
        name: str,
        disk: Path | None = None,
        via: str | None = None,
        gpu: str = "cpu",
        env: dict[str, str] | None = None,
    ) -> Volunteer:
        """Start a new node. `via`: its only route. `gpu`: its devices. `env`: further variables."""
        volunteer = Volunteer(self.folder, name, env, disk=disk, via=via, gpu=gpu)
        self.volunteers.append(volunteer)
        volunteer.start(self.coordinator.invite())
        return volunteer

    def close(self) -> None:
        """End all in order."""
        for program in [*self.volunteers, self.coordinator]:
            program.end()


@contextmanager
def running(template: Path, folder: Path, *names: str, disk: Path | None = None) -> Iterator[Run]:
    """Run a coordinator and nodes; end them, whatever happened."""
    with closing(Run(template, folder, disk)) as run:
        run.coordinator.start()
        for name in names:
            run.volunteer(name)
        yield run
