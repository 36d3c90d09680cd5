"""Drafts: an init that is killed leaves one, the next init names it."""

import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.command_line import command_options
from echo2.coordinator.run import setup
from echo2.coordinator.run.draft import drafting, left_over
from echo2.runtime.exit_codes import Exit
from echo2.runtime.lock import AlreadyLocked, lock_folder
from tests.support.run_folders import NOW
from tests.support.tiny_learner import make_model

ENDED = """
import os, signal, sys
from echo2.coordinator import cli
from echo2.coordinator.run import setup
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup lets a process and its children ignore it
setattr(setup, {where!r}, lambda *_: os.kill(os.getpid(), signal.{by}))
sys.argv = ["echo2-coord", *{words!r}]
cli.main()
"""


def ended(by: signal.Signals, where: str, words: Sequence[str], repository: Path) -> int:
    """Run `init` with these words, ended by a signal where it calls the function `where` of coordinator.run.setup;
    return its exit code."""
    program = ENDED.format(by=by.name, where=where, words=["init", *words])
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=repository, capture_output=True, timeout=60, check=False).returncode


@pytest.mark.parametrize(
    ("where", "holds"), [("_make_documents", "with no keys yet"), ("settle", "with private keys of a run")]
)
@pytest.mark.slow
def test_the_next_init_names_the_draft_of_a_killed_one_and_keeps_it(
    where: str, holds: str, tmp_path: Path, repository: Path
) -> None:
    words = [str(tmp_path / "run"), "--model", str(make_model(tmp_path / "model")), "--task", "reverse", "--yes"]
    assert ended(signal.SIGKILL, where, words, repository) == -signal.SIGKILL
    (left,) = tmp_path.glob(".run-*")
    paths = sorted(path.relative_to(left) for path in left.rglob("*"))
    for folder, told in (("run", True), ("other", False)):
        result = CliRunner().invoke(cli.app, ["init", str(tmp_path / folder), *words[1:]])
        assert result.exit_code == 0
        assert (holds in result.stderr, f"rm -r {left}" in result.stderr) == (told, told)
        assert setup.load_run(tmp_path / folder, env={}, now=command_options.now()).id.hex()
    assert sorted(path.relative_to(left) for path in left.rglob("*")) == paths


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGHUP])
def test_an_init_that_is_told_to_end_leaves_nothing(by: signal.Signals, tmp_path: Path, repository: Path) -> None:
    words = [str(tmp_path / "run"), "--model", str(make_model(tmp_path / "model")), "--task", "reverse", "--yes"]
    assert ended(by, "_make_documents", words, repository) == Exit.INTERRUPTED
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_next_init_removes_empty_drafts_and_none_that_is_at_work(tmp_path: Path) -> None:
    target = tmp_path / "a run"
    empty, other, held = (tmp_path / name for name in (".a run-abcdefgh", ".b-abcdefgh", ".a run-ijklmnop"))
    for folder in (empty, other, held):
        folder.mkdir()
    (held / "keys").mkdir()
    with drafting(target) as draft:
        (sentence,) = left_over(target)
        assert shlex.split(sentence.partition("remove it with ")[2]) == ["rm", "-r", str(held)]
        assert sorted(tmp_path.iterdir()) == sorted([other, held, draft.path])


def test_a_draft_that_another_init_removes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other `init` holds the lock of the first draft, and has removed the second one."""
    made, locks = [], []

    def meanwhile(**asked: str) -> str:
        path = make(**asked)
        made.append(Path(path))
        if len(made) == 1:
            locks.append(lock_folder(made[0]))
        if len(made) == 2:
            made[1].rmdir()
        return path

    make = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", meanwhile)
    with drafting(tmp_path / "run") as draft:
        assert draft.path == made[2]
        with pytest.raises(AlreadyLocked):
            lock_folder(draft.path)
    locks[0].release()


def test_a_running_init_is_not_reported_as_killed(tmp_path: Path, model: Path) -> None:
    def meanwhile(part: str) -> None:
        assert CliRunner().invoke(cli.app, ["init", str(tmp_path / "run"), "--task", "none"]).stderr.count("\n") == 1

    config = setup.settings_for(str(model), {"run": {"name": "a run", "task": "reverse"}}, env={})
    setup.init(tmp_path / "run", str(model), config, now=NOW, report=meanwhile)
