"""List the figures in the documents whose code has changed since they were measured: `python -m benchmarks.claims`.

1. A figure stands beside its command and commit: in a comment, `<!-- figure: python -m benchmarks.diff @ 163a8cd7 -->`,
   which benchmarks/harness/figure_mark.py writes, or in the last two cells of a table's row. Figures of the log and of
   the ADRs stay as they were measured.
2. Its code are the modules of `benchmarks/` that its command runs, as far as they import each other, and each package
   of echo2 that one of them imports; all packages, where one of them starts a daemon. For a target of make it is what
   the target's recipe names.
3. A command that names no benchmark, or an option or a part (`run`, `draw`) that the benchmark does not have, is a
   fault: exit status 1. So is a figure without a commit, or with one that git does not know, unless it was given a part
   of the history alone.
"""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).absolute().parents[1]
PYTHON: Final = "python -m benchmarks."
PLAYED: Final = {"echo2-coord redteam": "attacks.redteam_app", "echo2-coord simulate": "plays.simulate_app"}
"""Commands of the operator that run a module of `benchmarks`."""
_COMMENT: Final = re.compile(r"<!-- figure: (.+?)(?: @ ([0-9a-f]{7,40}))? -->")
_ROW: Final = re.compile(r"\| `((?:python -m benchmarks\.|make )[^`]+)` \| `([0-9a-f]{7,40})` \|$")
DAEMONS: Final = ("coordinator.cli", "coordinator.daemon", "coordinator.demo.demo", "node.cli", "node.daemon")
"""Modules of echo2 that are, or start, a whole daemon."""
_SHOWN: Final = 4
"""Most changed files that are named."""


class FigureMark(NamedTuple):
    """Where a figure came from. `place`: document and line. `command`: that made it, at `commit`; empty: it names
    none, which is a fault."""

    place: str
    command: str
    commit: str


def documents(root: Path = ROOT) -> list[Path]:
    """Return the documents whose figures are to be true now."""
    docs = root / "docs"
    return [
        root / "README.md",
        *(path for path in sorted(docs.rglob("*.md")) if not {docs / "log", docs / "adr"} & set(path.parents)),
    ]


def marks(root: Path = ROOT) -> list[FigureMark]:
    """Return all marks of figures, in the order of the documents."""
    return [
        FigureMark(f"{path.relative_to(root)}:{number}", command, commit)
        for path in documents(root)
        for number, text_line in enumerate(path.read_text().splitlines(), 1)
        for command, commit in [*_COMMENT.findall(text_line), *_ROW.findall(text_line)]
    ]


def entry_of(command: str) -> Path | None:
    """Return the module that a command runs; None: there is none."""
    known = next((module for program, module in PLAYED.items() if f"{command} ".startswith(f"{program} ")), None)
    name = (known or command.removeprefix(PYTHON).split()[0]).replace(".", "/")
    ends = (ROOT / "benchmarks" / f"{name}{end}" for end in (".py", "/__main__.py"))
    return next((path for path in ends if path.exists()), None)


def fault_of(command: str) -> str | None:
    """Return why a command does not start; None: it does (rule 3)."""
    if command.startswith("make "):
        return None if _recipe(command.removeprefix("make ")) is not None else "there is no such target"
    if not command.startswith((PYTHON, *PLAYED)):
        return f"a figure's command begins with `{PYTHON}`, `make `, or is {' or '.join(PLAYED)}"
    entry = entry_of(command)
    if entry is None:
        return "there is no such benchmark"
    if command.startswith(tuple(PLAYED)):
        return None  # tests/docs/test_docs.py checks every command of the programs
    words, known = shlex.split(command.removeprefix(PYTHON))[1:], set(_options(entry))
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    if unknown:
        return f"it has no option {', '.join(unknown)}"
    parts = set(_parts(entry))
    if parts and not parts & set(words[:1]):
        return f"its first word is one of {', '.join(sorted(parts))}"
    return None


def _options(entry: Path) -> Iterator[str]:
    """Yield the options that a benchmark's own module adds to its parser."""
    for call in _calls(entry, "add_argument"):
        yield from _texts(call.args)


def _parts(entry: Path) -> Iterator[str]:
    """Yield the first words that a benchmark's own module takes, as `run` and `draw`; none where it takes no such."""
    for call in _calls(entry, "add_parser"):
        yield from _texts(call.args[:1])
    for call in _calls(entry, "add_argument"):
        positional = not any(name.startswith("-") for name in _texts(call.args))
        for one in call.keywords if positional else ():
            if one.arg == "choices" and isinstance(one.value, ast.List):
                yield from _texts(one.value.elts)


