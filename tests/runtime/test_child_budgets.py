"""Budgets of children: each limit holds in a child that tries, and the documents have the same table."""

import re
import subprocess
import sys

import psutil
import pytest

from echo2.runtime import resident_memory
from echo2.runtime.child import Child, ChildDied
from echo2.runtime.child_budgets import BUDGETS
from tests.support.paths import ROOT

TRIES = """
import errno, resource, socket, sys
from echo2.runtime.child_budgets import confine
missing = confine(sys.argv[1], lambda: "asked of the network")
print(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
        print("open")
    except OSError as error:
        print(errno.errorcode[error.errno])
print(missing)
"""


HUNGRY = """
import time
from echo2.runtime import resident_memory
from echo2.runtime.child_budgets import confine
resident_memory.MOST_SHARE = 0.0
confine("learner", lambda: "")
time.sleep(60)
"""


def tried(kind: str) -> list[str]:
    """Let a child of a kind try to open sockets; return its limit of files, and an outcome for each family."""
    command = [sys.executable, "-c", TRIES, kind]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=60)
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind", BUDGETS)
def test_a_child_has_no_more_open_files_than_its_row_says(kind: str) -> None:
    assert 0 < int(tried(kind)[0]) <= BUDGETS[kind].files


@pytest.mark.skipif(sys.platform != "linux", reason="the filter is Linux's")
@pytest.mark.parametrize("kind", [kind for kind, budget in BUDGETS.items() if budget.network == "local"])
def test_a_child_without_a_network_opens_no_internet_socket_and_may_speak_to_its_drivers(kind: str) -> None:
    assert tried(kind)[1:4] == ["EACCES", "EACCES", "open"]


@pytest.mark.parametrize("kind", ["server", "learner rank", "vllm", "abacus"])
def test_a_child_whose_row_names_a_network_is_kept_to_it_by_that_networks_own_limit(kind: str) -> None:
    assert tried(kind)[1:5] == ["open", "open", "open", "asked of the network"]


def test_memory_that_a_process_uses_is_measured() -> None:
    assert 1 << 20 < resident_memory.own_memory() <= psutil.Process().memory_info().rss * 2
    assert resident_memory.excess(1.0) == ""
    assert "GB of memory, and may use 0.0 GB" in resident_memory.excess(0.0)


async def test_a_child_that_takes_too_much_memory_ends_and_its_call_says_why() -> None:
    one = Child([sys.executable, "-c", HUNGRY], name="hungry", env={"PYTHONPATH": str(ROOT)})
    await one.start()
    with pytest.raises(ChildDied, match="GB of memory, and may use"):
        await one.call("anything", None, dict)


def test_the_table_of_budgets_stands_in_the_documents() -> None:
    text = (ROOT / "docs" / "reference" / "limits.md").read_text()
    rows = {
        cells[0]: (int(cells[1].replace(",", "")), *cells[2:])
        for cells in ([cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines())
        if len(cells) == 5 and re.fullmatch(r"[\d,]+", cells[1]) and cells[0] in BUDGETS
    }
    assert rows == {kind: tuple(budget) for kind, budget in BUDGETS.items()}
