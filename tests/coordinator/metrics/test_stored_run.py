"""What a run folder has of its run, read without a coordinator."""

from pathlib import Path

from echo2.coordinator.database.database import Database
from echo2.coordinator.metrics.history import History
from echo2.coordinator.metrics.stored_run import stored_lines
from echo2.coordinator.metrics.views import StepPoint, VersionRow
from echo2.runtime.units import minute
from tests.support.run_folders import NOW, make_run, write_model


def test_a_folder_without_a_file_and_one_that_has_worked_are_summarised(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", write_model(tmp_path / "model")).folder
    rows = list(stored_lines(folder, NOW))
    assert rows[1] == f"phase    no coordinator runs in {folder.path}; no step yet"
    assert rows[2].startswith(f"groups   not known: no {folder.database}")
    history = History(folder.history)
    history.add(StepPoint(step=3, at=NOW, reward=0.5, success=0.5, staleness=0.0, seconds=1.0, metrics={}))
    history.add(VersionRow(version=2, era=1, at=NOW, diff_bytes=1, full_bytes=2, first_node_seconds=None))
    history.close()
    with Database.open(folder.database, now=NOW) as database:
        database.do("INSERT INTO sums VALUES (x'', 'accepted', 'ok', 7, 7, 0, 0, 0)")
    rows = list(stored_lines(folder, NOW))
    assert rows[1] == f"phase    no coordinator runs in {folder.path}; step 3, made {minute(NOW)}; version 2"
    assert rows[2].startswith("groups   7 accepted, 0 refused")
    assert rows[3] == "nodes    0 known"
    folder.database.write_bytes(b"no database")
    assert list(stored_lines(folder, NOW))[2].startswith("groups   not known: ")
