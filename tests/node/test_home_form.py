"""A home that an earlier or later build of echo2 made is refused in one sentence, and loses no key and no receipt."""

import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.node import cli
from echo2.node.config import NodeConfig
from echo2.node.control.doctor_probes import examine
from echo2.node.durable_file import other_build
from echo2.node.errors import BadConfig
from echo2.node.home import run_folder
from echo2.node.home_form import SCRIPTS, check_form
from echo2.node.rollouts.outbox import Outbox
from echo2.p2p.discovery.invite import Invite
from echo2.p2p.identity import generate_key, load_key, public_bytes, write_key
from echo2.runtime import sqlite_form
from echo2.runtime.exit_codes import Exit
from echo2.weights.store import Store
from tests.support.paths import ROOT

INVITE = Invite(run=b"r" * 32, root_hash=bytes(32), addresses=["/ip4/127.0.0.1/tcp/1/p2p/x"])
KEY = generate_key()
FIRST_OUTBOX = """
CREATE TABLE IF NOT EXISTS submissions (
    lease BLOB PRIMARY KEY, state TEXT NOT NULL, hash BLOB NOT NULL, body BLOB, received BLOB, receipt BLOB,
    code TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '', confirmed INTEGER NOT NULL DEFAULT 0,
    made INTEGER NOT NULL, decided INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_state ON submissions (state, made);
CREATE INDEX IF NOT EXISTS by_confirmed ON submissions (confirmed) WHERE receipt IS NOT NULL;
"""
"""The outbox of commit 95a90862, the first one: without a mark."""
FIRST_LEDGER = """
CREATE TABLE IF NOT EXISTS heads (
    number INTEGER PRIMARY KEY, size INTEGER NOT NULL, root BLOB NOT NULL, sealed BLOB NOT NULL,
    root_serial INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS heads_by_size ON heads (size);
CREATE TABLE IF NOT EXISTS proofs (lease BLOB PRIMARY KEY, size INTEGER NOT NULL, proof BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS forks (one BLOB NOT NULL, other BLOB NOT NULL, reason TEXT NOT NULL);
"""
"""The proofs of commit 1701fc37."""
RECEIPT = b"a sealed receipt"


