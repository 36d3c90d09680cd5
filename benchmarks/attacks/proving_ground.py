"""A run of this machine to attack: a new folder, a coordinator process, honest nodes, and a process of attackers.

1. Everything listens on the loopback, at ports that the system chooses. The folder is new, with keys of its own, and is
   removed at the end. No node on a network is told of it.
2. The model is the smallest one, on the task `reverse`: its engine and its checks are the product's. An operator's own
   settings replace the defaults here in every section but [run] and [learner]; of [run], staleness, the size of groups
   and batches, and the draw are his.
3. A run with a market has one of its own, whose epochs are short; nothing that it pays leaves the folder.
4. Every process ends with this one, or by `stop`. The folder of one that was killed goes when the next one begins.
"""

import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec
import psutil

from benchmarks.attacks import foreign_loopback
from benchmarks.attacks.attack_worker import ENGINE, AttackTried, Figures, Ready, Try
from benchmarks.attacks.engine_place import Order
from benchmarks.attacks.light_node import terms_of
from echo2.coordinator.demo.demo import environment
from echo2.coordinator.demo.parent_death import ending_with_parent
from echo2.coordinator.environments import work_folders
from echo2.coordinator.learner.messages import WarmUp
from echo2.coordinator.metrics import status
from echo2.coordinator.run import model_folder, setup
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.p2p.discovery.invite import Invite
from echo2.runtime.checkout import checkout_command
from echo2.runtime.errors import LocalFault
from echo2.runtime.python_command import module_command
from echo2.runtime.stand_ins import VARIABLE
from echo2.runtime.units import unix_milliseconds

A = TypeVar("A", bound=msgspec.Struct)
NODES: Final = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
"""Seconds per group of each honest node."""
FOLDERS: Final = "echo2-redteam-"
START: Final = 120.0
"""Seconds until the coordinator's first Head."""
END: Final = 10.0
"""Most seconds until killed processes have ended."""
LOW: Final = 10
"""Niceness of floods."""
_WORKER: Final = "benchmarks.attacks.attack_worker"
_SHAPE: Final = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
_OPERATORS: Final = ("staleness", "group_size", "batch_groups", "draw", "refill", "prompts")
_OURS: Final[dict[str, dict[str, Any]]] = {
    "run": {
        "name": "red team", "task": "reverse", "group_size": 8, "batch_groups": 4, "staleness": 4, "limit": 6,
        "heldout": 4, "evaluate_every": 1_000_000,
    },
    "leases": {"minimum_seconds": 5.0, "maximum_seconds": 10.0},
}  # fmt: skip
_LOOPBACK: Final[dict[str, dict[str, Any]]] = {
    "network": {"listen": ("/ip4/127.0.0.1/tcp/0",), "announce": (), "mdns": False},
    "https": {"listen": ("/ip4/127.0.0.1/tcp/0",), "announce": ()},
    "web": {"host": "127.0.0.1", "port": 0, "names": ()},
}

_MARKET: Final[dict[str, Any]] = {
    "enabled": True, "reserve": "1000", "budget": "100000000", "epoch_seconds": 4, "asks_seconds": 2,
    "least_need": 100_000, "newcomers": 1000, "owner_cap": 1000, "run_off_seconds": 4, "untrainable": 1000,
}  # fmt: skip
"""A market of short epochs that needs all honest nodes: what an attack takes from them is not hidden by standby."""


