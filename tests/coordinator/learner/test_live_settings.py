"""Settings change while a coordinator runs: all or none, from a step that is named, and written into the history."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks.memory_network.transport import MemoryNetwork
from echo2.coordinator.daemon import Coordinator
from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.messages import Batch, Open, Opened, Stepped
from echo2.coordinator.metrics import setting_changes
from echo2.coordinator.metrics.views import SettingChange
from echo2.coordinator.run import setup
from echo2.coordinator.settings import config, config_edits
from echo2.coordinator.settings.config import GuardKind
from echo2.coordinator.settings.rate_schedule import decay
from echo2.coordinator.training.model_processes import Models
from echo2.p2p.network import Network
from echo2.p2p.peer.peer import Peer
from echo2.runtime.errors import LocalFault
from echo2.runtime.units import unix_milliseconds
from echo2.weights.store import Store
from tests.support.clock import on_fake_clock
from tests.support.fake_coordinator import until
from tests.support.real_learner import Believer, coordinating, make_run
from tests.support.run_folders import NOW


def changes_of(coordinator: Coordinator) -> list[SettingChange]:
    """Return the changes, the oldest first."""
    return setting_changes.read_changes(coordinator.group_service.database, public=False)[::-1]


class NoLearner:
    """A learner that never opens."""

    async def open(self, order: Open) -> Opened:
        raise NotImplementedError

    async def step(self, batch: Batch) -> Stepped:
        raise NotImplementedError

    async def renew(self) -> None:
        """Keep it."""


async def test_a_coordinator_whose_learner_has_not_opened_takes_settings_for_its_first_step(home: Path) -> None:
    run = setup.load_run(home, now=NOW, env={}, flags={"run": {"steps": 9}})
    network = Network.of(Peer(MemoryNetwork(0).transport(run.peer_id), seed=0))
    with Store(home / "store") as store, Database.open(home / "run.sqlite") as database:
        models = Models(NoLearner(), [Believer()])
        coordinator = Coordinator(run, network, models, store=store, database=database, clock=lambda: NOW / 1000)
        coordinator.settings.start()
        said = await coordinator.settings.change(
            [
                "learner.learning_rate=0.5", "leases.per_node=7", "leases.newcomers=0.3", "leases.canaries=0.0",
                "run.refill=true", "run.evaluate_every=3", "run.stop_after=4", "guard.exams=2",
                "ledger.head_seconds=60", "store.rollout_bytes=500000", "run.batch_groups=12", "network.uplink=10.0",
                "run.steps=20", "web.port=1",
            ],
            ["run.heldout"],
        )  # fmt: skip
        first, *others = said
        assert first.endswith("it counts from the first step after the learner has opened")
        assert others[0] == "leases.per_node = 7, it was 3: it counts at once"
        assert "run.steps = 20, it was 9" in others
        assert "in force here is the value from command line" in others
        learning, service = coordinator.learning, coordinator.group_service
        assert (service.terms.per_node, service.terms.batch_groups, service.buffer.refill) == (7, 12, True)
        assert service.leases.terms is service.terms
        assert service.leases.window.batch == 12
        assert (learning.scoring.evaluate_every, learning.scoring.stop_after) == (3, 4)
        assert learning.training.last_step == 9
        assert coordinator.ledger_heads.every == 60_000
        assert run.config.store.rollout_bytes == 500_000
        changed = {one.key: (one.old, one.new, one.step) for one in changes_of(coordinator)}
        assert changed["learner.learning_rate"][1:] == ("0.5", None)
        assert {"run.steps", "web.port"}.isdisjoint(changed), "the one is overridden, the other waits for a start"
        learning.training.opened(1)
        assert {one.step for one in changes_of(coordinator)} == {1}
        with pytest.raises(LocalFault, match="did you mean"):
            await coordinator.settings.change(["leases.per_node=8", "leases.per_nod=8"], [])
        assert config.load(home / "coordinator.toml", env={}).leases.per_node == 7
        coordinator.history.close()


@pytest.mark.parametrize("hindrance", ["a flag", "a file that cannot be written"])
async def test_a_run_that_a_restart_would_go_on_with_ends_and_says_so(
    hindrance: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"run": {"steps": 9}} if hindrance == "a flag" else {}
    run = setup.load_run(home, now=NOW, env={}, flags=flags)
    network = Network.of(Peer(MemoryNetwork(0).transport(run.peer_id), seed=0))
    with Store(home / "store") as store, Database.open(home / "run.sqlite") as database:
        models = Models(NoLearner(), [Believer()])
        coordinator = Coordinator(run, network, models, store=store, database=database, clock=lambda: NOW / 1000)
        coordinator.settings.start()
        monkeypatch.setattr(coordinator.learning.training, "finish", lambda: 4)
        if not flags:
            monkeypatch.setattr(config_edits.Edit, "write", refuse_to_write)
        wanted = "run.steps is 9 there, from command line" if flags else "cannot write"
        with pytest.raises(LocalFault, match=f"the run ends with step 4, but a restart would go on: {wanted}"):
            coordinator.settings.finish()
        coordinator.history.close()


def refuse_to_write(edit: config_edits.Edit) -> None:
    raise LocalFault("cannot write coordinator.toml (Read-only file system): nothing is changed")


@pytest.mark.slow
@on_fake_clock
async def test_live_settings_count_from_the_step_that_is_named_and_others_from_the_next_start(
    tmp_path: Path, model_folder: Path
) -> None:
    run = make_run(tmp_path / "run", model_folder, learner={"warmup_steps": 0, "learning_rate": 1e-3})
    async with coordinating(run) as coordinator:
        change = coordinator.settings.change
        await until(lambda: coordinator.view_builder.build().step >= 2, 300)
        coordinator.learning.training.watch.stop("to look")
        await until(lambda: not coordinator.learning.training.is_stepping, 60)
        made = coordinator.view_builder.build().step
        said = await change(["learner.learning_rate=0.002", "run.batch_groups=3", "web.port=8425"], [])
        assert said == [
            f"learner.learning_rate = 0.002, it was 0.001: it counts from step {made + 1} once the run goes on",
            f"run.batch_groups = 3, it was 2: it counts from step {made + 1} once the run goes on",
            "web.port = 8425, it was 8420: it counts from the coordinator's next start",
        ]
        assert await change(["run.batch_groups=3"], []) == ["run.batch_groups = 3, as before"]
        coordinator.learning.training.watch.resume()
        await until(lambda: coordinator.view_builder.build().step >= made + 2, 300)
        state = coordinator.view_builder.build()
        rates = {point.step: point.metrics["learning_rate"] for point in state.steps}
        assert (rates[made], rates[made + 1]) == (1e-3, 2e-3)
        assert (state.batch_groups, state.learning_rate) == (3, "0.002")
        of_last = "SELECT count(*) FROM draws WHERE step = ?"
        assert coordinator.group_service.database.value(of_last, (made + 2,)) == 3
        changed = [(one.key, one.old, one.new, one.step) for one in changes_of(coordinator)]
        assert changed == [
            ("run.batch_groups", "2", "3", made + 1),
            ("learner.learning_rate", "0.001", "0.002", made + 1),
        ]
        assert {one.key for one in state.changes} == {"run.batch_groups", "learner.learning_rate"}
    async with coordinating(run) as coordinator:
        assert coordinator.learning.training.hyper.learning_rate == 0.002
        newest = changes_of(coordinator)[-1]
        assert (newest.key, newest.new) == ("web.port", "8425"), "a start notes what came into force with it"
        assert newest.step == coordinator.view_builder.build().step + 1
        assert "web.port" not in [one.key for one in coordinator.view_builder.build().changes]


@pytest.mark.slow
@on_fake_clock
async def test_a_running_coordinator_refuses_what_cannot_be_and_changes_none_of_it(
    tmp_path: Path, model_folder: Path
) -> None:
    run = make_run(tmp_path / "run", model_folder)
    wrong = {
        "run.batch_groups=60000": "has .* train prompts",
        "run.heldout=60000": "has .* heldout prompts",
        "run.limit=9": "is signed",
        "learner.learning_rte=1": "did you mean learner.learning_rate",
        "learner.schedule=linear": "needs schedule_steps",
        "run.publish_every=7": "at most 5",
    }
    async with coordinating(run) as coordinator:
        await until(lambda: coordinator.view_builder.build().step >= 1, 300)
        before = run.folder.config.read_bytes()
        for word, sentence in wrong.items():
            with pytest.raises(LocalFault, match=sentence):
                await coordinator.settings.change(["learner.learning_rate=0.01", word], [])
        assert run.folder.config.read_bytes() == before
        assert changes_of(coordinator) == []
        assert coordinator.learning.training.hyper.learning_rate != 0.01
        coordinator.learning.guarding.order(coordinator.publisher.latest.version)
        (said,) = await coordinator.settings.change(["learner.learning_rate=0.01"], [])
        assert said.endswith("it counts from the first step after the learner has opened")
        await until(lambda: coordinator.view_builder.build().era > 1, 300)
        (row,) = changes_of(coordinator)
        at = coordinator.view_builder.build().step
        assert row.step is not None
        assert row.step <= at + 1
        assert coordinator.learning.training.hyper.learning_rate == 0.01
        last = coordinator.settings.finish()
        assert changes_of(coordinator)[-1].key == "run.steps"
        await until(lambda: coordinator.view_builder.build().phase == "finished", 300)
        (said,) = await coordinator.settings.change(["learner.learning_rate=0.02"], [])
        assert said.endswith("it counts from the coordinator's next start: the run is finished")
        assert config.load(run.folder.config, env={}).run.steps == last


@pytest.mark.slow
@on_fake_clock
async def test_a_run_ends_where_held_out_results_rise_no_more(tmp_path: Path, model_folder: Path) -> None:
    run = make_run(tmp_path / "run", model_folder, evaluate_every=1, stop_after=3)
    async with coordinating(run) as coordinator:
        await until(lambda: coordinator.view_builder.build().phase == "finished", 600)
        state = coordinator.view_builder.build()
    best = max(one.sampled for one in state.evaluations)
    first_best = next(place for place, one in enumerate(state.evaluations) if one.sampled == best)
    assert len(state.evaluations) >= first_best + 4
    assert config.load(run.folder.config, env={}).run.steps == state.step, "a restart ends it too"


class RealRun:
    """A coordinator and a node as processes of their own, over loopback."""

    def __init__(self, home: Path, repository: Path) -> None:
        self.home = home
        self.env = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1", "ECHO2_PRIORITY": "normal"}
        self.processes: list[subprocess.Popen[bytes]] = []

    def command(self, *words: str, code: int = 0) -> str:
        argv = [sys.executable, "-m", "echo2.coordinator.cli", *words, "--home", str(self.home)]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, log: str, module: str, *words: str) -> "subprocess.Popen[bytes]":
        with (self.home.parent / log).open("ab") as output:
            argv = [sys.executable, "-m", module, *words]
            self.processes.append(subprocess.Popen(argv, env=self.env, stdout=output, stderr=subprocess.STDOUT))
        return self.processes[-1]

    def start_coordinator(self) -> "subprocess.Popen[bytes]":
        return self.start("coordinator.log", "echo2.coordinator.cli", "run", "--home", str(self.home))

    def state(self) -> dict[str, Any] | None:
        try:
            page = (self.home / "page").read_text().strip()
            with urllib.request.urlopen(f"{page}/api/v1/run", timeout=30) as answer:
                return json.load(answer)
        except OSError:
            return None

    def wait(self, holds: Callable[[dict[str, Any]], object], seconds: float = 240) -> dict[str, Any]:
        until_then = time.monotonic() + seconds
        while time.monotonic() < until_then:
            state = self.state()
            if state is not None and holds(state):
                return state
            time.sleep(0.3)
        logs = [path.read_text()[-3000:] for path in self.home.parent.glob("*.log")]
        raise AssertionError("\n".join([str(self.state())[:500], *logs]))


@contextmanager
def real_run(home: Path, repository: Path) -> Iterator[RealRun]:
    run = RealRun(home, repository)
    try:
        yield run
    finally:
        for process in run.processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_change_in_mid_run_survives_kill_9_before_and_after_it_with_the_same_versions(
    tmp_path: Path, model_folder: Path, repository: Path
) -> None:
    learner = {
        "learning_rate": 1e-3, "schedule": "cosine", "schedule_steps": 1000, "schedule_end": 0.0, "warmup_steps": 0,
        "checkpoint_share": 1e-9,
    }  # fmt: skip
    home = make_run(
        tmp_path / "run", model_folder, learner=learner, now=unix_milliseconds(), publish_every=2
    ).folder.path
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with real_run(home, repository) as run:
        assert "next start" in run.command(
            "config",
            "set",
            f"network.listen=/ip4/127.0.0.1/tcp/{port}",
            "network.mdns=false",
            "web.port=0",
            f"guard.warn_only={' '.join(get_args(GuardKind))}",
        )
        coordinator = run.start_coordinator()
        invite = run.wait(lambda state: state["invite"] and state["era"])["invite"]
        node_home = str(home.parent / "node")
        run.start("node.log", "echo2.node.cli", "join", invite, "--gpu", "cpu", "--home", node_home)
        run.wait(lambda state: state["step"] >= 3)
        said = run.command("config", "set", "learner.learning_rate=0.004")
        assert re.match(r"learner.learning_rate = 0.004, it was 0.001: it counts from step \d+\n", said), said
        coordinator.kill()  # most likely before the first step that has it
        coordinator.wait()
        coordinator = run.start_coordinator()
        first = run.wait(lambda state: state["changes"] and state["changes"][0]["step"] is not None and state["era"])
        run.wait(lambda state: state["step"] >= first["changes"][0]["step"] + 2)
        run.command("config", "set", "learner.learning_rate=0.002", "learner.weight_decay=0.01")
        second = run.wait(lambda state: state["step"] >= max(one["step"] for one in state["changes"]) + 1)
        published = {row["version"] for row in second["versions"]}
        os.kill(coordinator.pid, signal.SIGKILL)  # behind the first step that has it
        coordinator.wait()
        run.start_coordinator()
        last = run.wait(lambda state: state["step"] >= second["step"] + 2)
        assert last["era"] == first["era"], "no version was lost, and none came again with other weights"
        assert published <= {row["version"] for row in last["versions"]}
        assert "made again" in (tmp_path / "coordinator.log").read_text()
        check_rates(home, last)
        assert "learner.weight_decay = 0.01, it was 0.0, from step" in run.command("config", "diff")
        assert "changed  learner." in run.command("status")
        with urllib.request.urlopen((home / "page").read_text().strip(), timeout=30) as answer:
            assert "Settings changed" in answer.read().decode()
        report = tmp_path / "report.html"
        run.command("report", str(report))
        assert "learner.weight_decay = 0.01, it was 0.0" in report.read_text()
        assert "did you mean" in run.command("config", "set", "learner.learning_rat=1", code=78)
        assert "is signed" in run.command("config", "set", "run.limit=7", code=78)


def check_rates(home: Path, state: dict[str, Any]) -> None:
    """Check that each step had the rate that the history of the settings says."""
    learner = config.load(home / "coordinator.toml", env={}).learner
    with Database.read(home / "run.sqlite") as database, database.reading():
        changes = setting_changes.read_changes(database, public=True)[::-1]
    changed = [(one.step, float(one.new)) for one in changes if one.key == "learner.learning_rate"]
    assert [rate for _, rate in changed] == [0.004, 0.002]
    for point in state["steps"]:
        step = point["step"]
        peak = [1e-3, *(rate for first, rate in changed if first is not None and first <= step)][-1]
        assert point["metrics"]["learning_rate"] == pytest.approx(peak * decay(learner, step)), (step, changed)
