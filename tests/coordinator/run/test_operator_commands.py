"""Commands to the coordinator of a run folder: answers, refusals, and a folder without a coordinator."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from echo2.coordinator.run import operator_commands
from echo2.coordinator.settings import computing
from echo2.p2p.errors import Unreachable
from echo2.runtime.control_client import socket_path
from echo2.runtime.control_socket import ControlSocket
from echo2.runtime.errors import LocalFault
from echo2.runtime.settings import SettingsFault


def test_without_a_coordinator_the_message_names_the_folder_and_the_command(tmp_path: Path) -> None:
    with pytest.raises(
        Unreachable, match=f"no coordinator runs in {tmp_path}: start one with `echo2-coord run --home {tmp_path}`"
    ):
        operator_commands.command(tmp_path, "pause")


async def test_settings_that_the_running_coordinator_refuses_are_not_written(tmp_path: Path) -> None:
    settings = tmp_path / "coordinator.toml"
    settings.write_text("[run]\nsteps = 4\n")

    async def change(asked: dict[str, Any]) -> dict[str, Any]:
        assert (asked["assigned"], asked["removed"]) == (["run.heldout=9"], [])
        raise ValueError("run.heldout is 9, but the task has 8 heldout prompts")

    server = ControlSocket(socket_path(tmp_path), {"settings": change}, logger="coordinator")
    serving = asyncio.create_task(server.run())
    await server.listening.wait()
    try:
        with pytest.raises(LocalFault, match=r"run\.heldout is 9, but"):
            await asyncio.to_thread(operator_commands.change_settings, tmp_path, ["run.heldout=9"], [])
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert settings.read_text() == "[run]\nsteps = 4\n"


def test_settings_of_a_run_that_does_not_run_are_written(tmp_path: Path) -> None:
    settings = tmp_path / "coordinator.toml"
    settings.write_text("[run]\nsteps = 4\n")
    (said,) = operator_commands.change_settings(tmp_path, [], ["run.steps"])
    assert said == "run.steps = unset, it was 4: it counts from the coordinator's next start"
    assert settings.read_text() == "[run]\n"
    (said,) = operator_commands.change_settings(tmp_path, ["learner.learning_rate", "0.5"], [])
    assert said.startswith("learner.learning_rate = 0.5, it was ")


def test_a_device_that_this_machine_lacks_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "device_by_torch", lambda name: ("", "", f"no {name}"))
    settings = tmp_path / "coordinator.toml"
    settings.write_text("[run]\nsteps = 4\n")
    for asked, wanted in (
        ('scorer.devices=["cuda:1"]', r"scorer\.devices is cuda:1, which this machine cannot use \(no cuda:1\)"),
        ("learner.device=cuda:3", r"learner\.device is cuda:3, which this machine cannot use"),
        ('scorer.devices=["cudda"]', r"scorer\.devices: .*cudda"),
    ):
        with pytest.raises(SettingsFault, match=wanted):
            operator_commands.change_settings(tmp_path, [asked], [])
    assert settings.read_text() == "[run]\nsteps = 4\n"
    operator_commands.change_settings(tmp_path, ['scorer.devices=["cpu", "cpu"]'], [])
    operator_commands.change_settings(tmp_path, [], ["scorer.devices"])


async def test_an_answer_is_returned_and_a_refusal_is_raised_in_its_words(tmp_path: Path) -> None:
    async def remark(asked: dict[str, Any]) -> dict[str, Any]:
        if asked["node"] != "known":
            raise ValueError("no such node")
        return {"said": asked["node"]}

    server = ControlSocket(socket_path(tmp_path), {"remark": remark}, logger="coordinator")
    serving = asyncio.create_task(server.run())
    await server.listening.wait()
    try:
        answer = await asyncio.to_thread(operator_commands.command, tmp_path, "remark", node="known")
        with pytest.raises(LocalFault, match="no such node"):
            await asyncio.to_thread(operator_commands.command, tmp_path, "remark", node="other")
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert answer == {"said": "known"}
