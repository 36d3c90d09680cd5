"""The window of submissions under way."""

from echo2.node.rollouts.submission_window import MOST_BYTES, MOST_UNDER_WAY, SubmissionWindow
from echo2.node.rollouts.worker import MOST_LEASE_REQUESTS
from echo2.p2p.limits.request_slots import PER_PARTY, PER_PEER


def test_the_window_doubles_with_each_round_trip_up_to_its_bound() -> None:
    window, sizes = SubmissionWindow(), []
    for _ in range(6):
        sizes.append(window.most)
        for _ in range(window.most):
            window.note_answer(0.15)
    assert sizes == [1, 2, 4, 8, MOST_UNDER_WAY, MOST_UNDER_WAY]


def test_answers_that_wait_in_a_queue_open_the_window_no_further() -> None:
    window = SubmissionWindow()
    for _ in range(3):
        window.note_answer(0.15)
    for _ in range(20):
        window.note_answer(0.4)
    assert window.most == 4


def test_a_slower_route_is_no_queue_for_long() -> None:
    window = SubmissionWindow()
    window.note_answer(0.02)
    for _ in range(100):
        window.note_answer(0.3)
    assert window.most == MOST_UNDER_WAY


def test_a_coordinator_that_turns_submissions_away_gets_fewer_at_once() -> None:
    window = SubmissionWindow()
    for _ in range(40):
        window.note_answer(0.15)
    sizes = []
    for _ in range(6):
        window.halve()
        sizes.append(window.most)
    assert sizes == [8, 4, 2, 1, 1, 1]


def test_bytes_under_way_are_bounded_and_one_large_submission_goes_by_itself() -> None:
    window = SubmissionWindow()
    for _ in range(40):
        window.note_answer(0.15)
    assert window.admits(2 * MOST_BYTES)
    window.begin(2 * MOST_BYTES)
    assert not window.admits(1)
    window.end(2 * MOST_BYTES)
    window.begin(MOST_BYTES // 2)
    assert window.admits(MOST_BYTES // 2)
    assert not window.admits(MOST_BYTES // 2 + 1)


def test_a_full_window_beside_requests_for_leases_fits_what_a_coordinator_takes_of_a_peer_at_once() -> None:
    assert MOST_UNDER_WAY + MOST_LEASE_REQUESTS < PER_PEER
    assert MOST_UNDER_WAY < PER_PARTY
