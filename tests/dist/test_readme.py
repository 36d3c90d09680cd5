"""README's commands, as its text has them, run by a volunteer and an operator who installed by README's commands."""

import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import readme
from tests.support.installations import Installation
from tests.support.readme import BARE, SURROUNDINGS, TORCH, TRAIN, installed, shell

SHOWN = [*readme.blocks("Install"), *readme.in_text("Install", "uv", "pipx", "pip")]
SEEN = {"status": 0, "why": 0, "doctor": 0, "earnings": 0}
"""What docs/volunteer.md has a volunteer look at, and its exit codes."""
DONE = {
    "pause --for 2h": 0, "pause --gpu 1": 78, "slow on": 0, "finish": 0, "service install": 78, "update": 0,
    "leave": 0, "leave --forget": 78,
}  # fmt: skip
"""What it has a volunteer do, in its order. This node has no second device, no service manager is on its PATH, and no
one answers a question."""


@pytest.fixture(scope="module")
def volunteer(tools: Path, commit: Path, uv_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return installed(BARE, tools, commit, uv_cache, tmp_path_factory.mktemp("volunteer"))


@pytest.fixture(scope="module")
def lent(invite: str, volunteer: Installation) -> Iterator[Installation]:
    """The volunteer, whose machine works for the run by README's command."""
    (join,) = readme.blocks("Lend a machine")
    more = {**SURROUNDINGS, "INVITE": invite}
    with volunteer.running("/bin/sh", "-ec", f"exec {join}", more=more):
        yield volunteer


def test_each_command_of_the_set_up_is_run_by_a_test() -> None:
    """`pip install .` is what other tests do with the wheel, `pipx install .` is in test_installers.py."""
    assert set(SHOWN) == {BARE, TORCH, TRAIN, "pipx install .", "pip install ."}


def test_the_extra_of_a_volunteer_with_pytorch_is_installed_by_its_command(
    tools: Path, commit: Path, uv_cache: Path, tmp_path: Path
) -> None:
    place = installed(TORCH, tools, commit, uv_cache, tmp_path)
    assert "transformers" in place.check("echo2-node", "doctor", "--json")


def test_a_machine_is_lent_until_a_group_of_its_is_accepted(operator: Installation, lent: Installation) -> None:
    status, before, said = readme.blocks("Train your model")[2], None, ""
    for _ in range(120):
        said = shell(operator, status).stdout
        accepted = int(re.findall(r"groups +([\d,]+) accepted", said)[0].replace(",", ""))
        before = accepted if before is None else before
        if accepted > before:
            return
        time.sleep(2)
    log = (lent.folder / "sh.log").read_text()
    raise AssertionError(f"no group was accepted:\n{said}\n{log}")


def test_a_volunteer_sees_what_the_node_does_and_ends_it_by_the_page_for_volunteers(lent: Installation) -> None:
    page = "docs/volunteer.md"
    named = readme.section("When something is wrong", page) + readme.section("What you earn", page)
    assert {one for one in SEEN if re.search(rf"`(echo2-node )?{one}`", named)} == SEEN.keys()
    words = [one for one in readme.blocks("Pause, boot, remove", page) if one.startswith("echo2-node ")]
    assert [one.removeprefix("echo2-node ") for one in words] == list(DONE)
    answers = {one: shell(lent, f"echo2-node {one}") for one in [*SEEN, *DONE]}
    assert {one: answer.returncode for one, answer in answers.items()} == SEEN | DONE, answers
    assert "neither systemd nor launchd runs here" in answers["service install"].stdout
    assert "add --yes" in answers["leave --forget"].stdout
    assert shell(lent, "echo2-node leave --forget --yes").returncode == 0


@pytest.mark.parametrize("command", [*readme.blocks("Try it"), *readme.in_text("Try it", "make")])
def test_a_command_of_make_has_its_target(command: str, commit: Path) -> None:
    program, *targets = shlex.split(command)
    assert program == "make"
    done = subprocess.run(["make", "--dry-run", *targets], cwd=commit, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
