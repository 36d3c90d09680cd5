"""Every command of `echo2-node` that prints, with a reader that went away, as `| head` does: no fault, no traceback."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from node.control.owner_socket import CommandServer, socket_path
from node.home import run_folder
from node.rollouts.outbox import Outbox
from p2p.identity import generate_key, public_bytes, write_key
from runtime.exit_codes import Exit
from tests.support.children import into_a_closed_pipe
from tests.support.fake_coordinator import FakeCoordinator

COMMAND = [sys.executable, "-m", "node.cli"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A node that has one group without an answer, and whose daemon answers on its socket."""
    home, key = tmp_path_factory.mktemp("home"), generate_key()
    invite = FakeCoordinator(tmp_path_factory.mktemp("coordinator")).invite()
    write_key(home / "node.key", key)
    (home / "invite").write_text(invite.to_text())
    folder = run_folder(home, invite.run)
    folder.mkdir(parents=True)
    with closing(Outbox(folder / "outbox.sqlite", node=public_bytes(key), limit=9)) as outbox:
        outbox.put(bytes(16), b"a submission", 1)

    async def answered(asked: dict[str, object]) -> dict[str, object]:
        return {"phase": "working"}

    loop = asyncio.new_event_loop()
    server = CommandServer(socket_path(home), dict.fromkeys(("status", "why", "pause"), answered))
    task = loop.create_task(server.run())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    while not socket_path(home).exists():
        pass
    yield home
    loop.call_soon_threadsafe(task.cancel)
    loop.call_soon_threadsafe(task.add_done_callback, lambda _: loop.stop())
    thread.join()
    loop.close()


@pytest.mark.parametrize(
    "words",
    ["--help", "status", "why --json", "pause", "receipts list", "receipts verify", "keys show", "config get", "doctor",
     "discover --seconds 0.1"],
)  # fmt: skip
def test_a_command_whose_reader_went_away_ends_in_silence(words: str, home: Path, repository: Path) -> None:
    argv = [*COMMAND, *words.split()]
    if words.split()[0] not in ("--help", "config", "doctor", "discover"):
        argv += ["--home", str(home)]
    assert into_a_closed_pipe(argv, cwd=repository) == (Exit.CLOSED_PIPE, "")


def test_a_log_that_nobody_reads_ends_no_node(repository: Path) -> None:
    program = (
        "from runtime.closed_pipe import exit_on_closed_pipe\n"
        "from runtime.logs import set_up_logging, to_stream\n"
        "import structlog, sys\n"
        "with exit_on_closed_pipe(141):\n"
        "    set_up_logging(to_stream())\n"
        "    for number in range(3): structlog.get_logger('node').info('group accepted', number=number)\n"
        "    raise SystemExit(7)\n"
    )
    argv = [sys.executable, "-c", program]
    assert into_a_closed_pipe(argv, errors_too=True, cwd=repository)[0] == 7
