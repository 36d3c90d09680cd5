"""The paths of the checkout and of its golden vectors, so that a test may move between folders."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "tests" / "vectors"