def _calls(entry: Path, method: str) -> Iterator[ast.Call]:
    """Yield the calls of a method in a module."""
    for node in ast.walk(ast.parse(entry.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node


def _texts(nodes: Sequence[ast.expr]) -> list[str]:
    """Return the texts among these expressions."""
    return [one.value for one in nodes if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def code_of(command: str) -> list[str]:
    """Return the code of a figure, as paths for git (rule 2)."""
    if command.startswith("make "):
        words = re.findall(r"[\w./-]+", _recipe(command.removeprefix("make ")) or "")
        return sorted({word for word in words if "/" in word and (ROOT / word).exists()})
    entry = entry_of(command)
    assert entry is not None, "its command has been checked"
    modules, packages, left = set[Path](), set[str](), [entry]
    while left:
        path = left.pop()
        if path not in modules:
            modules.add(path)
            for name in _imported(path):
                if name.startswith("benchmarks"):
                    left += _modules(name)
                elif name.removeprefix("echo2.") in DAEMONS:
                    packages |= {f":(glob){one.name}/**/*.py" for one in (ROOT / "echo2").iterdir() if one.is_symlink()}
                elif (package := _package(name)) is not None:
                    packages.add(f":(glob){package}/*.py")
    return [*sorted(path.relative_to(ROOT).as_posix() for path in modules), *sorted(packages)]


@cache
def _imported(path: Path) -> frozenset[str]:
    """Return the modules, and the names in them, that a module imports, anywhere in it."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} if re.fullmatch(r"(?:benchmarks|echo2)(?:\.\w+)+", node.value) else set()
    return frozenset(names)


def _modules(name: str) -> list[Path]:
    path = ROOT / name.replace(".", "/")
    return [one for one in (path.with_suffix(".py"), path / "__main__.py") if one.is_file()]


def _package(name: str) -> str | None:
    """Return the folder of the package of echo2 that a module lies in, or that is named itself."""
    parts = name.split(".")
    if parts[0] != "echo2" or len(parts) < 2:
        return None
    folder = "/".join(parts[1:])
    if (ROOT / folder).is_dir():
        return folder
    return "/".join(parts[1:-1]) if (ROOT / f"{folder}.py").is_file() else None


@cache
def _recipe(target: str) -> str | None:
    """Return a target's needs and recipe in the Makefile; None: there is no such target."""
    makefile = (ROOT / "Makefile").read_text()
    found = re.search(rf"^{re.escape(target)}:(.*(?:\n\t.*)*)", makefile, re.MULTILINE)
    return None if found is None else found[1]


def changed(mark: FigureMark) -> list[str] | None:
    """Return the files of a figure's code that differ from those of its commit; None: git does not know the commit."""
    command = ["git", "-C", str(ROOT), "diff", "--name-only", mark.commit, "--", *code_of(mark.command)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else None


def outdated(data: Path, command: str) -> str | None:
    """Return why no run of `command` is added to a file of runs: those in it are of other code. None: they are of
    today's, or the file is not as git has it, since it is being measured, or is not there."""
    if not data.exists():
        return None
    commit = _told_by_git("log", "-1", "--format=%h", "--abbrev=8", "--", str(data))
    if not commit or _told_by_git("status", "--porcelain", "--", str(data)):
        return None
    files = changed(FigureMark(data.name, command, commit))
    if not files:
        return None
    return (
        f"{data.name} was measured at {commit}, and its code has changed since ({', '.join(files[:_SHOWN])}, in all "
        f"{len(files)} files): its figures and today's are not of one table. Remove {data} to measure all of it anew."
    )


def _told_by_git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def has_history() -> bool:
    """Tell whether git knows all commits here: not in a shallow clone, nor in an archive without git."""
    return _told_by_git("rev-parse", "--is-shallow-repository") == "false"


def main() -> int:
    """Print a line for each figure whose code has changed, and each fault; return the exit status."""
    every, faults, old, whole = marks(), 0, 0, has_history()
    for mark in every:
        fault = fault_of(mark.command) or (None if mark.commit else "a figure names a commit")
        files = None if fault else changed(mark)
        if fault or files is None:
            faults += 1 if fault or whole else 0
            print(f"{mark.place}: `{mark.command}` @ {mark.commit}: {fault or 'git does not know this commit'}")
        elif files:
            old += 1
            more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
            print(f"{mark.place}: `{mark.command}` @ {mark.commit}: changed since: {', '.join(files[:_SHOWN])}{more}")
    print(f"{len(every)} figures; the code of {old} has changed since; {faults} faults")
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
