"""Say beside a figure which command made it, and at which commit (benchmarks/claims.py)."""

import subprocess
import textwrap
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).absolute().parents[2]


def figure_mark(command: str, data: str | None = None) -> str:
    """Return the comment of a figure, and the sentence that a reader sees. `data`: the file or folder of docs/results
    that it is drawn from, whose last commit counts; None, or data that differ from their commit: the present commit."""
    commit = "HEAD"
    if data is not None and not _git("status", "--porcelain", "--", f"docs/results/{data}"):
        commit = _git("log", "-1", "--format=%H", "--", f"docs/results/{data}") or commit
    short = _git("rev-parse", "--short=8", commit)
    return (
        f"<!-- figure: {command} @ {short} -->\n"
        f"Made by `{command}` at commit `{short}`, on [the machine of all results](README.md)."
    )


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(_ROOT), *words], capture_output=True, text=True, check=True).stdout.strip()


def prose(text: str) -> str:
    """Return a paragraph in lines as long as those of the documents."""
    return textwrap.fill(text, 119, break_long_words=False, break_on_hyphens=False)
