"""A whole run in one file: complete, verified, without a key in the clear; and a copy that signs nothing unasked."""

import errno
import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.accounts import run_logs
from echo2.coordinator.accounts.run_logs import RESTORED_FACT
from echo2.coordinator.database.database import Database
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.ledger_files import run_archive, run_backup
from echo2.coordinator.ledger_files.ledger_backup import is_database
from echo2.coordinator.run import keys_commands
from echo2.coordinator.run.setup import Run
from echo2.runtime.errors import DiskFull, LocalFault
from echo2.runtime.exit_codes import Exit
from echo2.weights.store import Store
from tests.support.paths import ROOT
from tests.support.run_folders import NOW, load, make_run, write_model
from tests.support.worked_ledger import work

SECRET = "four words of ours"


@pytest.fixture(autouse=True)
def cheap_scrypt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_archive, "_WORK", 1 << 4)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run with 6 entries, a store, a checkpoint's file, plans of payments and what no archive takes."""
    new_run = make_run(tmp_path / "run", write_model(tmp_path / "model"))
    work(new_run, 0, 4, NOW)
    work(new_run, 4, 1)
    place = new_run.folder
    Store(place.store).close()
    for name in ("learner/checkpoints/checkpoint-1/tensors", "payouts/payees.json", "history.jsonl", "scorer/big",
                 "logs/coordinator.jsonl", "store/incoming/part", ".half.tmp"):  # fmt: skip
        (place.path / name).parent.mkdir(parents=True, exist_ok=True)
        (place.path / name).write_bytes(name.encode() * 9)
    return new_run


@pytest.fixture
def archive(run: Run, tmp_path: Path) -> Path:
    run_backup.backup(run.folder, tmp_path / "all.echo2", SECRET, NOW)
    return tmp_path / "all.echo2"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def hidden(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_restored_folder_has_every_file_and_no_key_until_the_word_is_given(
    run: Run, archive: Path, tmp_path: Path
) -> None:
    before, there = contents(run.folder.path), tmp_path / "there"
    assert run_backup.restore(archive, there, SECRET, NOW)[:] == (6, 1, 5)
    assert not (there / "keys").exists()
    assert not (there / "payouts").exists()
    for refused in (lambda: load(there), lambda: keys_commands.change(there, "policy", now=NOW, secret=None)):
        with pytest.raises(LocalFault, match="has no keys yet: once the other coordinator"):
            refused()
    restored = load_confirmed(there)
    assert restored.keys.policy.private_bytes_raw() == run.keys.policy.private_bytes_raw()
    after = contents(there)
    left_out = {"scorer/big", "logs/coordinator.jsonl", "store/incoming/part", ".half.tmp", "store/lock"}
    lost = {name for name in before.keys() - after.keys() if not name.endswith(("-wal", "-shm"))}
    assert lost == left_out
    same = before.keys() & after.keys() - {"run.sqlite", "run.sqlite.lock", "store/index.sqlite", "lock"}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert {path.stat().st_mode & 0o077 for path in (there / "keys").iterdir()} == {0}
    with Database.open(there / "run.sqlite") as database:
        assert database.fact(RESTORED_FACT) == 1
        assert run_logs.least_era(database) == NOW // 1000
    Store(there / "store").close()


def load_confirmed(folder: Path) -> Run:
    run_backup.confirm(load_place(folder), SECRET, NOW)
    return load(folder)


def load_place(folder: Path) -> RunFolder:
    return RunFolder(folder)


def test_an_archive_is_for_its_owner_alone_and_has_no_key_in_the_clear(run: Run, archive: Path) -> None:
    assert archive.stat().st_mode & 0o777 == 0o600
    whole = archive.read_bytes()
    for path in (*run.folder.keys.iterdir(), run.folder.path / "payouts/payees.json"):
        if path.suffix != ".crt":
            assert path.read_bytes() not in whole
    assert b"PRIVATE KEY" not in whole
    assert hidden(archive.parent) == []


def test_files_that_change_while_they_are_opened_are_opened_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_backup, "_PAUSE_SECONDS", 0)
    first, third = run.folder.learner / "checkpoints/checkpoint-1", run.folder.learner / "checkpoints/checkpoint-3"
    opened = []

    def open_and_replace(path: Path, name: str, closing: object) -> run_archive.ArchivedFile:
        member = real(path, name, closing)  # type: ignore[arg-type]
        if name.startswith("learner/") and not opened:
            opened.append(name)
            first.rename(third)
        return member

    real = run_backup._open
    monkeypatch.setattr(run_backup, "_open", open_and_replace)
    run_backup.backup(run.folder, tmp_path / "all.echo2", SECRET, NOW)
    run_backup.restore(tmp_path / "all.echo2", tmp_path / "there", SECRET, NOW)
    assert [path.name for path in (tmp_path / "there/learner/checkpoints").iterdir()] == ["checkpoint-3"]


