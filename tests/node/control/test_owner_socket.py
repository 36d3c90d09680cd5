"""The node's control socket: its permissions, bounds and errors."""

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
import tempfile
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from typer.testing import CliRunner

from echo2.node import cli
from echo2.node.control.owner_socket import ask_daemon
from echo2.node.errors import BadConfig, NoDaemonAnswers, RefusedByRun, TrustFailure, TryLater, own_code
from echo2.node.home import LEFT
from echo2.protocol.sealed_asks import BadAsk
from echo2.runtime.control_client import socket_path
from echo2.runtime.control_socket import ControlSocket
from echo2.runtime.errors import DiskFull
from echo2.runtime.exit_codes import Exit
from tests.support.mounts import mounted


async def test_the_control_socket_is_for_the_owner_alone_and_bounded(tmp_path: Path) -> None:
    async def echo(asked: dict[str, object]) -> dict[str, object]:
        if asked.get("fail"):
            raise ValueError("seconds must be a number above 0")
        return {"heard": asked.get("word")}

    path = socket_path(tmp_path)
    server = asyncio.ensure_future(ControlSocket(path, {"echo": echo}, logger="node", own_code=own_code).run())
    while not path.exists() or stat.S_IMODE(path.stat().st_mode) != 0o600:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    ask = lambda **asked: asyncio.to_thread(lambda: ask_daemon(tmp_path, **asked))  # noqa: E731
    assert await ask(command="echo", word="hello") == {"heard": "hello"}
    for wrong, said in (({"command": "rm"}, "no such command"), ({"command": "echo", "fail": True}, "above 0")):
        with pytest.raises(TryLater, match=said):
            await ask(**wrong)
    for bad in (b"not json\n", b"[]\n", b"[" * 60_000 + b"\n"):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(bad)
        assert not json.loads(await reader.readline())["ok"]
        writer.close()
        await writer.wait_closed()
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(b"x" * (1 << 18))
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    await anyio.lowlevel.checkpoint()
    server.cancel()
    with pytest.raises(asyncio.CancelledError):
        await server
    assert not path.exists()


async def test_a_verdict_is_shown_with_its_times_and_a_refusal_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    async def verdict(asked: dict[str, object]) -> dict[str, object]:
        if asked["ask"]:
            return {"refused": "This verdict cannot be appealed: the group was accepted."}
        answer = {"by": "appeal", "code": "ok", "reason": "", "at": 1_800_000_000_000}
        return {"lease": asked["lease"], "answers": [answer]}

    control = ControlSocket(socket_path(tmp_path), {"verdict": verdict}, logger="node", own_code=own_code)
    server = asyncio.ensure_future(control.run())
    while not socket_path(tmp_path).exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    said = lambda *words: asyncio.to_thread(CliRunner().invoke, cli.app, [*words, "--home", str(tmp_path)])  # noqa: E731
    shown, refused = await said("why", "--lease", "aa" * 16), await said("appeal", "aa" * 16)
    assert (shown.exit_code, "2027-01-15 08:00 UTC" in shown.stdout) == (Exit.OK, True)
    assert (refused.exit_code, refused.stderr) == (
        Exit.REFUSED,
        "echo2-node: This verdict cannot be appealed: the group was accepted.\n",
    )
    server.cancel()
    with pytest.raises(asyncio.CancelledError):
        await server


@pytest.mark.parametrize(
    ("error", "code"),
    {
        "a device that there is not": (BadConfig("this node has no device 7"), Exit.CONFIG),
        "an ask in another currency": (BadAsk("the run pays in EUR, not in USD"), Exit.CONFIG),
        "an account that the run does not take": (RefusedByRun("no such account"), Exit.REFUSED),
        "a false proof": (TrustFailure("the ledger's key signed two histories"), Exit.TRUST),
        "a disk that is full": (DiskFull("no room"), Exit.TEMPORARY),
        "a coordinator that does not answer": (ValueError("the coordinator does not answer"), Exit.TEMPORARY),
    }.values(),
    ids=lambda one: one.name if isinstance(one, Exit) else type(one).__name__,
)
async def test_a_command_that_the_node_refuses_ends_with_the_code_of_the_fault(
    tmp_path: Path, error: Exception, code: Exit
) -> None:
    """Before, each of them was worth another try, by its exit code."""

    async def fail(asked: dict[str, object]) -> dict[str, object]:
        raise error

    control = ControlSocket(socket_path(tmp_path), {"pause": fail}, logger="node", own_code=own_code)
    server = asyncio.ensure_future(control.run())
    while not socket_path(tmp_path).exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    words = ["pause", "--gpu", "7", "--home", str(tmp_path)]
    done = await asyncio.to_thread(CliRunner().invoke, cli.app, words)
    assert (done.exit_code, done.stderr) == (code, f"echo2-node: {error}\n")
    server.cancel()
    with pytest.raises(asyncio.CancelledError):
        await server


def test_a_home_that_is_deep_gets_a_short_socket_of_its_own(tmp_path: Path) -> None:
    deep, other = tmp_path / ("x" * 90), tmp_path / ("y" * 90)
    assert len(os.fsencode(socket_path(deep))) <= 100
    assert socket_path(deep) != socket_path(other)
    assert socket_path(deep) == socket_path(deep)


def test_where_temporary_files_lie_deep_the_socket_of_a_deep_home_lies_in_tmp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("z" * 90)))
    path = socket_path(tmp_path / ("x" * 90))
    assert len(os.fsencode(path)) <= 100
    assert path.parent.parent == Path("/tmp")


def test_a_command_without_a_daemon_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(NoDaemonAnswers, match="`echo2-node join INVITE`; no run was joined yet"):
        ask_daemon(tmp_path, command="status")
    (tmp_path / LEFT).touch()
    with pytest.raises(NoDaemonAnswers, match="the last run was left"):
        ask_daemon(tmp_path, command="status")
    (tmp_path / "invite").touch()
    with pytest.raises(NoDaemonAnswers, match="start one with `echo2-node run`"):
        ask_daemon(tmp_path, command="status")


def test_a_command_without_a_daemon_says_that_one_elsewhere_may_have_a_home_on_a_network_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "invite").touch()
    mounted(monkeypatch, tmp_path / "proc", ("server:/home", str(tmp_path), "nfs4"))
    with pytest.raises(NoDaemonAnswers) as refused:
        ask_daemon(tmp_path, command="status")
    assert str(refused.value) == (
        f"no node runs in {tmp_path} on this machine (a node on another one that has this folder takes commands there "
        "alone): start one with `echo2-node run`"
    )


def test_a_socket_that_another_machine_has_removed_is_one_of_no_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS a name that this machine still remembers then answers with ESTALE."""

    def stale(connection: socket.socket, path: str) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(socket.socket, "connect", stale)
    with pytest.raises(NoDaemonAnswers, match="no node runs in"):
        ask_daemon(tmp_path, command="status")
