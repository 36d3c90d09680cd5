"""Tell a script or plug-in that imports a module by its path of an earlier commit where the module is now.

This page goes with the first release after the one that has it. A module that became the folder of the same name
(`coordinator.database`, `coordinator.learner.ranks`, `engines.devices`, `engines.process`, `engines.sampling`) stands
in that folder.
"""

from typing import Final

MOVED: Final = {
    ("coordinator", "coordinator.settings"): (
        "config config_docs config_section market_config network_config payout_config training_config named_home"
    ),
    ("coordinator", "coordinator.database"): "schema group_commit written_rows",
    ("coordinator", "coordinator.training"): "run_services operator_socket",
    ("coordinator", "coordinator.run"): "former_identity",
    ("engines", "engines.batch"): (
        "batch_engine continuous_batch request_batch job_rollouts open_group rollout_state row_starts row_limit "
        "stepped_weights checkpoint_patches float16_range one_turn input_check never_served"
    ),
    ("engines", "engines.sampling"): "sampling_numpy sampling_reference sampling_check noise_bits",
    ("engines", "engines.process"): (
        "host supervisor versioned engine_fleet version_lock messages score_queue trials candidates device_list"
    ),
    ("engines", "engines.devices"): "gpu_remedies system_gpus nvidia_files torch_build host_memory",
    ("coordinator.learner", "coordinator.learner.objective"): (
        "advantages aggregates loss loss_terms loss_weights objective_choices surrogates fused_head step_metrics "
        "batch_loss"
    ),
    ("coordinator.learner", "coordinator.learner.batches"): (
        "batch batch_groups cut_rollouts dealing share_codec hidden_states logprobs"
    ),
    ("coordinator.learner", "coordinator.learner.ranks"): (
        "rank_group rank_orders rank_part ranked_trainer sharded_model torchrun launch row_shards local_rows "
        "split_master"
    ),
    ("coordinator.learner", "coordinator.learner.checkpoints"): (
        "checkpoint checkpoint_pace journal export replay random_state row_sources"
    ),
    ("coordinator.rollouts", "coordinator.prompts"): (
        "prompts mixed_prompts prompt_choice prompt_feed prompt_records prompt_window prompt_positions heldout_plans"
    ),
    ("coordinator.rollouts", "coordinator.verification"): (
        "submitted_group verification cross_version scorer over_time_report group_scores"
    ),
    ("coordinator.rollouts", "coordinator.leases"): (
        "expiry_budgets lease_lifetime lease_terms newcomer_odds node_rates open_lease_limit paid_work "
        "retry_times round_robin superseded_leases timely_grants lease_rows lease_window quick_nodes room_shares "
        "lease_admission delivery_record rollout_context lease_table lease_issuer absence stopped_clocks "
        "freshness"
    ),
    ("coordinator.rollouts", "coordinator.leases.kinds"): (
        "audits audit_pairs canaries canary_answers hedging overdue_leases twin_sets moving begun_table"
    ),
    ("coordinator.rollouts", "coordinator.verdicts"): (
        "verdicts second_verdicts doubted_days reviews verdict_report waiting_groups deficit_round_robin "
        "scoring_order group_verifier group_at_verdict lease_outcomes partial_verdicts stored_receipts "
        "token_storage task_results replay_buffer draw_record shortage"
    ),
    ("coordinator.rollouts", "coordinator.submissions"): (
        "submissions step_service step_loop step_queue step_table episode_record partial_reports response_log "
        "request_priority request_handler group_service barred_keys verdict_commands"
    ),
    ("coordinator.run", "coordinator.calibration"): (
        "calibrate honest_groups own_classes recalibration own_engine poker_measure model_trial task_trial"
    ),
    ("coordinator.accounts", "coordinator.calibration"): "cost_times cost_fit",
    ("coordinator", "coordinator.command_line"): "serving",
    ("coordinator.run", "coordinator.command_line"): "versions_report replay_report",
    ("coordinator.accounts", "ledger"): (
        "audited_work drawn_beacons team_work payout_facts ledger_facts ledger_audit ledger_replay export_replay "
        "tile_audit ledger_state standing"
    ),
}
"""(old package, new package) -> the modules that went from one to the other."""
RENAMED: Final = {
    "coordinator.errors": "coordinator.command_line.exit_table",
    "coordinator.main": "coordinator.command_line.process_life",
}


def new_path(dotted: str) -> str | None:
    """Return where a module of echo2 is now, by the path that it had; None: it was never there."""
    old = dotted.removeprefix("echo2.")
    package, _, name = old.rpartition(".")
    moved = [new for (from_, new), names in MOVED.items() if from_ == package and name in names.split()]
    if moved:
        return f"echo2.{moved[0]}.{name}"
    if old in RENAMED:
        return f"echo2.{RENAMED[old]}"
    parts = sorted({new for from_, new in MOVED if from_ == old})
    return " and ".join(f"echo2.{part}" for part in parts) if parts else None


class MovedModules:
    """The last of Python's finders: it finds nothing, and says where a module went."""

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:
        """Raise `ModuleNotFoundError` with the new path of a module that was moved."""
        if fullname.startswith("echo2.") and (new := new_path(fullname)) is not None:
            raise ModuleNotFoundError(f"{fullname} is now in {new}: import it from there")
