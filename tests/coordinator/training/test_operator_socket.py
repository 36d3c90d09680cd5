"""The operator's socket passes commands on, and refuses malformed ones with a sentence."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from echo2.coordinator.run.operator_commands import command
from echo2.coordinator.training.operator_socket import OperatorSocket
from echo2.coordinator.training.run_watch import Watch
from echo2.runtime.errors import LocalFault
from tests.support.group_world import World
from tests.support.operator_orders import orders


async def asked(socket: OperatorSocket, home: Path, name: str, **facts: Any) -> dict[str, Any]:
    """Send a command to the socket while it serves."""
    serving = asyncio.create_task(socket.run())
    await socket.listening.wait()
    try:
        return await asyncio.to_thread(command, home, name, **facts)
    finally:
        serving.cancel()
        await asyncio.wait([serving])


def socket_of(world: World, home: Path) -> OperatorSocket:
    async def renew() -> int:
        return 7

    async def remark(word: str, peer: str, why: str) -> str:
        if peer == "stranger":
            raise LocalFault("no such node")
        return f"{peer}: {word} ({why})"

    watch = Watch(world.group_service, lambda: world.now / 1000, lambda: None)
    return OperatorSocket(home, watch, orders(renew=renew, remark=remark))


async def test_commands_reach_the_coordinator(world: World, tmp_path: Path) -> None:
    assert await asked(socket_of(world, tmp_path), tmp_path, "keys") == {"serial": 7}
    facts = {"word": "ban", "node": "12D3", "why": "forged"}
    assert await asked(socket_of(world, tmp_path), tmp_path, "remark", **facts) == {"said": "12D3: ban (forged)"}
    assert await asked(socket_of(world, tmp_path), tmp_path, "pause", why="heat") == {"paused": True}
    assert world.group_service.paused
    assert await asked(socket_of(world, tmp_path), tmp_path, "resume") == {"paused": False, "was_paused": True}


@pytest.mark.parametrize(
    ("name", "facts", "sentence"),
    [
        ("pause", {"why": 3}, "a text of at most 300 characters"),
        ("remark", {"word": "ban", "node": "12D3"}, "a text for each of word, node, why"),
        ("remark", {"word": "ban", "node": "stranger", "why": ""}, "no such node"),
        ("settings", {}, "two lists of texts"),
        ("settings", {"assigned": [5]}, "two lists of texts"),
        ("settings", {"assigned": "run.steps=5"}, "two lists of texts"),
    ],
)
async def test_a_malformed_command_is_refused(
    name: str, facts: dict[str, Any], sentence: str, world: World, tmp_path: Path
) -> None:
    with pytest.raises(LocalFault, match=sentence):
        await asked(socket_of(world, tmp_path), tmp_path, name, **facts)
    assert not world.group_service.paused
