"""Leave the run joined last: end the node in order, and delete what it stored of the run.

Rules
1. A daemon that works is asked to finish first, and its end is awaited: groups under way are completed and delivered.
2. Weights, the model's files and stored payloads go; the invite gets another name, so that `run` does not join again,
   and `receipts` and `earnings` know the run. The key and the receipts stay: with them the node comes back with its
   standing.
3. With `forget` the whole home goes, key and receipts too. While groups wait for their receipts this is refused: what
   they earn would be lost with the key.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from echo2.node.control.owner_socket import ask_daemon
from echo2.node.errors import AlreadyRuns, BadConfig, NoDaemonAnswers, TryLater
from echo2.node.home import LEFT, invite_of_joined_run, lock_home, run_folder
from echo2.node.rollouts.outbox import count_waiting
from echo2.node.versions.local_weights import LocalWeights
from echo2.runtime.figures import number_of
from echo2.runtime.lock import OF_HOME

STORED: Final = ("store", "weights", "model")
"""Folders of a run that hold the policy."""
LOOK_SECONDS: Final = 0.5
GROUP_SECONDS: Final = 180
"""Seconds for the groups under way of a node that finishes, beside the setting `drain`."""


def leave(
    home: Path,
    patience: float,
    say: Callable[[str], object],
    *,
    forget: bool,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Leave the run joined last in `home` (rules 1 to 3). `patience`: most seconds that the daemon takes to end. `say`:
    takes each sentence for the owner. Raises `NodeError`."""
    check_worked(home)
    if _finish(home):
        say("the node finishes: groups under way are completed and delivered; Ctrl-C stops this command, not the node")
    with _hold_lock(home, patience, sleep):
        folders = _runs(home, forget=forget)
        if forget:
            for folder in folders:
                _check_settled(folder)
        for folder in folders:
            LocalWeights(folder / "weights", quota=0).free_memory()
        freed = sum(_delete(folder / name) for folder in folders for name in STORED)
        with contextlib.suppress(FileNotFoundError):
            (home / "invite").replace(home / LEFT)
        if forget:
            _forget(home)
    if forget:
        with contextlib.suppress(OSError):  # files of others stay, and the folder with them
            home.rmdir()  # without the lock, which NFS keeps under another name while it is open
    kept = "key and receipts are deleted too" if forget else f"key and receipts stay in {home}"
    say(f"left: {freed / 1e6:,.1f} MB of weights are deleted, {kept}")
    say("if the node was a service: `echo2-node service uninstall`")


def check_worked(home: Path) -> None:
    """Check that there is something to leave, before anything is asked. Raises `BadConfig`."""
    if not (home / "node.key").exists():
        raise BadConfig(f"no node has worked in {home}: there is nothing to leave")


def _finish(home: Path) -> bool:
    """Ask a daemon to finish; return whether there is one."""
    try:
        ask_daemon(home, command="finish")
    except NoDaemonAnswers:
        return False
    return True


@contextlib.contextmanager
def _hold_lock(home: Path, patience: float, sleep: Callable[[float], object]) -> Iterator[None]:
    """Hold the home's lock, once its daemon has ended."""
    waited = 0.0
    while True:
        try:
            with lock_home(home):
                yield
            return
        except AlreadyRuns as error:
            if waited >= patience:
                raise TryLater(f"the node in {home} has not ended after {patience:.0f} s: repeat this later") from error
        sleep(LOOK_SECONDS)
        waited += LOOK_SECONDS


def _runs(home: Path, *, forget: bool) -> list[Path]:
    """Return the folders of the run joined last, or of all runs."""
    if forget:
        return sorted(home.glob("runs/*"))
    return [run_folder(home, invite_of_joined_run(home).run)]


def _check_settled(folder: Path) -> None:
    """Check that no group waits for an answer (rule 3). Raises `BadConfig`."""
    if waiting := count_waiting(folder):
        raise BadConfig(
            f"{number_of(waiting, 'group')} without a receipt, and what they earn would go with the key: let "
            "`echo2-node run` deliver them, or leave without --forget"
        )


def _delete(folder: Path) -> int:
    """Delete a folder; return the bytes that get free: a file with another name takes its place until that goes."""
    files = [file.stat() for file in folder.rglob("*") if file.is_file()] if folder.is_dir() else []
    size = sum(file.st_size for file in files if file.st_nlink == 1)
    shutil.rmtree(folder, ignore_errors=True)
    return size


def _forget(home: Path) -> None:
    """Delete all that a node writes into its home."""
    names = (LEFT, "pages.json", "directories.json", "node.toml", "service.env")
    for path in (*home.glob("node*.key"), *home.glob("node.log*"), *(home / name for name in names)):
        path.unlink(missing_ok=True)
    shutil.rmtree(home / "runs", ignore_errors=True)
    (home / OF_HOME).unlink(missing_ok=True)
