"""runtime/lock.py: one process per file or folder; the kernel releases the lock of a dead one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from echo2.runtime.lock import AlreadyLocked, is_locked, lock_file, lock_folder

HOLDER = """
import sys, time
from pathlib import Path
from echo2.runtime.lock import lock_file
with lock_file(Path(sys.argv[1]), name_holder=True):
    print("holds", flush=True)
    time.sleep(60)
"""


def test_whether_a_file_is_locked_is_seen_without_locking_or_making_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert (is_locked(path), path.exists()) == (False, False)
    with lock_file(path):
        assert is_locked(path)
    assert not is_locked(path)
    lock_file(path).release()


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock_file(path), pytest.raises(AlreadyLocked) as refused:
        lock_file(path)
    assert refused.value.holder == ""
    assert path.stat().st_mode & 0o777 == 0o600
    lock_file(path).release()


def test_a_lock_file_names_its_holder_where_it_is_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("an older and much longer content than a process id\n")
    with lock_file(path, name_holder=True), pytest.raises(AlreadyLocked) as refused:
        lock_file(path)
    assert refused.value.holder == str(os.getpid())
    assert path.read_text() == f"{os.getpid()}\n"


def test_a_refused_attempt_leaves_the_holders_id_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock_file(path, name_holder=True):
        for _ in range(2):
            with pytest.raises(AlreadyLocked):
                lock_file(path, name_holder=True)
        assert path.read_text() == f"{os.getpid()}\n"


def test_releasing_twice_closes_no_descriptor_of_another(tmp_path: Path) -> None:
    lock = lock_file(tmp_path / "lock")
    lock.release()
    with (tmp_path / "other").open("w") as other:  # takes the number that was let go
        lock.release()
        other.write("still open")
    assert (tmp_path / "other").read_text() == "still open"


def test_a_folder_is_locked_as_it_is_and_never_created(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(AlreadyLocked):
        lock_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        lock_folder(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_holder_holds_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "holds\n"
        with pytest.raises(AlreadyLocked) as refused:
            lock_file(path)
        assert refused.value.holder == str(holder.pid)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    lock_file(path).release()
