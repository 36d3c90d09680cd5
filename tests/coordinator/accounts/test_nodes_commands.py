"""The commands `echo2-coord nodes`: reports and remarks, with and without a running coordinator."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result
from typer.testing import CliRunner

from coordinator import cli
from coordinator.accounts import operator_remarks
from coordinator.accounts.ledger import Ledger
from coordinator.accounts.operator_remarks import MOST_WORDS
from coordinator.accounts.standing import FOREVER, Accounts, Rank
from coordinator.database import Database
from coordinator.operator_socket import OperatorSocket
from coordinator.run.run_folder import RunFolder
from coordinator.training.run_watch import Watch
from p2p.identity import peer_id
from protocol.authority import TaskReference
from protocol.requests import Hello
from runtime.exit_codes import Exit
from tests.support.group_world import ALICE, BOB, World, group

HELLO = Hello(
    protocols=(1, 1), software="a test", name="alice\x1b[2J", engine="transformers/float32/cpu", device="a CPU",
    tasks=[TaskReference(name="reverse", version=1)], record=b"",
)  # fmt: skip


def said(*words: object) -> Result:
    return CliRunner().invoke(cli.app, ["nodes", *(str(word) for word in words)])


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


@contextmanager
def running(home: Path) -> Iterator[None]:
    """Run a group service and its operator socket in a thread, as the daemon composes them."""
    there: list[Any] = []
    ready = threading.Event()

    async def serve() -> None:
        world = World(home)

        async def remark(word: str, peer: str, why: str) -> str:
            return operator_remarks.record_remark(world.group_service.accounts, word, peer, why, world.now)

        watch = Watch(world.group_service, lambda: world.now / 1000, lambda: None)
        commands = OperatorSocket(home, watch, remark=remark)
        task = asyncio.create_task(commands.run())
        there.extend([asyncio.get_running_loop(), task])
        await commands.server.listening.wait()
        ready.set()
        try:
            await task
        except asyncio.CancelledError:
            world.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield
    finally:
        there[0].call_soon_threadsafe(there[1].cancel)
        thread.join(60)


@pytest.fixture
def at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock of the commands to ten seconds after the events."""
    monkeypatch.setattr(cli, "unix_milliseconds", lambda: 1_700_000_010_000)


pytestmark = pytest.mark.usefixtures("at_the_time")


def test_nodes_are_listed_with_their_standing_the_one_seen_last_first(folder: Path) -> None:
    first, alice, bob = said("ls", "--home", folder).stdout.splitlines()
    assert first.split() == ["node", "accepted", "groups", "last", "seen", "name", "standing"]
    assert alice.startswith(peer_id(ALICE))
    assert "new, suspended until 2023-11-14 23:13 UTC (incomplete)" in alice
    assert "alice?[2J" in alice, "what a stranger calls itself does not reach the terminal as it is"
    assert bob.split()[0] == peer_id(BOB)
    assert bob.endswith("new")


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        (("--out", "suspended"), [ALICE]),
        (("--out", "banned"), []),
        (("--rank", "new"), [ALICE, BOB]),
        (("--rank", "known"), []),
        (("--most", "1"), [ALICE]),
        (("--most", "1", "--page", "2"), [BOB]),
        (("--most", "1", "--page", "3"), []),
    ],
)
def test_a_list_is_filtered_and_paged(words: tuple[str, ...], listed: list[bytes], folder: Path) -> None:
    rows = json.loads(said("ls", "--home", folder, "--json", *words).stdout)
    assert [row["node"] for row in rows] == [peer_id(node) for node in listed]


def test_one_node_is_shown_with_reasons_strikes_and_the_evidence_of_a_suspension(folder: Path) -> None:
    shown = said("show", peer_id(ALICE), "--home", folder).stdout
    with Database.read(folder / "run.sqlite") as database:
        evidence = database.value("SELECT hash FROM submissions ORDER BY at DESC LIMIT 1").hex()
    for text in ("new, suspended until 2023-11-14 23:13 UTC", "incomplete 3", "ok 1", evidence, "alice?[2J"):
        assert text in shown
    report = json.loads(said("show", peer_id(ALICE), "--home", folder, "--json").stdout)
    assert report["codes"] == {"incomplete": 3, "ok": 1}
    assert [one["code"] for one in report["last"]] == ["incomplete"] * 3 + ["ok"]
    assert report["strikes"] == []
    assert len(report["entries"]) == 1
    stranger = said("show", peer_id(bytes(32)), "--home", folder)
    assert (stranger.exit_code, "last seen    never" in stranger.stdout) == (0, True)