def killed(path: Path, script: str, *more: str) -> None:
    """Write an SQLite file as a build does that is killed: its last changes are in the log beside it alone."""
    with closing(sqlite3.connect(path.with_name("whole.sqlite"), isolation_level=None)) as file:
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA wal_autocheckpoint = 0")
        for statement in (*sqlite_form.statements(script), *more):
            file.execute(statement)
        for end in ("", "-wal"):
            shutil.copy(path.with_name(f"whole.sqlite{end}"), path.with_name(f"{path.name}{end}"))
    path.with_name("whole.sqlite").unlink()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The home of the first build, killed with a receipt in its log, and a store of this one."""
    home = tmp_path / "an old home"
    folder = run_folder(home, INVITE.run)
    (folder / "trust").mkdir(parents=True)
    (home / "invite").write_text(INVITE.to_text())
    write_key(home / "node.key", KEY)
    receipt = (
        f"INSERT INTO submissions VALUES (x'01', 'accepted', x'', NULL, NULL, x'{RECEIPT.hex()}', '', '', 1, 1, 2)"
    )
    killed(folder / "outbox.sqlite", FIRST_OUTBOX, receipt)
    killed(folder / "ledger.sqlite", FIRST_LEDGER)
    with Store(folder / "store"):
        pass
    return home


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, but for the indexes that SQLite makes for readers of a log."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("-shm")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def receipts_in(folder: Path) -> list[bytes]:
    """Read the receipts as the first build reads them."""
    with closing(sqlite3.connect(folder / "outbox.sqlite")) as file:
        return [bytes(row[0]) for row in file.execute("SELECT receipt FROM submissions")]


def test_all_files_of_another_build_are_named_at_once_and_stay_as_they_were(home: Path) -> None:
    folder = run_folder(home, INVITE.run)
    before = content(home)
    with pytest.raises(BadConfig) as refused:
        check_form(folder)
    assert str(refused.value) == (
        f"another build of echo2 made outbox.sqlite, ledger.sqlite in {folder}: go on with that build, or move this "
        f"aside (cd '{folder}' && mkdir old-1 && mv outbox.sqlite* ledger.sqlite* old-1) and start again; key and "
        "points stay, but `status` and `earnings` count anew, receipts are kept in old-1 for that build, and groups "
        "there without an answer are lost"
    )
    assert refused.value.exit == Exit.CONFIG
    assert content(home) == before


COMMANDS = {
    "receipts list": ["receipts", "list"],
    "receipts verify": ["receipts", "verify"],
    "leave --forget": ["leave", "--forget", "--yes"],
    "keys rotate": ["keys", "rotate", "--yes"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_each_command_that_needs_such_a_file_refuses_it_in_one_sentence(words: list[str], home: Path) -> None:
    before = content(run_folder(home, INVITE.run))
    done = CliRunner().invoke(cli.app, [*words, "--home", str(home)])
    assert done.exit_code == Exit.CONFIG
    (sentence,) = done.stderr.strip().splitlines()
    assert re.match("echo2-node: another build of echo2 made (outbox|ledger)\\.sqlite in ", sentence)
    assert content(run_folder(home, INVITE.run)) == before, "not even the log of an old file was folded into it"
    assert receipts_in(run_folder(home, INVITE.run)) == [RECEIPT]
    assert public_bytes(load_key(home / "node.key", None)) == public_bytes(KEY)


@pytest.mark.slow
def test_a_node_does_not_start_over_such_a_home(home: Path) -> None:
    before = content(run_folder(home, INVITE.run))
    argv = [sys.executable, "-m", "echo2.node.cli", "run", "--home", str(home), "--listen", "/ip4/127.0.0.1/tcp/0"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == Exit.CONFIG
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence.startswith("echo2-node: another build of echo2 made outbox.sqlite, ledger.sqlite in ")
    assert content(run_folder(home, INVITE.run)) == before


def test_after_what_the_sentence_says_the_node_goes_on_and_the_receipts_are_kept(home: Path) -> None:
    folder = run_folder(home, INVITE.run)
    (folder / "instance").write_bytes(bytes(16))
    with pytest.raises(BadConfig) as refused:
        check_form(folder)
    command = re.search(r"\((cd .*)\)", str(refused.value))
    assert command is not None
    subprocess.run(["bash", "-c", command[1]], check=True)
    check_form(folder)
    with closing(Outbox(folder / "outbox.sqlite", node=public_bytes(KEY), limit=4)) as outbox:
        assert outbox.rows() == []
    check_form(folder)
    assert receipts_in(folder / "old-1") == [RECEIPT]
    assert "mkdir old-2 && mv outbox.sqlite* old-2)" in other_build(folder, ["outbox.sqlite"]), "the next build's"
    assert (folder / "instance").exists(), "another one would wait until the killed daemon counts as gone"
    assert public_bytes(load_key(home / "node.key", None)) == public_bytes(KEY)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_file_of_a_later_build_is_one_of_another(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        sqlite_form.make(file, f"{SCRIPTS[name]}CREATE TABLE later (one INTEGER);")
    with pytest.raises(BadConfig, match=f"^another build of echo2 made {name} in "):
        check_form(tmp_path)


def test_a_damaged_file_is_the_matter_of_its_own_opening(tmp_path: Path) -> None:
    (tmp_path / "outbox.sqlite").write_bytes(b"x" * 5000)
    check_form(tmp_path)
    with pytest.raises(BadConfig, match=r"outbox\.sqlite cannot be read"):
        Outbox(tmp_path / "outbox.sqlite", node=bytes(32), limit=1)


@pytest.mark.slow
async def test_doctor_names_a_home_of_another_build(home: Path) -> None:
    config = NodeConfig(home=home, listen=("/ip4/127.0.0.1/tcp/0",), disk=0.001)
    rows = {row.check: row for row in await examine(config, INVITE, running=False)}
    row = rows["run's files"]
    assert (row.verdict, row.exit) == ("bad", Exit.CONFIG)
    assert row.remedy.startswith("another build of echo2 made outbox.sqlite, ledger.sqlite in ")
