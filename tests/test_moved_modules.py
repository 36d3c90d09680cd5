"""A script that imports a module by its path of an earlier commit is told where the module is now."""

import importlib
import subprocess
import sys

import pytest

from echo2._moved import MOVED, RENAMED, new_path
from tests.support.paths import ROOT

OLD = [f"{old}.{name}" for (old, _), names in MOVED.items() for name in names.split()] + list(RENAMED)


def is_module(dotted: str) -> bool:
    """Tell whether a module of echo2 stands at this path."""
    return (ROOT / f"{dotted.removeprefix('echo2.').replace('.', '/')}.py").exists()


def test_every_old_path_leads_to_a_module_and_is_none_itself() -> None:
    assert len(set(OLD)) == len(OLD)
    assert [old for old in OLD if is_module(old) or not is_module(new_path(old) or "")] == []


@pytest.mark.parametrize(
    ("statement", "new"),
    [
        ("import echo2.engines.versioned", "echo2.engines.process.versioned"),
        ("from echo2.engines.host import main", "echo2.engines.process.host"),
        ("from echo2.coordinator import config", "echo2.coordinator.settings.config"),
        ("from echo2.coordinator.errors import TABLE", "echo2.coordinator.command_line.exit_table"),
        ("import echo2.coordinator.rollouts.lease_table", "echo2.coordinator.leases"),
    ],
)
def test_an_import_by_an_old_path_ends_with_the_new_one(statement: str, new: str) -> None:
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: echo2.")
    assert new in last


def test_a_path_that_never_was_is_no_module_as_everywhere() -> None:
    assert new_path("echo2.coordinator.nothing") is None
    with pytest.raises(ModuleNotFoundError, match="No module named"):
        importlib.import_module("echo2.coordinator.nothing")
