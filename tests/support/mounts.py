"""A stand-in for the system's table of mounts, as psutil reads it."""

from pathlib import Path

import psutil
import pytest

_BLANK = r"\040"


def mounted(monkeypatch: pytest.MonkeyPatch, place: Path, *mounts: tuple[str, str, str]) -> None:
    """Let psutil list these mounts alone: (what, where, kind), of which a later one covers an earlier one. `place`:
    folder in which the table is written."""
    (place / "self").mkdir(parents=True, exist_ok=True)
    rows = [f"{what} {where.replace(' ', _BLANK)} {kind} rw 0 0\n" for what, where, kind in mounts]
    (place / "self" / "mounts").write_text("".join(rows))
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(place))
