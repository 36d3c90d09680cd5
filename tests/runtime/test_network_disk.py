"""A disk that other machines write to is known by the mounts of the system; the table of them is a stand-in here."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from echo2.node.durable_file import DurableFile
from echo2.runtime.network_disk import UNKNOWN_KIND, Disk, disk_of, journal_mode
from echo2.weights.store import Store
from tests.support.mounts import mounted

KINDS = {
    "nfs4": True,
    "nfs": True,
    "cifs": True,
    "9p": True,
    "fuse.sshfs": True,
    "virtiofs": True,
    "ext4": False,
    "tmpfs": False,
    "overlay": False,
    "fuseblk": False,
    "fuse.portal": False,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_the_nearest_mount_decides(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, tmp_path / "proc", ("/dev/vda", "/", "ext4"), ("server:/home", str(tmp_path / "a b"), kind))
    here = Disk(kind, "server:/home")
    assert disk_of(tmp_path / "a b" / "not" / "there yet") == here
    assert here.is_shared is KINDS[kind]
    assert here.describe() == (f"{kind}, from server:/home" if KINDS[kind] else kind)
    assert disk_of(tmp_path / "a bc") == Disk("ext4", "/dev/vda")
    assert journal_mode(tmp_path / "a b" / "x.sqlite") == ("DELETE" if KINDS[kind] else "WAL")
    assert journal_mode(tmp_path / "x.sqlite") == "WAL"


def test_a_mount_that_covers_another_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, tmp_path / "proc", ("auto", "/", "autofs"), ("server:/home", "/", "nfs4"))
    assert disk_of(tmp_path).kind == "nfs4"


def test_a_link_to_a_network_disk_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far")
    mounted(monkeypatch, tmp_path / "proc", ("server:/home", str(tmp_path / "far"), "nfs4"))
    assert disk_of(tmp_path / "link" / "home").is_shared


def test_a_system_that_lists_no_mounts_has_disks_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "nowhere"))
    assert disk_of(tmp_path).kind == UNKNOWN_KIND
    assert journal_mode(tmp_path / "x.sqlite") == "WAL"


def test_files_go_from_one_journal_to_the_other_as_their_home_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, mode in (("ext4", "wal"), ("nfs4", "delete"), ("ext4", "wal")):
        mounted(monkeypatch, tmp_path / "proc", ("somewhere", str(tmp_path), kind))
        with closing(DurableFile(tmp_path / "x.sqlite", "CREATE TABLE rows (one INTEGER);", lost="")) as file:
            file.do("INSERT INTO rows VALUES (1)")
            assert file.do("PRAGMA journal_mode").fetchone() == (mode,)
        with Store(tmp_path / "store") as store:
            digest = store.put_document("head", 1, 1, kind.encode())
            assert store.document(digest) == kind.encode()
            with closing(sqlite3.connect(tmp_path / "store" / "index.sqlite")) as reader:
                assert reader.execute("PRAGMA journal_mode").fetchone() == (mode,)
    with closing(DurableFile(tmp_path / "x.sqlite", "CREATE TABLE rows (one INTEGER);", lost="")) as file:
        assert file.do("SELECT count(*) FROM rows").fetchone() == (3,)
