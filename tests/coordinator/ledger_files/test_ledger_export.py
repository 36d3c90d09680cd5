"""The ledger exported and verified: the same entries, no key needed, and every change found."""

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.command_line.exit_table import own_code
from echo2.coordinator.command_line.ledger_app import ledger_app
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.ledger_files import ledger_export
from echo2.coordinator.ledger_files.ledger_export import export
from echo2.coordinator.run import keys_commands
from echo2.coordinator.run.setup import Run
from echo2.ledger import export_files, ledger_audit
from echo2.ledger.ledger_audit import audit, lines
from echo2.ledger.ledger_entries import ESCROW, Tampered, transfer
from echo2.node.trust.ledger_witness import opened_in_order
from echo2.protocol.authority import Unproven
from echo2.protocol.restored_logs import LogChain
from echo2.protocol.root_chain import Untrusted, root_hash
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from tests.support.run_folders import NOW, load, make_run, write_model
from tests.support.worked_ledger import ALICE, Fact, work


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run with 12 entries, of which two heads cover 10."""
    folder = tmp_path_factory.mktemp("run")
    made = make_run(folder / "run", write_model(folder / "model"))
    work(made, 0, 4, NOW)
    work(made, 4, 5, NOW + 1)
    work(made, 9, 2)
    return made


@pytest.fixture
def exported(run: Run, tmp_path: Path) -> Path:
    export(run.folder, tmp_path / "export")
    return tmp_path / "export"


def test_an_export_is_verified_with_its_own_files_alone(run: Run, exported: Path, tmp_path: Path) -> None:
    away = tmp_path / "elsewhere"
    shutil.copytree(exported, away)
    audited = audit(away)
    assert (audited.run, audited.first_root) == (run.id, root_hash(run.roots[0]))
    assert (audited.entries, audited.heads, audited.covered) == (10, 2, 10)
    assert audited.balances[ALICE] == 90
    assert "0.090 RE by 1 node" in lines(audited)[-1]


@pytest.mark.parametrize("command", ["verify", "replay"])
def test_a_stranger_needs_no_engine_no_database_and_no_server_for_an_export(command: str, exported: Path) -> None:
    heavy = ["aiohttp", "numpy", "sqlite3", "torch"]
    heavy += [f"echo2.{part}" for part in ("engines", "tasks", "weights", "_libp2p", "coordinator.database")]
    code = (
        "import atexit, sys; from echo2.coordinator import cli\n"
        f"sys.argv = ['echo2-coord', 'ledger', {command!r}, {str(exported)!r}]\n"
        f"atexit.register(lambda: print('loaded:', [name for name in {heavy} if name in sys.modules]))\n"
        "cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (0 if command == "verify" else Exit.TRUST), "its facts are no facts of a run"
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_entries_without_a_head_are_exported_only_on_request(run: Run, tmp_path: Path) -> None:
    assert export(run.folder, tmp_path / "all", unsigned=True).entries == 12
    audited = audit(tmp_path / "all")
    assert (audited.entries, audited.covered) == (12, 10)
    assert "2 entries newer" in lines(audited)[3]


def test_an_export_is_continued_and_whole_files_are_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_export, "PER_FILE", 4)
    run = make_run(tmp_path / "run", write_model(tmp_path / "model"))
    work(run, 0, 9, NOW)
    folder = tmp_path / "export"
    export(run.folder, folder)
    names = ["0000000001", "0000000005", "0000000009"]
    assert [path.name for path in export_files.entry_files(folder)] == names
    first = (folder / "entries" / names[0]).stat().st_mtime_ns
    work(run, 9, 9, NOW + 1)
    assert export(run.folder, folder).entries == 19
    assert (folder / "entries" / names[0]).stat().st_mtime_ns == first
    assert audit(folder).entries == 19


def test_the_same_entries_give_the_same_files_at_another_time(run: Run, exported: Path, tmp_path: Path) -> None:
    export(run.folder, tmp_path / "again")
    (first,), (second,) = export_files.entry_files(exported), export_files.entry_files(tmp_path / "again")
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[4:8] == bytes(4), "a gzip file names no time"


def test_a_file_of_entries_is_one_gzip_of_limited_size(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = export_files.entry_files(exported)
    good = path.read_bytes()
    for packed in (good[:-1], good[:-9], good + b"x", good + good, gzip.compress(gzip.decompress(good) + b"x"), b""):
        path.write_bytes(packed)
        with pytest.raises(Tampered, match="entry 1"):
            audit(exported)
    path.write_bytes(good)
    audit(exported)
    monkeypatch.setattr(ledger_audit, "MOST_FILE", len(gzip.decompress(good)) - 1)
    with pytest.raises(Tampered, match="more than one member, or more than"):
        audit(exported)


@pytest.mark.parametrize("each", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_every_changed_byte_of_an_export_is_found(exported: Path, each: int) -> None:
    files = [path for path in exported.rglob("*") if path.is_file()]
    assert len(files) == 5
    for path in files:
        good = path.read_bytes()
        for position in range(0, len(good), each):
            path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
            with pytest.raises((Tampered, Untrusted)) as caught:
                audit(exported)
            assert own_code(caught.value) is Exit.TRUST
        path.write_bytes(good)
    audit(exported)


CHANGES = {
    "dropped": (lambda rows: rows[:5] + rows[6:], 6),
    "doubled": (lambda rows: rows[:5] + rows[4:], 6),
    "swapped": (lambda rows: [*rows[:4], rows[5], rows[4], *rows[6:]], 5),
    "cut off at the end": (lambda rows: rows[:-1], 10),
}


@pytest.mark.parametrize("how", CHANGES)
def test_an_entry_that_was_moved_is_named_by_its_number(exported: Path, how: str) -> None:
    change, number = CHANGES[how]
    (path,) = export_files.entry_files(exported)
    rows = msgspec.msgpack.decode(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(msgspec.msgpack.encode(change(rows))))
    with pytest.raises(Tampered) as caught:
        audit(exported)
    assert caught.value.seq == number
    assert str(number) in str(caught.value)


def test_heads_of_a_revoked_key_count_once_a_later_head_names_them(tmp_path: Path) -> None:
    made = make_run(tmp_path / "run", write_model(tmp_path / "model"))
    work(made, 0, 4, NOW)
    work(made, 4, 5, NOW + 1)
    keys_commands.change(tmp_path / "run", "ledger", now=NOW + 10, secret=None, since=NOW + 5)
    export(made.folder, tmp_path / "export")
    with pytest.raises(Untrusted, match=r"LedgerHead 2: .* was revoked, and no later head names it: export again"):
        audit(tmp_path / "export")
    work(load(tmp_path / "run"), 9, 2, NOW + 20)
    export(made.folder, tmp_path / "export")
    assert audit(tmp_path / "export").heads == 3
    heads = msgspec.msgpack.decode((tmp_path / "export/heads").read_bytes())
    chain = load(tmp_path / "run").chain
    assert [one.head.number for one in opened_in_order(heads, chain, LogChain(made.id))] == [1, 2, 3]
    with pytest.raises(Unproven):
        opened_in_order(heads[:2], chain, LogChain(made.id))
    with pytest.raises(Unproven):
        opened_in_order([heads[0], heads[2]], chain, LogChain(made.id))


def test_a_history_that_was_rewritten_with_right_hashes_is_not_that_of_its_heads(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(run.folder.path, folder)
    with Database.open(RunFolder(folder).database) as database:
        stored = database.all("SELECT * FROM ledger_heads")
    RunFolder(folder).database.unlink()
    with Database.open(RunFolder(folder).database) as database:
        ledger = Ledger(database)
        ledger.issue_points(NOW, 1_000)
        for number in range(9):
            ledger.append(NOW + number, "work", f"work:{number}", Fact(number), transfer(ESCROW, ALICE, 11))
        for row in stored:
            database.do("INSERT INTO ledger_heads VALUES (?, ?, ?, ?, ?)", row)
    export(RunFolder(folder), tmp_path / "export")
    with pytest.raises(Tampered, match="LedgerHead 1"):
        audit(tmp_path / "export")


def test_a_folder_of_something_else_is_left_as_it_is(run: Run, exported: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", write_model(tmp_path / "model"))
    work(other, 0, 1, NOW)
    with pytest.raises(LocalFault, match="another run"):
        export(other.folder, exported)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("dear")
    with pytest.raises(LocalFault, match="not empty"):
        export(run.folder, tmp_path / "full")
    with pytest.raises(LocalFault, match="is a file"):
        export(run.folder, tmp_path / "full" / "letter")
    with pytest.raises(LocalFault, match=r"cannot make .*: Not a directory; name another folder"):
        export(run.folder, tmp_path / "full" / "letter" / "below")
    with pytest.raises(LocalFault, match="export"):
        audit(tmp_path / "full")


def test_a_folder_without_a_ledger_is_exported_to_nowhere(tmp_path: Path) -> None:
    empty = make_run(tmp_path / "empty", write_model(tmp_path / "model"))
    with pytest.raises(LocalFault, match=r"run\.sqlite"):
        export(empty.folder, tmp_path / "new" / "export")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("source", ["ftp://host/", "file:///tmp/export", "htp://host", "https://host/?a=1"])
def test_an_address_that_is_not_read_is_told_apart_from_a_folder(source: str) -> None:
    done = CliRunner().invoke(ledger_app, ["verify", source])
    assert done.exit_code == Exit.CONFIG
    assert "is no address of a page: only http:// and https:// are read" in done.stderr


def test_the_newest_head_is_a_note(run: Run, tmp_path: Path) -> None:
    assert ledger_export.newest_note(run.folder).startswith(f"echo2-ledger/{run.id.hex()}\n10\n")
    empty = make_run(tmp_path / "empty", write_model(tmp_path / "model"))
    with Database.open(empty.folder.database):
        pass
    with pytest.raises(LocalFault, match="no head"):
        ledger_export.newest_note(empty.folder)
