"""Packages with entry points for tests: a folder that Python finds them in, without an installer."""

from pathlib import Path

import pytest


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, points: dict[str, str], package: str = "toys") -> None:
    """Make a package with entry points of the group echo2.tasks, seen by this process and by its children."""
    information = folder / f"{package}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    rows = "\n".join(f"{name} = {target}" for name, target in points.items())
    (information / "entry_points.txt").write_text(f"[echo2.tasks]\n{rows}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    monkeypatch.syspath_prepend(folder)
