"""A program that pays: what it is told, and that anything but a clear answer is `unknown`."""

import asyncio
import os
from pathlib import Path

import pytest

from echo2.coordinator.rails.command_rail import CommandRail
from echo2.coordinator.rails.rail import Quote, RailAnswer
from echo2.runtime.errors import LocalFault

KEY = "ab" * 16


def program(folder: Path, body: str) -> str:
    path = folder / "pay"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return str(path)


async def test_a_program_is_told_all_by_its_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO2_KEY_PASSPHRASE", "secret")
    kept = f'echo "$@" > {tmp_path}/args; cat > {tmp_path}/in; env > {tmp_path}/env; '
    body = kept + 'echo \'{"state":"done","amount":7}\''
    rail = CommandRail(program(tmp_path, body), "USD")
    assert await rail.send(KEY, "alice", 7) == RailAnswer("done", 7)
    assert (tmp_path / "args").read_text() == "send\n"
    assert (tmp_path / "in").read_text() == f'{{"key":"{KEY}","account":"alice","amount":7,"currency":"USD"}}\n'
    assert "secret" not in (tmp_path / "env").read_text()


async def test_a_quote(tmp_path: Path) -> None:
    assert await CommandRail(program(tmp_path, "echo '{\"fee\":3}'"), "USD").quote("alice", 7) == Quote(3)
    with pytest.raises(LocalFault, match="no quote"):
        await CommandRail(program(tmp_path, "echo '{\"fee\":0.5}'"), "USD").quote("alice", 7)


UNKNOWN = {
    "a bad status": 'echo \'{"state":"done","amount":7}\'; exit 3',
    "nothing": "true",
    "no JSON": "echo done",
    "a fraction": 'echo \'{"state":"done","amount":7.5}\'',
    "a text as the amount": 'echo \'{"state":"done","amount":"7"}\'',
    "a boolean as the amount": 'echo \'{"state":"done","amount":true}\'',
    "a huge amount": 'echo \'{"state":"done","amount":99999999999999999999}\'',
    "done without an amount": 'echo \'{"state":"done"}\'',
    "another key": 'echo \'{"state":"done","amount":7,"key":"x"}\'',
    "another state": 'echo \'{"state":"maybe"}\'',
    "1 MB": "head -c 1000000 /dev/zero",
    "no end": "sleep 60",
}


@pytest.mark.parametrize("body", UNKNOWN.values(), ids=UNKNOWN.keys())
async def test_anything_but_a_clear_answer_is_unknown(tmp_path: Path, body: str) -> None:
    rail = CommandRail(program(tmp_path, body), "USD", patience=0.5)
    answer = await rail.status(KEY)
    assert answer.word == "unknown"
    assert answer.why


async def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    body = f"sleep 60 & echo $! > {tmp_path}/child; wait"
    assert (await CommandRail(program(tmp_path, body), "USD", patience=0.5).cancel(KEY)).word == "unknown"
    child = int((tmp_path / "child").read_text())
    for _ in range(200):
        if not alive(child):
            return
        await asyncio.sleep(0.02)
    pytest.fail("the program's child is still there")


def alive(process: int) -> bool:
    """Tell whether a process is there, and no zombie."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_program_that_others_may_write_or_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalFault, match="absolute path"):
        CommandRail("pay", "USD")
    with pytest.raises(LocalFault, match="absolute path"):
        CommandRail(str(tmp_path / "missing"), "USD")
    path = Path(program(tmp_path, "true"))
    path.chmod(0o777)
    with pytest.raises(LocalFault, match="chmod go-w"):
        CommandRail(str(path), "USD")
