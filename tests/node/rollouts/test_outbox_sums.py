"""The sums of an outbox: those of its submissions, whatever became of them."""

import sqlite3
from contextlib import closing
from pathlib import Path

from echo2.node.rollouts.outbox import SCHEMA


def test_sums_follow_the_submissions_and_no_question_of_status_reads_all_of_them(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "outbox.sqlite")) as file:
        file.executescript(SCHEMA)
        file.executemany(
            "INSERT OR IGNORE INTO submissions (lease, state, hash, made) VALUES (?, 'queued', x'', 0)",
            [(bytes([number]),) for number in (0, 1, 2, 3, 4, 0)],
        )
        for changes in (
            "state = 'received' WHERE lease <= x'03'",
            "state = 'accepted', code = 'quarantine', weight = 5 WHERE lease <= x'01'",
            "state = 'accepted', code = '', weight = 7 WHERE lease = x'00'",
            "state = 'refused', code = 'late' WHERE lease = x'03'",
        ):
            file.execute(f"UPDATE submissions SET {changes}")
        counted = "SELECT state, code, count(*), sum(weight) FROM submissions GROUP BY state, code"
        assert file.execute("SELECT * FROM sums").fetchall() == file.execute(counted).fetchall()
        lost = "EXPLAIN QUERY PLAN SELECT lease FROM submissions WHERE proved > 1 ORDER BY lease"
        assert "without_entry" in file.execute(lost).fetchone()[3]
