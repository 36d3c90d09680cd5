"""Copies of run.sqlite: whole, verified, and never over a file that has more."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from echo2.coordinator.accounts.ledger import Ledger
from echo2.coordinator.database.database import Database, DatabaseFault
from echo2.coordinator.database.run_folder import FolderInUse, lock_run
from echo2.coordinator.ledger_files import ledger_backup
from echo2.coordinator.ledger_files.ledger_backup import backup, restore
from echo2.coordinator.ledger_files.ledger_export import export
from echo2.coordinator.publishing.foreign_heads import RESTORED_FACT
from echo2.coordinator.run import keys_commands
from echo2.coordinator.run.setup import Run
from echo2.ledger.ledger_audit import audit
from echo2.ledger.ledger_entries import Tampered
from echo2.protocol.root_chain import Untrusted
from echo2.runtime.errors import LocalFault
from tests.support.run_folders import NOW, load, make_run, write_model
from tests.support.worked_ledger import work


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run with 6 entries, of which a head covers 5."""
    new_run = make_run(tmp_path / "run", write_model(tmp_path / "model"))
    work(new_run, 0, 4, NOW)
    work(new_run, 4, 1)
    return new_run


def entries(path: Path) -> int:
    with Database.read(path) as database:
        return Ledger(database).tip().entries


def edit(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
        connection.commit()


def test_a_copy_beside_a_writer_is_whole_and_for_its_owner_alone(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    with Database.open(run.folder.database):
        assert backup(run.folder, copy, NOW)[:] == (6, 1, 5)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".copy")]
    with pytest.raises(LocalFault, match="is there already"):
        backup(run.folder, copy, NOW)


def test_the_folder_of_a_copy_is_made_and_one_that_cannot_be_is_named(run: Run, tmp_path: Path) -> None:
    assert backup(run.folder, tmp_path / "copies" / "monday.sqlite", NOW).entries == 6
    with pytest.raises(LocalFault, match=r"cannot make the folder .*monday.sqlite: .*: name another file"):
        backup(run.folder, tmp_path / "copies" / "monday.sqlite" / "tuesday.sqlite", NOW)