def test_a_file_that_is_removed_while_others_are_copied_is_in_the_archive(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_and_write(*args: object) -> int:
        (run.folder.learner / "checkpoints/checkpoint-1/tensors").unlink()
        return real(*args)  # type: ignore[arg-type]

    real = run_archive.write
    monkeypatch.setattr(run_archive, "write", remove_and_write)
    run_backup.backup(run.folder, tmp_path / "all.echo2", SECRET, NOW)
    run_backup.restore(tmp_path / "all.echo2", tmp_path / "there", SECRET, NOW)
    assert (tmp_path / "there/learner/checkpoints/checkpoint-1/tensors").is_file()


def test_files_that_never_rest_end_a_backup(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter(range(10_000))
    monkeypatch.setattr(run_backup, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(run_backup, "_TRIES", 3)
    monkeypatch.setattr(run_backup, "_files", lambda folder: {"run.spec": (0, 0, next(counted))})
    with pytest.raises(LocalFault, match="do not stay the same for a moment: try again"):
        run_backup.backup(run.folder, tmp_path / "all.echo2", SECRET, NOW)
    assert hidden(tmp_path) == []


def cut(data: bytes, at: int) -> bytes:
    return data[:at]


def sealed_at(data: bytes) -> int:
    return data.index(b"sealed\0")


def flip(data: bytes, mark: bytes) -> bytes:
    at = data.index(mark)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut in the middle": (lambda data: cut(data, len(data) // 2), "cut off"),
    "cut before the private files": (lambda data: cut(data, sealed_at(data)), "ends before sealed"),
    "empty": (lambda data: b"", "not an archive"),
    "another file": (lambda data: b"something else " * 999, "not an archive"),
    "a changed model": (lambda data: flip(data, b'"model_type"'), "is damaged at model/config.json"),
    "a changed manifest": (lambda data: flip(data, b'"format":1'), "damaged at manifest.json"),
    "changed private files": (lambda data: flip(data, data[sealed_at(data) + 700 :][:40]), "passphrase is not that"),
}  # fmt: skip


@pytest.mark.parametrize("why", DAMAGE)
def test_a_damaged_archive_is_refused_in_one_sentence_and_nothing_is_made(
    why: str, archive: Path, tmp_path: Path
) -> None:
    damage, words = DAMAGE[why]
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(LocalFault, match=words) as refused:
        run_backup.restore(archive, tmp_path / "there", SECRET, NOW)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "there").exists()
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside"])
def test_an_archive_writes_no_file_outside_its_folder(name: str, tmp_path: Path) -> None:
    path = tmp_path / "evil"
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = 4
        tar.addfile(entry, io.BytesIO(b"evil"))
    with pytest.raises(LocalFault, match="which no archive of echo2 has: nothing is restored"):
        run_backup.restore(path, tmp_path / "there", SECRET, NOW)


def test_a_link_in_an_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil"
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo("model")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(entry)
    with pytest.raises(LocalFault, match="'model', which no archive"):
        run_backup.restore(path, tmp_path / "there", SECRET, NOW)


def test_a_folder_that_waits_for_no_word_is_named_before_anything_is_asked(run: Run) -> None:
    done = CliRunner().invoke(cli.app, ["restored", "--home", str(run.folder.path)])
    assert (done.exit_code, done.stdout) == (Exit.CONFIG, "")
    assert "does not wait for a word" in done.stderr


def test_by_commands_a_copy_gets_its_keys_once_the_operator_agrees(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHO2_BACKUP_PASSPHRASE", SECRET)
    file, there = str(tmp_path / "all.echo2"), str(tmp_path / "there")

    def typed(*words: str, answer: str = "") -> tuple[int, str]:
        done = CliRunner().invoke(cli.app, list(words), input=answer)
        return done.exit_code, done.stdout + done.stderr

    code, said = typed("backup", file, "--home", str(run.folder.path))
    assert code == 0, said
    assert "without its passphrase nobody restores it" in said
    code, said = typed("restore", file, "--home", there)
    assert code == 0, said
    assert "it signs nothing yet, as its keys are still encrypted" in said
    assert f"run `echo2-coord restored --home {there}`" in said
    for answer, words in (("", "add --yes"), ("n\n", "nothing is changed: stop the other coordinator first")):
        code, said = typed("restored", "--home", there, answer=answer)
        assert code == Exit.CONFIG
        assert words in said
        assert not (tmp_path / "there/keys").exists()
    for command in (["run"], ["keys", "rotate", "channel"], ["keys", "renew"]):
        code, said = typed(*command, "--home", there)
        assert (code, "has no keys yet" in said) == (Exit.CONFIG, True), said
    code, said = typed("restored", "--home", there, answer="y\n")
    assert code == 0, said
    load(tmp_path / "there")


def test_wrong_passphrases_and_places_are_named(run: Run, archive: Path, tmp_path: Path) -> None:
    full, there = tmp_path / "full", tmp_path / "there"
    full.mkdir()
    (full / "file").touch()
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: run_backup.restore(archive, there, "another phrase", NOW), "the passphrase is not that of"),
        (lambda: run_backup.restore(archive, full, SECRET, NOW), "is not empty: name a new folder"),
        (lambda: run_backup.restore(archive, archive, SECRET, NOW), "is not empty"),
        (lambda: run_backup.restore(tmp_path / "none", there, SECRET, NOW), "there is no file"),
        (lambda: run_backup.restore(archive, archive / "in a file", SECRET, NOW), "cannot make"),
        (lambda: run_backup.backup(run.folder, archive, SECRET, NOW), "is there already"),
        (lambda: run_backup.backup(run.folder, run.folder.path / "copy", SECRET, NOW), "inside the run folder"),
        (lambda: run_backup.backup(run.folder, tmp_path / "b", "short", NOW), "has 5 characters: take 8 or more"),
        (lambda: run_backup.backup(run.folder, archive / "b", SECRET, NOW), "cannot back up to"),
        (lambda: run_backup.backup(load_place(full), tmp_path / "b", SECRET, NOW), "no run in|no Root"),
        (lambda: run_backup.confirm(run.folder, SECRET, NOW), "does not wait for a word"),
    ]
    for act, words in refusals:
        with pytest.raises(LocalFault, match=words):
            act()
    run_backup.restore(archive, there, SECRET, NOW)
    with pytest.raises(LocalFault, match="the passphrase is not that of"):
        run_backup.confirm(load_place(there), "another phrase", NOW)
    assert not (there / "keys").exists()
    assert is_database(run.folder.database)
    assert not is_database(archive)


