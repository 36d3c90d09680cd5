"""The attacks that `echo2-coord redteam` does not try: each names the test that holds it, or the reason there is none.

Attacks on nodes need a coordinator that lies, and faults of machines need `kill -9` and full disks: tests do both. The
tests are part of the source, not of the installed package.
"""

from typing import Final

_LIES = "tests/node/test_lies.py::test_a_false_document_about_weights_leaves_the_loaded_version"

HELD_ELSEWHERE: Final[dict[str, str]] = {
    "forged or tampered document": _LIES,
    "rollback": _LIES,
    "freeze": "tests/node/test_lies.py::test_a_node_notices_and_reports_a_frozen_view_of_the_run",
    "fast-forward": "tests/node/trust/test_trusted_set.py::"
    "test_a_new_policy_key_heals_a_fast_forward_by_the_stolen_one",
    "mix-and-match": _LIES,
    "endless data": _LIES,
    "poisoned chunk": "tests/p2p/swarm/test_exchange.py::"
    "test_a_poisoner_is_dropped_after_two_chunks_and_nothing_bad_is_stored_or_forwarded",
    "eclipse": "tests/node/links/test_neighbours.py::test_one_subnet_is_only_a_part_of_the_neighbourhood",
    "decompression bomb": "tests/p2p/https/test_listener.py::test_a_compressed_body_is_not_decompressed",
    "safetensors header abuse": "tests/weights/fuzz_files.py",
    "forged reward": "no test: a submission has no field for a reward (docs/protocol/leases-and-rollouts.md)",
    "throughput lie": "tests/coordinator/leases/test_newcomer_odds.py::"
    "test_leases_that_free_keys_give_back_at_once_lower_their_chance_alone",
    "flaky honest GPU": "tests/coordinator/verification/test_near_ties.py::"
    "test_an_honest_key_loses_nothing_where_a_neighbour_has_spent_the_partys_near_ties",
    "coordinator kill -9 at any point": "tests/coordinator/submissions/test_group_service_kill.py::"
    "test_kill_nine_at_any_moment_loses_nothing_and_doubles_nothing",
    "torn database": "tests/coordinator/database/test_database.py::test_a_torn_page_is_detected_at_open",
    "node crash in mid-rollout": "tests/node/test_killed_engines.py::test_an_engine_killed_in_mid_lease_costs_no_group",
    "partition, latency, loss": "tests/network/test_faults.py::test_a_node_cut_off_catches_up_when_the_partition_heals",
    "clock skew": "tests/node/trust/test_run_clock.py::test_a_clock_that_is_a_day_or_a_year_wrong_stops_no_work",
    "disk full": "tests/coordinator/database/test_database.py::test_a_full_disk_rolls_back_and_is_reported",
    "ledger equivocation": "tests/network/test_ledger_witnesses.py::"
    "test_two_nodes_that_were_shown_two_histories_find_it_and_stop",
    "stolen or cloned node key": "tests/coordinator/accounts/test_key_successor.py::"
    "test_the_whole_standing_passes_on_and_the_old_key_is_out_for_good",
    "second daemon with one key": "tests/coordinator/nodes/test_key_fence.py::"
    "test_of_two_copies_of_a_home_one_wins_and_they_do_not_push_each_other_out_in_turn",
    "payout rail with unknown result": "tests/coordinator/payouts/test_payout_sender.py::"
    "test_each_payment_is_one_transfer_and_each_fault_ends_in_an_answer_or_a_question",
}
"""Attack of the design's catalogue -> the test, or the reason."""
