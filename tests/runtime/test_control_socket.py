"""The control socket of a daemon: bounds of time, and whose folder it lies in."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from echo2.runtime import control_client, control_socket
from echo2.runtime.control_client import NotYours, ask, socket_path
from echo2.runtime.control_socket import ControlSocket
from echo2.runtime.errors import LocalFault


@contextlib.asynccontextmanager
async def serving(home: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Serve the command `slow`, which takes several times the patience; yield one connection."""

    async def slow(asked: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(4 * control_socket.ANSWER_SECONDS)
        return {"done": asked["number"]}

    server = ControlSocket(socket_path(home), {"slow": slow}, logger="test")
    running = asyncio.create_task(server.run())
    await server.listening.wait()
    reader, writer = await asyncio.open_unix_connection(str(socket_path(home)))
    try:
        yield reader, writer
    finally:
        writer.close()
        running.cancel()
        await asyncio.wait([running])


async def test_a_command_that_takes_longer_than_the_patience_is_answered_and_so_is_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "ANSWER_SECONDS", 0.1)
    async with serving(tmp_path) as (reader, writer):
        for number in (1, 2):
            writer.write(json.dumps({"command": "slow", "number": number}).encode() + b"\n")
            assert json.loads(await reader.readline()) == {"ok": True, "done": number}


@pytest.mark.parametrize("sent", [b"", b'{"command": '], ids=["nothing", "half a line"])
async def test_a_connection_that_sends_no_whole_line_in_time_is_ended(
    sent: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "ANSWER_SECONDS", 0.1)
    async with serving(tmp_path) as (reader, writer):
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 30) == b""


@pytest.mark.parametrize(("depth", "fix"), [(1, "choose another --home"), (120, "a --home with a shorter path")])
async def test_a_folder_of_another_user_is_named_with_the_fix_of_its_place(
    depth: int, fix: str, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home with a long path has its socket elsewhere: only there does a shorter path help."""
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    path = socket_path(short_path / ("x" * depth))
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(LocalFault, match=f"{path.parent} belongs to another user: .*{fix}"):
        await ControlSocket(path, {}, logger="test").run()


def _fallback(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the socket's path for a home whose own path is too long, in a folder for temporary files of this test."""
    monkeypatch.setattr(control_client.tempfile, "gettempdir", lambda: str(short_path))
    path = socket_path(short_path / ("x" * 120))
    assert path.parent.parent == short_path
    return path


def _link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


FALSE_FOLDERS = {
    "a link to a folder of this user": _link,
    "a folder that others may enter": lambda folder: (folder.mkdir(), folder.chmod(0o711)),
    "a folder that others may write": lambda folder: (folder.mkdir(), folder.chmod(0o777)),
}


@pytest.mark.parametrize("false", FALSE_FOLDERS)
async def test_a_fallback_folder_that_is_not_this_users_alone_is_refused(
    false: str, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _fallback(short_path, monkeypatch)
    FALSE_FOLDERS[false](path.parent)
    with pytest.raises(LocalFault):
        await ControlSocket(path, {}, logger="test").run()
    assert not path.exists()


@pytest.mark.parametrize("false", FALSE_FOLDERS)
def test_a_command_is_told_to_no_socket_that_others_may_have_put_there(
    false: str, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While no daemon runs, another user of the machine could listen in the folder's place and answer every command."""
    path = _fallback(short_path, monkeypatch)
    FALSE_FOLDERS[false](path.parent)
    with socket.socket(socket.AF_UNIX) as another:
        another.bind(str(path))
        another.listen()
        with pytest.raises(NotYours):
            ask(short_path / ("x" * 120), command="status")
        another.setblocking(False)
        with pytest.raises(BlockingIOError):
            another.accept()


async def test_the_socket_is_its_owners_alone_from_its_first_moment_and_the_umask_stays(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _fallback(short_path, monkeypatch)
    seen, chmod = list[int](), os.chmod
    monkeypatch.setattr(os, "chmod", lambda *a, **k: seen.append(1) or chmod(*a, **k))
    before = os.umask(0)
    try:
        server = ControlSocket(path, {}, logger="test")
        running = asyncio.create_task(server.run())
        await server.listening.wait()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert seen == [], "no mode is changed afterwards"
        running.cancel()
        await asyncio.wait([running])
        assert os.umask(0) == 0
    finally:
        os.umask(before)
