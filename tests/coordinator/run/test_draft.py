"""Drafts: an init that is killed leaves one, the next init names it."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.command_line import command_options
from echo2.coordinator.run import setup
from tests.support.run_folders import NOW

KILLED = """
import os, signal, sys
from echo2.coordinator import cli
from echo2.coordinator.run import setup
setattr(setup, {where!r}, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
sys.argv = ["echo2-coord", *{words!r}]
cli.main()
"""


def killed(where: str, words: Sequence[str], repository: Path) -> None:
    """Run `init` with these words, killed where it calls the function `where` of coordinator.run.setup."""
    program = KILLED.format(where=where, words=["init", *words])
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=repository, capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("where", "holds"), [("_make_documents", "with no keys yet"), ("_settle", "with private keys of a run")]
)
@pytest.mark.slow_but("_make_documents-with no keys yet")
def test_the_next_init_names_the_draft_of_a_killed_one_and_keeps_it(
    where: str, holds: str, tmp_path: Path, model: Path, repository: Path
) -> None:
    words = [str(tmp_path / "run"), "--model", str(model), "--task", "reverse", "--yes"]
    killed(where, words, repository)
    (left,) = tmp_path.glob(".run-*")
    paths = sorted(path.relative_to(left) for path in left.rglob("*"))
    for folder, told in (("run", True), ("other", False)):
        result = CliRunner().invoke(cli.app, ["init", str(tmp_path / folder), *words[1:]])
        assert result.exit_code == 0
        assert (holds in result.stderr, f"rm -r '{left}'" in result.stderr) == (told, told)
        assert setup.load_run(tmp_path / folder, env={}, now=command_options.now()).id.hex()
    assert sorted(path.relative_to(left) for path in left.rglob("*")) == paths


def test_a_running_init_is_not_reported_as_killed(tmp_path: Path, model: Path) -> None:
    def meanwhile(part: str) -> None:
        assert CliRunner().invoke(cli.app, ["init", str(tmp_path / "run"), "--task", "none"]).stderr.count("\n") == 1

    config = setup.settings_for(str(model), {"run": {"name": "a run", "task": "reverse"}}, env={})
    setup.init(tmp_path / "run", str(model), config, now=NOW, report=meanwhile)