class Worker:
    """A process of honest nodes or attackers, which answers line by line."""

    def __init__(self, log: Path, env: dict[str, str], *, engine: bool = True) -> None:
        """`engine`: whether it loads the engine first."""
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                ending_with_parent(checkout_command(_WORKER, *[ENGINE] * engine)),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=env,
            )  # fmt: skip
        self._log = log

    def begin(self, order: Order) -> None:
        """Give the process its work."""
        self._send(msgspec.json.encode(order))

    def ready(self) -> None:
        """Wait until attackers have loaded what they need."""
        self._answered(Ready)

    def figures(self) -> Figures:
        """Return the figures of honest nodes."""
        return self._ask(b"{}", Figures)

    def attack(self, command: Try) -> AttackTried:
        """Try an attack; blocks until it has ended."""
        return self._ask(msgspec.json.encode(command), AttackTried)

    def stop(self) -> None:
        """End the process, and close its pipes."""
        self._process.kill()
        self._process.communicate()

    def _send(self, text_line: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(text_line + b"\n")
            self._process.stdin.flush()

    def _ask(self, text_line: bytes, answer: type[A]) -> A:
        self._send(text_line)
        return self._answered(answer)

    def _answered(self, answer: type[A]) -> A:
        assert self._process.stdout is not None
        answered = self._process.stdout.readline()
        if not answered:
            raise LocalFault(f"a process of the red team ended: {last_line(self._log) or 'no reason is known'}")
        return msgspec.json.decode(answered, type=answer)


class ProvingGround:
    """The run, while it lasts. Raises `LocalFault` where it cannot be made or started."""

    def __init__(self, config: CoordinatorConfig | None, *, market: bool = False, engines: bool = True) -> None:
        """`config`: the operator's own settings; None: the defaults here. `market`: whether the run pays by one.
        `engines`: whether the process of floods loads an engine before they begin."""
        self._market, self._engines = market, engines
        work_folders.sweep(FOLDERS)
        self._folder = work_folders.make_folder(FOLDERS)
        self._host: subprocess.Popen[bytes] | None = None
        (self._folder / "tmp").mkdir()
        self._env = environment(os.environ, self._folder)
        self._workers = {"honest": self._worker("honest")}
        try:
            self.run = self._make(config)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        try:
            self._start()
            # Now, while honest nodes begin: the coordinator's own processes have loaded their libraries.
            self._workers |= {
                "attackers": self._worker("attackers"),
                "flooders": self._worker("flooders", self._engines),
            }
            for name, worker in self._workers.items():
                worker.begin(self._order(name))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def honest(self) -> Worker:
        """The process of honest nodes."""
        return self._workers["honest"]

    @property
    def attackers(self) -> Worker:
        """The process of attacks that end by themselves."""
        return self._workers["attackers"]

    @property
    def flooders(self) -> Worker:
        """The process of attacks that last."""
        return self._workers["flooders"]

    def ready(self) -> None:
        """Wait until the attackers have loaded what they need: loading would slow honest nodes."""
        self.attackers.ready()
        self.flooders.ready()

    def accepted(self) -> dict[bytes, int]:
        """Return the number of accepted groups by key."""
        return self._counts("SELECT node, count(*) FROM verdicts WHERE verdict = 'accepted' GROUP BY node")

    def refused(self) -> dict[bytes, int]:
        """Return the number of refused groups by key."""
        return self._counts("SELECT node, count(*) FROM verdicts WHERE verdict = 'refused' GROUP BY node")

    def cpu(self) -> float:
        """Return the CPU seconds so far of the coordinator and its model processes."""
        assert self._host is not None
        with suppress(psutil.NoSuchProcess):
            main = psutil.Process(self._host.pid)
            times = [one.cpu_times() for one in [main, *main.children(recursive=True)]]
            return sum(one.user + one.system for one in times)
        raise LocalFault(f"the coordinator ended: {self._last_words()}")

    def stop(self) -> None:
        """End all processes, and remove the folder."""
        for worker in self._workers.values():
            worker.stop()
        if self._host is not None:
            _kill(self._host)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _worker(self, name: str, engine: bool = True) -> Worker:
        return Worker(self._folder / f"{name}.log", self._env, engine=engine)

    def _make(self, config: CoordinatorConfig | None) -> setup.Run:
        flags: dict[str, dict[str, Any]] = {name: dict(values) for name, values in _OURS.items()}
        if config is not None:
            own = config.model_dump()
            flags = {name: own[name] for name in own if name not in ("run", "learner")}
            flags["run"] = {**_OURS["run"], **{name: own["run"][name] for name in _OPERATORS}}
        flags["market"] = _MARKET if self._market else {"enabled": False}
        flags["payout"] = {"rail": "csv" if self._market else "points"}
        for name, values in _LOOPBACK.items():
            known = CoordinatorConfig.model_fields[name].annotation.model_fields  # type: ignore[union-attr]
            flags.setdefault(name, {}).update({key: value for key, value in values.items() if key in known})
        settings = setup.settings_for(model_folder.TINY_MODEL, flags, env={})
        warm_up = WarmUp(folder="", task="", task_version=0, steps=20, noise=0.3, batch=32, shape=_SHAPE)
        return setup.init(
            self._folder / "run", model_folder.TINY_MODEL, settings, now=unix_milliseconds(), warm_up=warm_up
        )

    def _start(self) -> None:
        place = self.run.folder
        log = (self._folder / "coordinator.log").open("ab")
        with log:
            self._host = subprocess.Popen(
                ending_with_parent(module_command("echo2.coordinator.cli", "run", "--home", str(place.path))),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**self._env, VARIABLE: f"subnets={foreign_loopback.MODULE}"},
            )  # fmt: skip
        until = time.monotonic() + START
        while not ((place.path / "head").exists() and place.page.exists()):
            if self._host.poll() is not None or time.monotonic() > until:
                raise LocalFault(f"the coordinator did not start: {self._last_words()}")
            time.sleep(0.05)

    def _order(self, name: str) -> Order:
        place = self.run.folder
        own = place.store / f"of-{name}"  # on one file system with the snapshots, so that they can be linked
        own.mkdir()
        page = place.page.read_text().strip().rstrip("/")
        invite = status.invite_of_the_running(place, self.run.config.web, self.run.runspec.run)
        ((era, version, root),) = self._rows("SELECT era, version, root FROM versions ORDER BY version DESC LIMIT 1")
        addresses = Invite.from_text(invite).addresses
        return Order(
            terms=terms_of(self.run, version, root, self.run.runspec.limit, era),
            addresses=[one for one in addresses if "/https" not in one],
            https=[one for one in addresses if "/https" in one],
            page=int(page.rpartition(":")[2]),
            database=str(place.database),
            invite=invite,
            model=str(place.model),
            snapshots=str(place.store / "snapshots"),
            own=str(own),
            eos=self.run.runspec.eos,
            other_ends=list(self.run.runspec.other_ends),
            temperature=self.run.runspec.temperature,
            nodes=list(NODES) if name == "honest" else [],
            niceness=LOW if name == "flooders" else 0,
            market=self._market,
        )

    def _counts(self, query: str) -> dict[bytes, int]:
        return {bytes(node): int(count) for node, count in self._rows(query)}

    def _rows(self, query: str) -> Sequence[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self.run.folder.database}?mode=ro", uri=True, timeout=10.0)) as reader:
            return reader.execute(query).fetchall()

    def _last_words(self) -> str:
        return last_line(self._folder / "coordinator.log") or "it said nothing"


def _kill(host: subprocess.Popen[bytes]) -> None:
    """End a coordinator with its model processes at once: its run is removed, so nothing has to be written."""
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(host.pid).children(recursive=True)
        host.kill()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        until = time.monotonic() + END
        while any(map(_runs, children)) and time.monotonic() < until:
            time.sleep(0.02)
    host.wait()


def _runs(process: psutil.Process) -> bool:
    """Tell whether a process runs: one that was killed stays listed until its parent asks for its status."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def last_line(log: Path) -> str:
    """Return the last line of a log that says something, without the frame that a group of errors is printed in."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return next((told for one in reversed(lines) if (told := one.strip(" |+-"))), "")
