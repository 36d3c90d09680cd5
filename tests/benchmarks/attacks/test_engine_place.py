"""Nodes of the red team work under versions alone whose snapshots they kept; a dead process says why."""

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio

from benchmarks.attacks.engine_place import EnginePlace, Order
from benchmarks.attacks.light_node import Terms
from benchmarks.attacks.proving_ground import last_line
from echo2.weights.store import snapshot_name

TERMS = Terms(run=bytes(32), recipient=bytes(32), task="reverse", task_version=1, era=1, version=0, root=bytes(32))


def publish(folder: Path, version: int, *, dropped: bool = False) -> None:
    """Store a version as a coordinator does, whose snapshot may be gone before anybody saw it."""
    root = bytes([version]) * 32
    if not dropped:
        (folder / "snapshots" / snapshot_name(version, root)).touch()
    with closing(sqlite3.connect(folder / "run.sqlite")) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS versions (era INTEGER, version INTEGER, root BLOB)")
        database.execute("INSERT INTO versions VALUES (1, ?, ?)", (version, root))


async def test_a_version_whose_snapshot_was_dropped_is_passed_over(tmp_path: Path) -> None:
    for name in ("snapshots", "own"):
        (tmp_path / name).mkdir()
    order = Order(
        terms=TERMS, addresses=[], page=0, database=str(tmp_path / "run.sqlite"), invite="", model="", eos=1,
        snapshots=str(tmp_path / "snapshots"), own=str(tmp_path / "own"),
    )  # fmt: skip
    async with anyio.create_task_group() as tasks:
        place = EnginePlace(order, tasks)
        seen = []
        for version, dropped in ((1, False), (2, True), (3, False)):
            publish(tmp_path, version, dropped=dropped)
            place.look()
            seen.append(place.terms().version)
    assert seen == [1, 1, 3]
    for path in (tmp_path / "snapshots").iterdir():
        path.unlink()
    place.look()
    assert place.terms().version == 3, "the snapshot was kept"


def test_the_last_line_of_a_group_of_errors_is_the_error_and_not_its_frame(tmp_path: Path) -> None:
    log = tmp_path / "attackers.log"
    assert last_line(log) == ""
    log.write_text("  | ExceptionGroup: errors\n    | FileNotFoundError: gone\n    +----------------\n")
    assert last_line(log) == "FileNotFoundError: gone"
