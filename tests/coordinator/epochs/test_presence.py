"""Nodes that count as here: keys are free, and take no place of a node that works."""

from echo2.coordinator.epochs.presence import MOST_NEWCOMERS, MOST_STRANGERS, MOST_WORKERS, Kind, Presence


def test_keys_without_work_keep_out_no_node_that_works() -> None:
    presence = Presence(600_000)
    presence.note("worker", "home", 0, Kind.WORKER)
    presence.note("newcomer", "other", 0, Kind.NEWCOMER)
    for number in range(MOST_WORKERS + MOST_NEWCOMERS):
        presence.note(f"key {number}", "", 1, Kind.STRANGER)
    here = presence.here(2)
    assert {"worker", "newcomer"} < set(here)
    assert len(here) == MOST_STRANGERS + 2
    for number in range(MOST_WORKERS + MOST_NEWCOMERS):
        presence.note(f"ask {number}", "", 3, Kind.NEWCOMER)
    here = presence.here(4)
    assert "worker" in here
    assert "newcomer" not in here
    assert len(here) == MOST_STRANGERS + MOST_NEWCOMERS + 1
    assert presence.party("worker") == "home"


def test_a_node_that_has_worked_since_is_here_once() -> None:
    presence = Presence(600_000)
    presence.expect([("node", Kind.NEWCOMER)], 0)
    presence.note("node", "home", 1, Kind.WORKER)
    presence.expect([("node", Kind.NEWCOMER)], 2)
    assert presence.here(2) == ["node"]
    assert presence.party("node") == "home"
    assert presence.here(600_002) == []
