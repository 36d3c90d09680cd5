"""`make near` chooses the tests of the rooms that a change touches."""

import subprocess
from pathlib import Path

import pytest

from tests.near import ALWAYS, changes, near

CASES = {
    "a module of a room": ("coordinator/leases/kinds/audits.py", {"tests/coordinator/leases/kinds"}),
    "the same by its link": ("echo2/coordinator/leases/kinds/audits.py", {"tests/coordinator/leases/kinds"}),
    "a module of a room without a folder of tests": ("node/control/deep/new.py", {"tests/node/control"}),
    "a test": ("tests/p2p/swarm/test_exchange.py", {"tests/p2p/swarm"}),
    "a test of the whole tree": ("tests/test_report.py", {"tests/test_report.py"}),
    "a benchmark": ("benchmarks/flood/world.py", {"tests/benchmarks"}),
    "a document": ("docs/index.md", {"tests/docs", "tests/test_packaging.py"}),
    "a lock": ("requirements.lock", {"tests/docs", "tests/test_packaging.py"}),
    "a file at the root": ("hatch_build.py", set()),
}


@pytest.mark.parametrize(("changed", "chosen"), CASES.values(), ids=CASES)
def test_the_tests_near(changed: str, chosen: set[str]) -> None:
    assert set(near([changed])) == {*ALWAYS, *chosen}


def test_a_changed_support_module_brings_the_rooms_that_use_it() -> None:
    chosen = near(["tests/support/relays.py"])
    assert "tests/p2p/libp2p" in chosen
    assert "tests/tasks" not in chosen


def test_a_folder_within_another_is_not_named_twice() -> None:
    chosen = near(["coordinator/cli.py", "coordinator/leases/kinds/audits.py"])
    assert set(chosen) == {*ALWAYS, "tests/coordinator"}


def test_a_change_is_what_was_committed_since_main_what_was_not_and_what_is_new(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(name: str) -> None:
        (tmp_path / name).write_text(name)

    git("init", "--initial-branch=main")
    write("kept")
    git("add", ".")
    git("commit", "--message=one")
    git("checkout", "-b", "change")
    write("committed")
    git("add", ".")
    git("commit", "--message=two")
    (tmp_path / "kept").write_text("changed")
    write("new")
    assert set(changes(tmp_path)) == {"committed", "kept", "new"}