def test_a_folder_behind_a_link_is_named(run: Run, tmp_path: Path) -> None:
    run.folder.model.rename(tmp_path / "elsewhere")
    run.folder.model.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocalFault, match="is a link to a folder, which no archive takes"):
        run_backup.backup(run.folder, tmp_path / "all.echo2", SECRET, NOW)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    run: Run, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "b"))

    with monkeypatch.context() as patched:
        patched.setattr(run_archive, "write", full)
        with pytest.raises(LocalFault, match=r"no room to write|no space is left"):
            run_backup.backup(run.folder, tmp_path / "b", SECRET, NOW)
    with monkeypatch.context() as patched:
        patched.setattr(run_archive.Archive, "extract", full)
        with pytest.raises(LocalFault, match="no space is left"):
            run_backup.restore(archive, tmp_path / "there", SECRET, NOW)
    with monkeypatch.context() as patched:
        patched.setattr(run_archive.Archive, "size", 1 << 60)
        with pytest.raises(DiskFull, match=r"GB free, and the run takes 1,152,921,504.6 GB: free space there"):
            run_backup.restore(archive, tmp_path / "there", SECRET, NOW)
    assert hidden(tmp_path) == []
    assert not (tmp_path / "there").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from echo2.coordinator.database.run_folder import RunFolder
from echo2.coordinator.ledger_files import ledger_backup, run_archive, run_backup
from echo2.runtime import files
at, seen = int(sys.argv[1]), 0
def fsync(descriptor, real=os.fsync):
    global seen
    seen += 1
    if seen == at:
        os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor)