def test_a_restored_copy_says_so_and_the_file_before_it_stays(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    backup(run.folder, copy, NOW)
    work(run, 5, 3, NOW + 9)
    with pytest.raises(LocalFault, match="has 9 entries, the copy has 6: 3 would be lost"):
        restore(run.folder, copy, NOW)
    run.folder.database.write_bytes(b"a disk fault")
    assert "6 entries of the ledger; head 1 covers 5" in restore(run.folder, copy, NOW).sentence()
    assert entries(run.folder.database) == 6
    with Database.open(run.folder.database) as database:
        assert database.fact(RESTORED_FACT) == 1
        Ledger(database).verify()
    assert run.folder.database.with_name("run.sqlite.replaced").read_bytes() == b"a disk fault"
    assert entries(copy) == 6


def test_a_second_restore_keeps_the_file_that_the_first_one_replaced(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    backup(run.folder, copy, NOW)
    for damage in (b"the first", b"the second", b"the third"):
        run.folder.database.write_bytes(damage)
        run.folder.database.with_name("run.sqlite-wal").write_bytes(damage)
        restore(run.folder, copy, NOW)
    for number, damage in (("", b"the first"), (".2", b"the second"), (".3", b"the third")):
        for end in ("", "-wal"):
            assert run.folder.database.with_name(f"run.sqlite.replaced{number}{end}").read_bytes() == damage
    assert entries(run.folder.database) == 6


def test_a_lost_file_is_restored(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    backup(run.folder, copy, NOW)
    run.folder.database.unlink()
    restore(run.folder, copy, NOW)
    assert entries(run.folder.database) == 6


def test_a_copy_whose_heads_a_key_signed_that_was_revoked_since_is_restored(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    backup(run.folder, copy, NOW)
    keys_commands.change(run.folder.path, "ledger", now=NOW + 10, secret=None, since=NOW - 5)
    run.folder.database.unlink()
    assert restore(run.folder, copy, NOW + 20)[:] == (6, 1, 5)
    again = load(run.folder.path)
    work(again, 5, 1, NOW + 30)
    export(again.folder, tmp_path / "export")
    assert audit(tmp_path / "export")[2:5] == (7, 2, 7)


def test_a_copy_whose_heads_no_key_of_the_run_signed_is_refused(run: Run, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", tmp_path / "model")
    copy = tmp_path / "copy.sqlite"
    work(other, 0, 9, NOW)
    backup(other.folder, copy, NOW)
    with pytest.raises(LocalFault, match="LedgerHead 1 of the copy"):
        restore(run.folder, copy, NOW)
    assert entries(run.folder.database) == 6


def test_nothing_is_restored_while_a_coordinator_runs(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    backup(run.folder, copy, NOW)
    with lock_run(run.folder), pytest.raises(FolderInUse):
        restore(run.folder, copy, NOW)


BAD = {
    "an edited entry": ("UPDATE entries SET facts = x'80' WHERE seq = 3", Tampered, "entry 3"),
    "an entry cut off": ("DELETE FROM entries WHERE seq >= 5", LocalFault, "2 would be lost"),
    "an edited balance": ("UPDATE balances SET amount = amount + 1 WHERE account LIKE 'node:%'", Tampered, "balances"),
    "an edited head": ("UPDATE ledger_heads SET sealed = zeroblob(90)", Untrusted, "LedgerHead 1"),
}


@pytest.mark.parametrize("why", BAD)
def test_a_copy_that_was_edited_is_refused_and_nothing_changes(why: str, run: Run, tmp_path: Path) -> None:
    statement, fault, words = BAD[why]
    copy = tmp_path / "copy.sqlite"
    backup(run.folder, copy, NOW)
    edit(copy, statement)
    before = run.folder.database.read_bytes()
    with pytest.raises(fault, match=words):
        restore(run.folder, copy, NOW)
    assert run.folder.database.read_bytes() == before
    assert not list(run.folder.path.glob("*restoring*"))


def test_files_that_are_no_copy_are_refused_by_name(run: Run, tmp_path: Path) -> None:
    text, empty = tmp_path / "text", tmp_path / "empty"
    text.write_text("not a database, but long enough to look at " * 40)
    empty.touch()
    for bad, words in ((text, "no sound copy"), (empty, "no sound copy"), (tmp_path / "none", "there is no file")):
        with pytest.raises(LocalFault, match=words):
            restore(run.folder, bad, NOW)
    assert entries(run.folder.database) == 6


def test_the_copy_of_another_run_is_refused(run: Run, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", write_model(tmp_path / "other model"))
    work(other, 0, 2, NOW)
    backup(other.folder, tmp_path / "copy.sqlite", NOW)
    run.folder.database.unlink()
    with pytest.raises(LocalFault, match="LedgerHead"):
        restore(run.folder, tmp_path / "copy.sqlite", NOW)
    assert not run.folder.database.exists()


@pytest.mark.parametrize(
    ("statement", "words"),
    [("PRAGMA user_version = 99", "another build of echo2 made {}"), ("damaged", "{} is damaged")],
)
def test_a_fault_of_what_is_copied_names_its_file_and_not_that_of_the_copy(
    statement: str, words: str, run: Run, tmp_path: Path
) -> None:
    copy, path = tmp_path / "copy.sqlite", run.folder.database
    backup(run.folder, copy, NOW)
    whole = path.read_bytes()
    for file, act in ((path, lambda: backup(run.folder, tmp_path / "other.sqlite", NOW)),
                      (copy, lambda: restore(run.folder, copy, NOW))):  # fmt: skip
        if statement == "damaged":
            page = int.from_bytes(whole[16:18], "big")
            file.write_bytes(whole[:page] + bytes([255]) * page + whole[2 * page :])
        else:
            edit(file, statement)
        with pytest.raises(DatabaseFault) as refused:
            act()
        assert words.format(file) in str(refused.value)
        assert ".tmp" not in str(refused.value)
        path.write_bytes(whole)
    assert list(tmp_path.rglob(".*")) == []


def test_after_a_kill_within_a_restore_no_start_makes_an_empty_ledger(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.sqlite"
    backup(run.folder, copy, NOW)

    def killed(source: Path, target: Path) -> None:
        if target == run.folder.database:
            raise KeyboardInterrupt
        real(source, target)

    real = ledger_backup.move
    with monkeypatch.context() as patched:
        patched.setattr(ledger_backup, "move", killed)
        with pytest.raises(KeyboardInterrupt):
            restore(run.folder, copy, NOW)
    assert not run.folder.database.exists()
    with pytest.raises(LocalFault, match=r"was cut off before run\.sqlite was in place: restore it again"):
        load(run.folder.path)
    restore(run.folder, copy, NOW)
    load(run.folder.path)
    assert entries(run.folder.database) == 6
    assert not list(run.folder.path.glob("*restoring*"))