def standing_of(folder: Path, node: bytes) -> tuple[Rank, int | None]:
    with Database.read(folder / "run.sqlite") as database:
        account = Accounts(database, Ledger(database)).of(node, 1_700_000_010_000)
        return account.rank, account.suspended_until


def test_without_a_coordinator_a_remark_goes_into_the_ledger_at_once(folder: Path) -> None:
    assert said("vouch", peer_id(BOB), "--home", folder).stdout == f"{peer_id(BOB)} is known\n"
    assert said("vouch", peer_id(BOB), "--home", folder).stdout == f"{peer_id(BOB)} was vouched for before: known\n"
    banned = said("ban", peer_id(BOB), "--why", "spam", "--home", folder)
    assert banned.stdout == f"{peer_id(BOB)} is known, banned: spam\n"
    assert said("unban", peer_id(BOB), "--home", folder).stdout == f"{peer_id(BOB)} is known\n"
    assert "neither banned nor suspended" in said("unban", peer_id(BOB), "--home", folder).stdout
    assert said("note", peer_id(BOB), "a friend's machine", "--home", folder).exit_code == 0
    shown = said("show", peer_id(BOB), "--home", folder).stdout
    assert "noted: a friend's machine" in shown
    assert "known, vouched for" in shown
    with Database.read(folder / "run.sqlite") as database:
        kinds = [entry.kind for entry in Ledger(database).entries() if entry.kind != "node.suspended"]
        Ledger(database).verify()
    assert kinds[-4:] == ["node.vouched", "node.banned", "node.unbanned", "node.noted"]


def test_a_suspension_is_ended_by_hand(folder: Path) -> None:
    assert standing_of(folder, ALICE)[1] is not None
    assert said("unban", peer_id(ALICE), "--home", folder, "--why", "our fault").stdout == f"{peer_id(ALICE)} is new\n"
    assert standing_of(folder, ALICE) == ("new", None)


def test_a_running_coordinator_writes_the_remark_itself(folder: Path) -> None:
    with running(folder):
        done = said("ban", peer_id(BOB), "--why", "spam", "--home", folder)
        assert done.stdout == f"{peer_id(BOB)} is new, banned: spam\n", done.stderr
        assert standing_of(folder, BOB) == ("new", FOREVER)
        refused = said("ban", peer_id(BOB), "--why", " ", "--home", folder)
        assert (refused.exit_code, "say why" in refused.stderr) == (Exit.CONFIG, True)
        assert [row.split()[0] for row in said("ls", "--home", folder).stdout.splitlines()[1:]] == [
            peer_id(ALICE),
            peer_id(BOB),
        ]


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "a name": (("ban", "alice", "--why", "spam"), "name a node by its peer id; `echo2-coord nodes ls` shows them"),
    "a novel": (("note", peer_id(BOB), "x" * (MOST_WORDS + 1)), f"say it in {MOST_WORDS}"),
    "an empty note": (("note", peer_id(BOB), " "), "the note is empty"),
    "another's name to show": (("show", "bob"), "name a node by its peer id"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_is_reported_in_one_line_and_writes_nothing(what: str, folder: Path) -> None:
    with Database.read(folder / "run.sqlite") as database:
        before = Ledger(database).tip()
    words, sentence = WRONG[what]
    done = said(*words, "--home", folder)
    assert done.exit_code == Exit.CONFIG
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    with Database.read(folder / "run.sqlite") as database:
        assert Ledger(database).tip() == before


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    for words in (("ls",), ("vouch", peer_id(BOB))):
        done = said(*words, "--home", tmp_path)
        assert done.exit_code == Exit.CONFIG
        assert str(tmp_path / "run.sqlite") in done.stderr
    assert list(tmp_path.iterdir()) == []
