"""Full checkpoints take their share of the time, and the journal between two of them is bounded."""

from echo2.coordinator.learner.checkpoints.checkpoint_pace import MOST_ENTRIES, CheckpointPace


def test_checkpoints_come_as_often_as_costs_their_share_of_the_time() -> None:
    pace = CheckpointPace(0.05)
    assert pace.is_due
    pace.wrote(2.0)
    due = []
    for _ in range(5):
        pace.on_work(10.0)
        due.append(pace.is_due)
    assert due == [False, False, False, True, True]
    pace.wrote(0.4)
    pace.on_work(10.0)
    assert pace.is_due


def test_with_a_share_of_one_each_export_has_a_checkpoint() -> None:
    pace = CheckpointPace(1.0)
    pace.wrote(2.0)
    assert pace.is_due


def test_a_slow_disk_makes_no_journal_without_end() -> None:
    pace = CheckpointPace(0.05)
    pace.wrote(1e9)
    for _ in range(MOST_ENTRIES):
        assert not pace.is_due
        pace.on_work(1.0)
        pace.on_entry()
    assert pace.is_due
    pace.wrote(1e9)
    assert not pace.is_due
