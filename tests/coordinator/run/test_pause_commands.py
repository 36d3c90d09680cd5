"""`echo2-coord pause` and `resume`: only the owner of the run folder reaches a running coordinator."""

import asyncio
import errno
import socket
from pathlib import Path

import pytest
import structlog
from click.testing import Result
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.run import operator_commands
from echo2.coordinator.training.operator_socket import MOST_WHY, OperatorSocket
from echo2.coordinator.training.run_watch import Watch
from echo2.coordinator.web.site import BODIES
from echo2.runtime.control_client import socket_path
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from tests.support.commanded_run import commanded
from tests.support.group_world import World
from tests.support.operator_orders import orders


def said(*words: object) -> Result:
    return CliRunner().invoke(cli.app, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    return run_folder


def test_a_run_is_paused_and_resumed_by_its_operator(folder: Path) -> None:
    with commanded(folder) as watch:
        done = said("pause", "--home", folder, "--why", "moving house")
        assert (done.exit_code, "paused until" in done.output) == (0, True)
        pause = watch().pause
        assert (pause.kind, pause.why, pause.until) == ("operator", "moving house", None)
        assert watch().view().paused is not None
        assert "the run goes on" in said("resume", "--home", folder).output
        assert watch().pause is None
        assert "was not paused" in said("resume", "--home", folder).output
    assert not socket_path(folder).exists()


def test_paused_again_without_a_reason_it_keeps_the_one_that_was_given(folder: Path) -> None:
    with commanded(folder) as watch:
        for words, why in (((), "by its operator"), (("--why", "moving house"), "moving house"), ((), "moving house")):
            assert said("pause", "--home", folder, *words).exit_code == 0
            pause = watch().pause
            assert pause.why == why


async def test_a_file_system_without_sockets_disables_only_the_commands(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stubborn(socket.socket):
        def bind(self, address: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(socket, "socket", Stubborn)
    commands = OperatorSocket(folder, Watch(World(folder).group_service, lambda: 0.0, lambda: None), orders())
    with structlog.testing.capture_logs() as said:
        await commands.run()
    (event,) = said
    assert (event["event"], event["log_level"]) == ("commands cannot reach this daemon", "warning")
    assert "Operation not permitted" in event["reason"]


async def test_a_path_taken_by_another_file_disables_only_the_commands(folder: Path) -> None:
    (folder / "control.sock").mkdir()
    commands = OperatorSocket(folder, Watch(World(folder).group_service, lambda: 0.0, lambda: None), orders())
    with structlog.testing.capture_logs() as said:
        await asyncio.wait_for(commands.run(), 10)
    assert [event["event"] for event in said] == ["commands cannot reach this daemon"]
    assert (folder / "control.sock").is_dir()


def test_the_page_has_no_command(folder: Path) -> None:
    assert not [path for path in BODIES if "pause" in path or "resume" in path or "control" in path]


@pytest.mark.slow
def test_without_a_coordinator_the_commands_exit_unreachable(folder: Path) -> None:
    for name in ("pause", "resume"):
        done = said(name, "--home", folder)
        assert done.exit_code == Exit.UNREACHABLE
    with socket.socket(socket.AF_UNIX) as dead:  # left by a killed coordinator
        dead.bind(str(socket_path(folder)))
    assert said("pause", "--home", folder).exit_code == Exit.UNREACHABLE
    with commanded(folder):
        assert said("pause", "--home", folder).exit_code == 0


def test_an_overlong_reason_is_refused_and_does_not_pause(folder: Path) -> None:
    with commanded(folder) as watch:
        done = said("pause", "--home", folder, "--why", "x" * (MOST_WHY + 1))
        assert done.exit_code == Exit.CONFIG
        assert watch().pause is None


def test_a_reason_in_another_encoding_pauses_without_a_crash(folder: Path) -> None:
    """Pass a lone surrogate: Python makes it from a Latin-1 shell's byte, and neither JSON nor SQLite accepts it."""
    with commanded(folder) as watch:
        assert said("pause", "--home", folder, "--why", "zu hei\udcdf").exit_code == 0
        pause = watch().pause
        assert pause.why == "zu hei?"


def test_groups_without_a_reward_received_during_a_pause_do_not_extend_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    watch = Watch(world.group_service, lambda: world.now / 1000, lambda: None)
    for _ in range(5):  # 60 groups were leased when the task began to fail, and arrive one after the other
        world.group_service.recent_verdicts.missing["reverse"].extend([1.0] * 12)
        watch.look()
        world.now += 10_000
    pause = watch.pause
    assert pause.until == pause.since + 600_000
    world.now = pause.until
    watch.look()
    assert watch.pause is None
    world.group_service.recent_verdicts.missing["reverse"].extend([1.0] * 11)
    watch.look()
    assert watch.pause.until == world.now + 1_200_000, "the same trouble after the try"


def test_a_rollback_is_ordered_by_the_command_line(folder: Path) -> None:
    with commanded(folder):
        assert said("policy", "rollback", "--home", folder).output == "version None again at 1\n"
        done = said("policy", "rollback", 40, "--rate-factor", 0.5, "--home", folder)
        assert (done.exit_code, done.output) == (0, "version 40 again at 0.5\n")
        refused = said("policy", "rollback", 7, "--home", folder)
        assert refused.exit_code == Exit.CONFIG
        for facts in ({"version": "40"}, {"version": -1}, {"version": True}, {"factor": 0}, {"factor": "much"}):
            with pytest.raises(LocalFault, match="a rollback needs a version"):
                operator_commands.command(folder, "rollback", **facts)
    assert said("policy", "rollback", "--home", folder).exit_code == Exit.UNREACHABLE
