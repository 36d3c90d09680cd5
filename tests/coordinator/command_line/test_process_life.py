"""Signals end a coordinator after its `finally` blocks, with the right exit code."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from echo2.coordinator.command_line import process_life as main
from echo2.coordinator.run import setup
from echo2.runtime.errors import LocalFault
from tests.support.children import child
from tests.support.run_folders import NOW

DAEMON = """
import asyncio, sys, types
async def serve(run):
    try:
        print("up", flush=True)
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        print("drained", flush=True)
sys.modules["echo2.coordinator.command_line.serving"] = types.SimpleNamespace(serve=serve)
from echo2.coordinator import cli
from echo2.coordinator.command_line import command_options
command_options.now = lambda: {now}
anywhere = ["--set", "network.listen=/ip4/127.0.0.1/tcp/0", "--set", "https.listen=/ip4/127.0.0.1/tcp/0"]
sys.argv = ["echo2-coord", "run", "--home", {home!r}, "--port", "0", *anywhere]
cli.main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
@pytest.mark.slow
def test_a_signal_lets_the_daemon_run_its_finally_blocks(
    number: signal.Signals, code: int, home: Path, repository: Path
) -> None:
    program = DAEMON.format(now=NOW, home=str(home))
    with child(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=repository
    ) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("drained\n", code)
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_second_ctrl_c_waits_for_nothing(home: Path, repository: Path) -> None:
    busy = "import time, threading; threading.Thread(target=time.sleep, args=(600,)).start(); time.sleep(600)"
    program = DAEMON.replace('print("drained", flush=True)', f'print("drains", flush=True); {busy}')
    program = program.format(now=NOW, home=str(home))
    with child(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=repository
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for said in ("up\n", "drains\n"):
            assert process.stdout.readline() == said
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read().endswith("echo2-coord: interrupted twice: ended at once\n")


@pytest.mark.slow
def test_ctrl_c_stops_a_coordinator_that_a_script_started_in_the_background(home: Path, repository: Path) -> None:
    program = DAEMON.format(now=NOW, home=str(home))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited, as a shell sets it for a background job
    with child([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=repository) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        assert process.returncode == 130
        assert process.stdout.read() == "drained\n"


async def test_a_cancellation_without_a_signal_is_raised(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve_for_ever(run: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setitem(
        sys.modules, "echo2.coordinator.command_line.serving", types.SimpleNamespace(serve=serve_for_ever)
    )
    task = asyncio.create_task(main.serve_until_cancelled(setup.load_run(home, env={}, now=NOW)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("host", ["not an address", "192.0.2.1", "2001:db8::1"])
@pytest.mark.parametrize("setting", ["web.host", "network.listen", "https.listen"])
def test_a_host_that_is_no_address_names_the_setting_to_correct(setting: str, host: str) -> None:
    with pytest.raises(LocalFault, match=f"^{host} is no address of this machine.*: correct {setting}$"):
        main.check_port(host, 0, host_setting=setting, fix="choose another")
