"""Commands that start Python code of ours in a process of its own.

1. `-P` keeps the current folder off the search path: a file there may bear a name that we import, such as `tasks.py`.
2. These commands set no PYTHONPATH: the same interpreter finds the same installation. An owner's own is inherited, and
   tasks/gym/sets_list.py adds a folder to it for the processes that try its sets.
"""

import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of an installed package."""
    return [sys.executable, "-P", "-m", module, *arguments]


def code_command(code: str, *arguments: str) -> list[str]:
    """Return the command that runs a piece of code."""
    return [sys.executable, "-P", "-c", code, *arguments]
