"""Tell a script or plug-in that imports a module by its path of an earlier commit where the module is now.

This page goes with the first release after the one that has it. A module that became the folder of the same name
(`coordinator.database`, `coordinator.learner.ranks`, `engines.devices`, `engines.process`, `engines.sampling`) stands
in that folder.
"""

from typing import Final

MOVED: Final = {
    ("coordinator.accounts", "ledger"): (
        "audited_work balance_waits drawn_beacons export_replay ledger_audit ledger_facts ledger_replay "
        "ledger_state payout_facts team_work tile_audit"
    ),
    ("coordinator.accounts", "coordinator.calibration"): "cost_fit cost_times",
    ("engines", "runtime"): "host_memory",
    ("engines.devices", "runtime"): "host_memory",
    ("coordinator.accounts", "coordinator.publishing"): "foreign_heads",
    ("coordinator.accounts", "coordinator.nodes"): (
        "key_fence node_names node_registry nodes_report operator_remarks sightings teams trusted_parties"
    ),
    ("coordinator.accounts", "coordinator.ledger_files"): "ledger_backup ledger_export log_commands stored_state",
    ("coordinator", "coordinator.settings"): (
        "config config_docs config_section market_config named_home network_config payout_config training_config"
    ),
    ("coordinator", "coordinator.run"): "former_identity",
    ("coordinator", "coordinator.database"): "group_commit schema written_rows",
    ("coordinator.learner", "coordinator.learner.objective"): (
        "advantages aggregates batch_loss fused_head loss loss_terms loss_weights step_metrics surrogates"
    ),
    ("coordinator.learner", "coordinator.learner.batches"): (
        "batch batch_groups cut_rollouts dealing hidden_states logprobs share_codec"
    ),
    ("coordinator.learner", "coordinator.learner.checkpoints"): (
        "checkpoint checkpoint_pace export journal random_state replay row_sources"
    ),
    ("coordinator.learner", "coordinator.learner.ranks"): (
        "launch local_rows rank_group rank_orders rank_part ranked_trainer row_shards sharded_model "
        "split_master torchrun"
    ),
    ("coordinator.learner", "coordinator.settings"): "objective_choices",
    ("coordinator", "coordinator.training"): "operator_socket run_services",
    ("coordinator.rollouts", "coordinator.leases"): (
        "absence delivery_record expiry_budgets lease_admission lease_issuer lease_lifetime lease_rows "
        "lease_table lease_terms lease_window newcomer_odds node_rates open_lease_limit paid_work "
        "retry_times rollout_context room_shares round_robin stopped_clocks superseded_leases timely_grants twin_sets"
    ),
    ("coordinator.rollouts", "coordinator.leases.kinds"): "audit_pairs audits canaries canary_answers",
    ("coordinator.rollouts", "coordinator.submissions"): (
        "barred_keys episode_record group_service request_handler request_priority "
        "response_log step_loop step_queue step_service step_table submissions verdict_commands"
    ),
    ("coordinator.rollouts", "coordinator.verification"): (
        "cross_version group_scores scorer submitted_group verification"
    ),
    ("coordinator.rollouts", "coordinator.verdicts"): (
        "deficit_round_robin doubted_days draw_record group_at_verdict group_verifier lease_outcomes "
        "replay_buffer reviews scoring_order second_verdicts shortage stored_receipts "
        "task_results token_storage verdict_report verdicts waiting_groups"
    ),
    ("coordinator.rollouts", "coordinator.metrics"): "freshness",
    ("coordinator.rollouts", "coordinator.prompts"): (
        "mixed_prompts prompt_choice prompt_feed prompt_positions prompt_records prompt_window prompts"
    ),
    ("coordinator.rollouts", "coordinator.command_line"): "over_time_report",
    ("coordinator.run", "coordinator.calibration"): (
        "calibrate honest_groups model_trial own_classes own_engine poker_measure recalibration task_trial"
    ),
    ("coordinator.run", "coordinator.command_line"): "replay_report versions_report",
    ("coordinator.run", "coordinator.database"): "run_folder",
    ("coordinator", "coordinator.command_line"): "serving",
    ("coordinator.web", "coordinator.ledger_files"): "page_client",
    ("coordinator.web", "coordinator.metrics"): "status",
    ("engines", "engines.batch"): (
        "batch_engine checkpoint_patches continuous_batch float16_range input_check job_rollouts "
        "open_group request_batch rollout_state row_limit row_starts stepped_weights"
    ),
    ("engines", "engines.process"): (
        "candidates device_list engine_fleet host messages score_queue supervisor trials version_lock versioned"
    ),
    ("engines", "engines.devices"): "gpu_remedies nvidia_files system_gpus torch_build",
    ("engines", "engines.sampling"): "noise_bits sampling_check sampling_numpy sampling_reference",
}
"""(old package, new package) -> the modules that went from one to the other."""
RENAMED: Final = {
    "coordinator.accounts.standing": "coordinator.accounts.key_accounts",
    "coordinator.errors": "coordinator.command_line.exit_table",
    "coordinator.leases.kinds.twin_sets": "coordinator.leases.twin_sets",
    "coordinator.main": "coordinator.command_line.process_life",
    "coordinator.metrics.statistics": "runtime.quantiles",
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
