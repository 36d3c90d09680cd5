"""A full disk: the daemon ends with one line that names the file, and continues once there is room."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from echo2.runtime.exit_codes import Exit
from tests.faults.audit import check_books, check_draws
from tests.faults.processes import Program, Run, running, until
from tests.support.quick_disk import quick_folder

pytestmark = pytest.mark.slow


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a filesystem of that size at `folder`."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no small disk can be made here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fill the disk; return the file that fills it."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


def ends_and_goes_on(run: Run, program: Program, home: Path, disk: Path) -> None:
    """Run the same story for either daemon."""
    ballast = fill(disk)
    assert program.wait() == Exit.TEMPORARY, program.last_words()
    until("its children have ended", lambda: not program.orphans())
    assert str(home) in program.last_words()
    assert "Traceback" not in program.log.read_text()
    check_books(run)
    program.start()
    assert program.wait() == Exit.TEMPORARY, f"still no room: {program.last_words()}"
    ballast.unlink()
    program.start()
    version = until("the coordinator is there", run.coordinator.state).version
    run.coordinator.past(version + 2)
    for volunteer in run.volunteers:
        before = volunteer.accepted()
        until("it is credited again", lambda v=volunteer, b=before: v.accepted() > b)
    check_books(run)


def test_a_node_without_room_ends_and_goes_on_when_there_is_room(template: Path) -> None:
    with quick_folder() as folder, small_disk(folder / "disk", 8) as disk, running(template, folder, "ann") as run:
        bob = run.volunteer("bob", disk)
        until("it has a Receipt", bob.accepted)
        ends_and_goes_on(run, bob, bob.home, disk)


def test_a_coordinator_without_room_ends_and_goes_on_when_there_is_room(template: Path) -> None:
    with (
        quick_folder() as folder,
        small_disk(folder / "disk", 48) as disk,
        running(template, folder, "ann", disk=disk) as run,
    ):
        until("the node has a Receipt", run.volunteers[0].accepted)
        ends_and_goes_on(run, run.coordinator, run.coordinator.home, disk)
        run.coordinator.kill()
        until("the learner has ended", lambda: not run.coordinator.orphans())
        assert check_draws(run.coordinator) > 2
