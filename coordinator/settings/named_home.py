"""Name the run folder in messages: in the operator's commands, and where it holds no run."""

import shlex
from pathlib import Path


def no_run_in(folder: Path) -> str:
    """Return the sentence for a command whose folder has no run."""
    return f"no run in {folder}: name its folder with --home, or make one with `echo2-coord init {folder}`"


def with_home(command: str, home: Path) -> str:
    """Return a command of the operator that names its run folder, unless that is the present one."""
    return command if home == Path() else f"{command} --home {shlex.quote(str(home))}"
