"""kill -9 of the environment's process, the engine, the node and the coordinator while episodes of several turns are
open."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from echo2.coordinator.database.database import Database
from tests.faults.audit import check_books
from tests.faults.processes import Run, make_template, running, until
from tests.support import plugin_packages
from tests.support.quick_disk import quick_folder

pytestmark = pytest.mark.slow
ENVIRONMENT = "echo2.coordinator.environments.environment_host"


@pytest.fixture(scope="module", params=["guess", "dealt"])
def talk(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A run of an episode of several turns: of this build, and of a plug-in that opens each one by chance."""
    with quick_folder() as folder, pytest.MonkeyPatch.context() as patch:
        plugin_packages.install(folder / "packages", patch, {"dealt": "tests.support.dealt_task:DEALT"})
        yield make_template(folder / "run", {"task": request.param, "kind": "served", "limit": 12})


def count(run: Run, query: str) -> int:
    with closing(Database.read(run.coordinator.folder.database)) as database:
        return int(database.value(f"SELECT count(*) FROM {query}"))


def in_mid_episode(run: Run) -> None:
    """Wait until an episode is open."""
    until("an episode is open", lambda: count(run, "steps"))


def environment(run: Run) -> psutil.Process | None:
    """Return the environment's process."""
    for child in run.coordinator.children():
        try:
            if ENVIRONMENT in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                return child
        except psutil.NoSuchProcess:
            continue
    return None


def test_whatever_is_killed_in_mid_episode_no_group_is_refused_and_the_run_goes_on(talk: Path, tmp_path: Path) -> None:
    with running(talk, tmp_path, "alice", "bob") as run:
        run.coordinator.past(0)
        alice = run.volunteers[0]
        for _ in range(3):
            in_mid_episode(run)
            until("the environment runs", lambda: environment(run)).kill()
            run.coordinator.past(run.coordinator.state().version)
        check_books(run)
        for _ in range(2):
            in_mid_episode(run)
            alice.kill_children("engine")
            in_mid_episode(run)
            alice.kill()
            alice.start(run.coordinator.invite())
            run.coordinator.past(run.coordinator.state().version)
        check_books(run)
        for _ in range(2):
            in_mid_episode(run)
            run.coordinator.kill()
            run.coordinator.start()
            run.coordinator.past(until("the page answers", run.coordinator.state).version)
        check_books(run)
        assert run.coordinator.state().refused == {}
        assert count(run, "evidence") == 0
        assert not [orphan for program in (run.coordinator, *run.volunteers) for orphan in program.orphans()]
