"""The folder of a run with two nodes, and the clock of the commands that read it."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.command_line import command_options
from echo2.coordinator.database.run_folder import RunFolder
from echo2.protocol.authority import TaskReference
from echo2.protocol.requests import Hello
from tests.support.group_world import ALICE, BOB, World, group

HELLO = Hello(
    protocols=(1, 1), software="a test", name="alice\x1b[2J", engine="transformers/float32/cpu", device="a CPU",
    tasks=[TaskReference(name="reverse", version=1)], record=b"",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run in which alice made a group and was suspended, and bob only said hello."""
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    world = World(run_folder)
    assert RunFolder(run_folder).database == world.path
    world.group_service.registry.register(BOB, msgspec.structs.replace(HELLO, name="bob"), None, world.now - 1)
    world.group_service.registry.register(ALICE, HELLO, None, world.now)
    world.accepted(ALICE)
    for _ in range(3):
        world.refused(group(world.lease(ALICE), rollouts=[]), ALICE)
    world.close()
    return run_folder


@pytest.fixture
def at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock of the commands to ten seconds after the events."""
    monkeypatch.setattr(command_options, "now", lambda: 1_700_000_010_000)