os.fsync = fsync
run_archive._WORK = 1 << 4
{act}
"""
ACTS = {
    "backup": "run_backup.backup(RunFolder(Path('run')), Path('b'), 'four words of ours', 1_800_000_000_000)",
    "restore": "run_backup.restore(Path('all.echo2'), Path('there'), 'four words of ours', 1_800_000_000_000)",
    "confirm": "run_backup.confirm(RunFolder(Path('there')), 'four words of ours', 1_800_000_000_000)",
}


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
def test_a_kill_at_any_moment_leaves_nothing_half(act: str, run: Run, archive: Path, tmp_path: Path) -> None:
    if act == "confirm":
        run_backup.restore(archive, tmp_path / "there", SECRET, NOW)
    command = [sys.executable, "-c", KILLED.format(act=ACTS[act])]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    for at in (1, 2, 3, 5, 8, 13, 21, 34, 55):
        ended = subprocess.run([*command, str(at)], cwd=tmp_path, env=env, capture_output=True, text=True)
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        if act == "backup":
            assert not (tmp_path / "b").exists()
        elif act == "restore":
            assert not (tmp_path / "there").exists()
        else:
            with pytest.raises(LocalFault, match="has no keys yet"):
                load(tmp_path / "there")
    else:
        raise AssertionError("it never came to its end")
    if act == "backup":
        run_backup.restore(tmp_path / "b", tmp_path / "there", SECRET, NOW)
    if act != "confirm":
        run_backup.confirm(load_place(tmp_path / "there"), SECRET, NOW)
    load(tmp_path / "there")
    assert hidden(tmp_path) == []


def test_the_token_of_the_operators_page_is_in_no_archive(run: Run, tmp_path: Path) -> None:
    run.folder.operator_page.write_text(f"http://127.0.0.1:1/{'t' * 43}/")
    run_backup.backup(run.folder, tmp_path / "all.echo2", SECRET, NOW)
    assert b"t" * 43 not in (tmp_path / "all.echo2").read_bytes()


def test_a_link_in_the_place_of_the_draft_is_not_followed(archive: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("all of it")
    (tmp_path / ".there.tmp").symlink_to(precious)
    with pytest.raises(LocalFault, match="is a link, or another user's: remove it"):
        run_backup.restore(archive, tmp_path / "there", SECRET, NOW)
    assert (precious / "thesis").read_text() == "all of it"


def test_a_member_that_is_larger_than_its_archive_is_not_read(tmp_path: Path) -> None:
    """A sparse member of a terabyte takes 1 KiB of a file, and was read into memory before the passphrase counted."""
    entry = tarfile.TarInfo("manifest.json")
    entry.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "manifest.json",
                         "GNU.sparse.realsize": str(1 << 40)}  # fmt: skip
    body = b"0\n".ljust(512, b"\0")
    entry.size = len(body)
    with tarfile.open(tmp_path / "evil.echo2", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(entry, io.BytesIO(body))
        tar.addfile(tarfile.TarInfo("sealed"))
    with pytest.raises(LocalFault, match=r"has 'manifest.json', which no archive of echo2 has"):
        run_backup.restore(tmp_path / "evil.echo2", tmp_path / "there", SECRET, NOW)


def test_an_archive_that_names_a_file_twice_is_refused(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive, "a") as tar:
        tar.addfile(tarfile.TarInfo("run.sqlite"))
    with pytest.raises(LocalFault, match=r"has 'run.sqlite', which no archive of echo2 has"):
        run_backup.restore(archive, tmp_path / "there", SECRET, NOW)


def test_a_member_that_leads_back_to_itself_is_refused(tmp_path: Path) -> None:
    """A size below 0 had the archive read a member for ever, and remember each time."""
    header = bytearray(tarfile.TarInfo("manifest.json").tobuf())
    header[124:136] = b"\xff" * 10 + b"\xfe\0"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "evil.echo2").write_bytes(tarfile.TarInfo("sealed").tobuf() + header + bytes(1024))
    with pytest.raises(LocalFault, match=r"has 'manifest.json', which no archive of echo2 has|is not an archive"):
        run_backup.restore(tmp_path / "evil.echo2", tmp_path / "there", SECRET, NOW)


DAMAGED_HEADERS = {
    "a name without end": (b"L", b"\x80" + b"\xff" * 11),
    "a name of less than nothing": (b"L", b"\xff" * 10 + b"\xfe\0"),
    "attributes of a terabyte": (b"x", b"77777777777\0"),
    "a file beyond any offset": (b"0", b"\x80" + b"\x7f" * 11),
}


@pytest.mark.parametrize("why", DAMAGED_HEADERS)
def test_a_header_with_a_size_that_is_none_is_one_sentence(why: str, archive: Path, tmp_path: Path) -> None:
    kind, size = DAMAGED_HEADERS[why]
    header = bytearray(tarfile.TarInfo("coordinator.toml").tobuf())
    header[124:136], header[156:157], header[148:156] = size, kind, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "evil.echo2").write_bytes(bytes(header) + archive.read_bytes())
    with pytest.raises(LocalFault, match=r"evil\.echo2"):
        run_backup.restore(tmp_path / "evil.echo2", tmp_path / "there", SECRET, NOW)


def test_a_manifest_of_no_text_is_damaged(archive: Path, tmp_path: Path) -> None:
    whole = archive.read_bytes()
    at = whole.index(b'{"format":1')
    (tmp_path / "b").write_bytes(whole[: at + 20] + b"\xfd" + whole[at + 21 :])
    with pytest.raises(LocalFault, match=r"is damaged at manifest\.json"):
        run_backup.restore(tmp_path / "b", tmp_path / "there", SECRET, NOW)
