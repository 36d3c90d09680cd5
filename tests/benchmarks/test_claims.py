"""Figures in the documents: their commands, their commits, and the code behind them."""

import re

import pytest

from benchmarks import claims
from benchmarks.claims import ROOT, FigureMark
from benchmarks.harness.figure_mark import figure_mark
from benchmarks.staleness import __main__ as staleness


def test_every_figure_of_the_documents_has_a_command_that_starts() -> None:
    every = claims.marks()
    assert len(every) > 10
    assert [(mark.place, fault) for mark in every if (fault := claims.fault_of(mark.command))] == []
    assert [mark.place for mark in every if not mark.commit] == []


def test_every_page_of_results_says_where_its_figures_came_from() -> None:
    marked = {mark.place.partition(":")[0] for mark in claims.marks()}
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "results").glob("*.md")}
    assert pages - marked == set()
    measured = (ROOT / "README.md").read_text().partition("## Measured")[2].partition("\n## ")[0]
    rows = [row for row in measured.splitlines() if row.startswith("| ") and "| command |" not in row]
    claimed = {mark[1:] for mark in claims.marks() if mark.place.startswith("README.md:")}
    assert len(rows) == len(claimed)
    assert claimed - {mark[1:] for mark in claims.marks() if mark.place.startswith("docs/results/README.md:")} == set()


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("python -m benchmarks.diff --quick", None),
        ("python -m benchmarks.broadcast.gossip --star 200", None),
        ("make test-dist", None),
        ("echo2-coord redteam --quick", None),
        ("python -m benchmarks.gone", "there is no such benchmark"),
        ("python -m benchmarks.diff --gone --quick", "it has no option --gone"),
        ("python -m benchmarks.modes walk", "its first word is one of draw, run"),
        ("python -m benchmarks.curves --seed 1 --folder FOLDER", "its first word is one of draw, run"),
        ("python -m benchmarks.curves run gcd --seed 1 --folder FOLDER", None),
        ("make gone", "there is no such target"),
        ("python -m pytest", "a figure's command begins with"),
    ],
)
def test_a_command_that_does_not_start_is_a_fault(command: str, fault: str | None) -> None:
    said = claims.fault_of(command)
    assert said == fault or (fault is not None and said is not None and said.startswith(fault))


def test_the_code_of_a_figure_is_its_modules_and_the_packages_they_import() -> None:
    code = claims.code_of("python -m benchmarks.diff --quick")
    assert {"benchmarks/diff/__main__.py", "benchmarks/diff/speed.py", "benchmarks/harness/bench.py"} <= set(code)
    assert ":(glob)weights/*.py" in code
    assert not any(path.startswith("benchmarks/load/") for path in code)
    assert "tests/dist" in claims.code_of("make test-dist")
    daemons = claims.code_of("python -m benchmarks.bubble")
    assert {":(glob)coordinator/**/*.py", ":(glob)node/**/*.py", ":(glob)p2p/**/*.py"} <= set(daemons)
    assert ":(glob)node/**/*.py" not in code


def test_a_mark_is_read_as_it_is_written() -> None:
    (known,) = claims._COMMENT.findall(figure_mark("python -m benchmarks.staleness run", "staleness.json"))
    assert known[0] == "python -m benchmarks.staleness run"
    assert re.fullmatch("[0-9a-f]{8,}", known[1])


def test_a_commit_that_git_does_not_know_is_told_from_unchanged_code() -> None:
    assert claims.changed(FigureMark("a.md:1", "python -m benchmarks.diff", "0" * 40)) is None


def test_a_fault_ends_with_status_1_and_changed_code_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = FigureMark("a.md:1", "python -m benchmarks.diff", "163a8cd7")
    monkeypatch.setattr(claims, "marks", lambda: [mark])
    monkeypatch.setattr(claims, "changed", lambda mark: ["weights/a.py"])
    assert claims.main() == 0
    assert "a.md:1: `python -m benchmarks.diff` @ 163a8cd7: changed since: weights/a.py" in capsys.readouterr().out
    monkeypatch.setattr(claims, "marks", lambda: [mark._replace(command="python -m benchmarks.gone")])
    assert claims.main() == 1
    monkeypatch.setattr(claims, "marks", lambda: [mark._replace(commit="")])
    monkeypatch.setattr(claims, "has_history", lambda: False)
    assert claims.main() == 1


def test_no_run_is_added_to_runs_of_other_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ROOT / "docs" / "results" / "staleness.json"
    monkeypatch.setattr(claims, "changed", lambda mark: ["benchmarks/learning.py"])
    monkeypatch.setattr(claims, "_told_by_git", lambda *words: "37ac506e" if words[0] == "log" else "")
    assert staleness.main(["run"]) == 2
    assert "staleness.json was measured at 37ac506e, and its code has changed since" in capsys.readouterr().out
    assert "decoupled, rate 0.333, S 0, seed 0" in data.read_text(), "it stays as it is"
    monkeypatch.setattr(claims, "_told_by_git", lambda *words: "37ac506e")
    assert claims.outdated(data, "python -m benchmarks.staleness run") is None, "it is being measured"
    monkeypatch.setattr(claims, "_told_by_git", lambda *words: "")
    assert claims.outdated(data, "python -m benchmarks.staleness run") is None, "git does not know it"
    gone = ROOT / "docs" / "results" / "figures-that-were-removed.json"
    monkeypatch.setattr(claims, "_told_by_git", lambda *words: "37ac506e" if words[0] == "log" else "")
    assert claims.outdated(gone, "python -m benchmarks.staleness run") is None, "its runs were removed in a commit"
