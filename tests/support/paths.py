"""The paths of the checkout and of its golden vectors, so that a test may move between folders."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "vectors"
PACKAGES = tuple(sorted(path.name for path in (ROOT / "echo2").iterdir() if path.is_symlink()))
"""Folders at the root that are imported as `echo2.NAME`."""
PLAYED = ("benchmarks/attacks", "benchmarks/payments", "benchmarks/plays")
"""Rooms of the checkout whose code commands of the product run; they keep the laws of the packages."""
