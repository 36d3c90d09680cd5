"""Commands of the documents that need no running daemon, run as they stand there: on a new run folder, and on the home
of a node that has joined no run.

Other tests run the commands of README, the page for volunteers and the ten minutes to an environment; every command of
every page is parsed (test_docs.py).
"""

import importlib
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from echo2.coordinator.database.database import Database
from echo2.runtime.exit_codes import Exit
from tests.support.command_tree import PROGRAMS
from tests.support.documents import code_lines, current_documents

PREPARED = """
echo2-coord init runs/first --model tiny
echo2-coord invite --home runs/first
echo2-coord keys show --home runs/first
echo2-coord keys renew --home runs/first
echo2-coord keys rotate channel --home runs/first
echo2-coord keys export-root next.request --home runs/first
echo2-coord config get --home runs/first
echo2-coord config diff --home runs/first
echo2-coord config set learner.learning_rate=1e-4 run.batch_groups=32 --home runs/first
echo2-coord config schema
echo2-coord task ls
echo2-coord task try add --answer 7
echo2-coord market simulate --nodes 40 --ask 0.10 --rate 60 --reserve 0.005
echo2-node config set ask 0.12/h
echo2-node config set tariff 0.32
echo2-node config set slow_uplink 1
echo2-node config set devices.1.duty 50
echo2-node config get --origin
echo2-node version
echo2-node update
"""
"""In this order, before run.sqlite is there."""
READING = """
echo2-coord nodes ls --home runs/first
echo2-coord ledger export audit --home runs/first
echo2-coord ledger verify audit
echo2-coord ledger replay audit
echo2-coord rollouts ls --home runs/first
echo2-coord rollouts ls --best --most 5 --home runs/first
echo2-coord payout report --home runs/first
echo2-coord backup copies/monday.sqlite --database --home runs/first
echo2-coord restore copies/monday.sqlite --home runs/first
"""
"""In this order, once a coordinator has made the file."""
WITHOUT_A_DAEMON = """
echo2-coord status --home runs/first
echo2-coord page --home runs/first
echo2-node why
"""
"""Each says in one sentence that nothing answers."""


def words_of(commands: str) -> list[list[str]]:
    return [shlex.split(one) for one in commands.strip().splitlines()]


def run(words: list[str]) -> tuple[int, str]:
    program, *arguments = words
    result = CliRunner().invoke(importlib.import_module(PROGRAMS[program]).app, arguments)
    return result.exit_code, result.output


def test_every_command_that_is_run_here_stands_in_a_document() -> None:
    shown = []
    for path in current_documents():
        for text_line in code_lines(path.read_text()):
            try:
                shown.append(shlex.split(text_line, comments=True))
            except ValueError:  # a line of another language
                continue
    assert [one for one in words_of(PREPARED + READING + WITHOUT_A_DAEMON) if one not in shown] == []


@pytest.mark.slow
def test_the_documents_commands_run_on_a_new_run_and_a_new_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ECHO2_HOME", str(tmp_path / "node"))
    monkeypatch.setenv("ECHO2_COORD_WEB_PORT", "1")
    monkeypatch.setenv("ECHO2_PRIORITY", "normal")  # beside other tests an idle learner starves
    (tmp_path / "copies").mkdir()
    for words in words_of(PREPARED):
        code, said = run(words)
        assert code == Exit.OK, (words, said)
    Database.open(tmp_path / "runs/first/run.sqlite").close()
    for words in words_of(READING):
        code, said = run(words)
        assert code == Exit.OK, (words, said)
    for words in words_of(WITHOUT_A_DAEMON):
        code, said = run(words)
        assert (code, said.count("\n")) == (Exit.UNREACHABLE, 1), (words, said)
