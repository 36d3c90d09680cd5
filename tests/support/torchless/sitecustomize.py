"""Hides torch: Python imports this module at its start where this folder stands in PYTHONPATH, in child processes too.

A process of these tests then is as on a machine on which torch and transformers are not installed.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

HIDDEN = {"torch", "transformers"}


class TorchlessFinder(PathFinder):
    """Finds every installed package but those that are hidden."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module as Python does, unless it is hidden."""
        return None if fullname.partition(".")[0] in HIDDEN else super().find_spec(fullname, path, target)


sys.meta_path[:] = [TorchlessFinder if finder is PathFinder else finder for finder in sys.meta_path]
