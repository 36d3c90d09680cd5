"""Each rule of the guard strikes where it should and nowhere else."""

import math
import random
from collections.abc import Mapping
from itertools import count
from typing import Final, get_args

import msgspec
import pytest

from echo2.coordinator.settings.config import GuardKind
from echo2.coordinator.training.guard_rules import LEAST_NORMS, SIGNAL_STEPS, STEP_RULES
from echo2.coordinator.training.run_guard import (
    EXAM_RULES,
    KINDS,
    MOST_ROLLBACKS,
    Alarm,
    Exam,
    Guard,
    GuardLimits,
    GuardState,
    TaskResult,
    remedy_of,
    share_error,
    title_of,
)
from echo2.tasks.measure import Measure


def exam(version: int, era: int = 1, prompts: int = 64, **values: float) -> Exam:
    results = {task: TaskResult(version, value, share_error(value, prompts), prompts) for task, value in values.items()}
    return Exam(era=era, version=version, root=b"%d" % version, results=results)


def guard(measures: dict[str, Measure] | None = None, **limits: float) -> Guard:
    return Guard(GuardLimits(**limits), measures or {})  # type: ignore[arg-type]


def exams(one: Guard, *values: float, era: int = 1, since: int = 0) -> list[Alarm | None]:
    return [one.on_exam(exam(5 * number + since, era, reverse=value)) for number, value in enumerate(values)]


def steps(one: Guard, *metrics: dict[str, float], era: int = 1, since: int = 1) -> list[Alarm | None]:
    return [one.on_step(era, step, some) for step, some in zip(count(since), metrics, strict=False)]


def test_three_exams_in_a_row_below_half_of_the_best_are_a_collapse() -> None:
    one = guard()
    *before, last = exams(one, 0.1, 0.5, 0.9, 0.44, 0.3, 0.0)
    assert before == [None] * 5
    assert last.kind == "held-out"
    assert "reverse solves 0.000 at version 25, after 0.900 at version 10" in last.why
    assert last.why.endswith("for 3 evaluations")


def test_exams_without_a_new_best_are_counted_until_one_comes_or_the_policy_goes_back() -> None:
    one = guard()
    exams(one, 0.1, 0.5, 0.5, 0.4)
    assert one.state.stale == 2, "an equal one is no better"
    exams(one, 0.6, since=20)
    assert one.state.stale == 0
    exams(one, 0.5, 0.5, since=25)
    one.begin(2)
    assert one.state.stale == 0


def test_one_better_exam_begins_the_row_anew() -> None:
    assert exams(guard(), 0.1, 0.9, 0.2, 0.2, 0.5, 0.2, 0.2) == [None] * 7


@pytest.mark.parametrize("values", [(0.1, 0.18, 0.0, 0.0, 0.0), (0.2, 0.25, 0.1, 0.1, 0.1)])
def test_the_rule_is_off_until_the_best_lies_two_standard_errors_above_the_first(values: tuple[float, ...]) -> None:
    assert exams(guard(), *values) == [None] * 5
    assert guard().remaining_share("reverse", TaskResult(0, 0.1, 0.01, 64)) is None


@pytest.mark.parametrize("values", [(0.2, 0.31, 0.0, 0.0, 0.0), (0.9, 0.92, 0.1, 0.1, 0.1), (0.5, 0.4, 0.1, 0.1, 0.1)])
def test_a_result_four_standard_errors_below_the_best_counts_before_the_policy_has_learned_much(
    values: tuple[float, ...],
) -> None:
    *before, last = exams(guard(), *values)
    assert (before, last is not None) == ([None] * 4, True)


def test_more_answers_tell_a_smaller_rise() -> None:
    few, many = guard(), guard()
    for version, value in enumerate((0.1, 0.18, 0.0, 0.0, 0.0)):
        few.on_exam(exam(version, reverse=value))
        alarm = many.on_exam(exam(version, prompts=4096, reverse=value))
    assert few.state.low == {"reverse": 0}
    assert alarm is not None


def test_the_floor_is_where_nothing_is_left() -> None:
    """Of four choices 0.25 are right by chance: 0.4 is a fifth of what 0.9 had learned, not 44 %."""
    values = (0.3, 0.9, 0.55, 0.55, 0.55)
    assert exams(guard(), *values)[-1] is None
    assert exams(guard({"reverse": Measure("up", 0.25)}), *values)[-1] is not None


def test_a_measure_may_be_better_when_it_is_lower() -> None:
    """The share of answers that the policy should not give: from 0.9 to 0.1, and back."""
    one = guard({"reverse": Measure("down", 1.0)})
    *before, last = exams(one, 0.9, 0.1, 0.7, 0.8, 0.9)
    assert before == [None] * 4
    assert last is not None
    assert one.state.best_exam.version == 5
    assert exams(guard({"reverse": Measure("down", 1.0)}), 0.9, 0.5, 0.1, 0.05, 0.0) == [None] * 5


def test_of_several_tasks_each_is_guarded_alone_and_the_sentence_names_it() -> None:
    one = guard()
    for version, (add, reverse) in enumerate([(0.1, 0.1), (0.9, 0.9), (0.9, 0.1), (1.0, 0.1), (1.0, 0.1)]):
        alarm = one.on_exam(exam(version, add=add, reverse=reverse))
    assert "reverse solves 0.100" in alarm.why
    assert "add" not in alarm.why


def test_the_best_version_is_the_first_of_equals() -> None:
    one = guard()
    exams(one, 0.1, 0.9, 0.9, 0.3)
    assert one.state.best_exam.version == 5


def test_a_task_whose_prompts_cannot_be_posed_has_no_result() -> None:
    one = guard()
    exams(one, 0.1, 0.9, 0.2)
    for version in (15, 20, 25):
        assert one.on_exam(exam(version, prompts=0, reverse=0.0)) is None
    assert one.state.low == {"reverse": 1}
    assert one.state.best_exam.version == 5


def test_an_exam_counts_once_however_often_it_is_told() -> None:
    one = guard()
    exams(one, 0.1, 0.9)
    for _ in range(5):
        assert one.on_exam(exam(10, reverse=0.1)) is None
    assert one.state.low == {"reverse": 1}


def test_a_new_era_begins_the_row_anew_and_keeps_the_best() -> None:
    one = guard()
    exams(one, 0.1, 0.9, 0.2, 0.2)
    one.begin(2)
    assert exams(one, 0.2, 0.2, era=2, since=30) == [None] * 2
    assert one.on_exam(exam(40, 2, reverse=0.2)) is not None


def test_an_exam_of_an_era_that_is_over_ranks_and_does_not_alarm() -> None:
    one = guard()
    exams(one, 0.1, 0.9, 0.2, 0.2)
    one.begin(2)
    assert one.on_exam(exam(20, 1, reverse=0.2)) is None
    assert one.state.low == {}


def test_a_resume_after_a_collapse_takes_the_policy_as_it_is() -> None:
    one = guard()
    assert exams(one, 0.1, 0.9, 0.2, 0.2, 0.2)[-1] is not None
    one.begin_anew(results=True)
    assert exams(one, 0.2, 0.2, 0.2, 0.2, since=30) == [None] * 4
    assert one.state.best_exam is not None, "the best version of the run is remembered"
    assert one.state.best_exam.version == 5


def test_a_rollback_to_the_best_keeps_its_result_and_one_to_another_version_does_not() -> None:
    one = guard()
    exams(one, 0.1, 0.9, 0.2, 0.2, 0.2)
    one.rolled_back(b"5", 2, automatic=True)
    assert exams(one, 0.1, 0.1, 0.1, era=2, since=30)[-1] is not None
    one.rolled_back(b"0", 3, automatic=False)
    assert exams(one, 0.1, 0.1, 0.1, 0.1, era=3, since=60) == [None] * 4


def test_one_version_is_rolled_back_to_three_times() -> None:
    one = guard()
    for era in range(2, 2 + MOST_ROLLBACKS):
        assert one.may_roll_back("held-out", b"5")
        one.rolled_back(b"5", era, automatic=True)
    assert not one.may_roll_back("held-out", b"5")
    one.rolled_back(b"6", 9, automatic=False)
    assert one.may_roll_back("held-out", b"6")


def test_an_earlier_policy_is_no_remedy_for_a_wrong_task() -> None:
    may = {kind for kind in KINDS if guard().may_roll_back(kind, b"5")}
    assert may == {"gradient", "drift", "entropy-high", "entropy-low", "same-answer", "held-out"}
    one = guard()
    run_steps(one, 1, LONG)
    assert {kind for kind in KINDS if one.may_roll_back(kind, b"5")} == may | {"too-hard", "cut"}, "it solved 40 %"


def test_the_settings_name_all_ways_to_die_and_each_says_what_to_do() -> None:
    assert set(get_args(GuardKind)) == set(KINDS)
    assert len(KINDS) == len({title_of(kind) for kind in KINDS}) == 12
    assert all(remedy_of(kind) for kind in KINDS)


WELL: Final = {
    "groups": 8.0, "zero_variance": 0.5, "success": 0.4, "reward": 0.5, "entropy": 0.5, "cut_answers": 0.1,
    "same_answers": 0.1, "log_ratio2": 0.01, "kl": 0.01, "kl_reference": 0.1, "grad_norm": 0.5, "updates": 1.0,
    "skipped_updates": 0.0,
}  # fmt: skip
"""The metrics of a healthy step."""
DYING: Final[Mapping[str, dict[str, float]]] = {
    "gradient": {"grad_norm": 50.0},
    "drift": {"log_ratio2": 3.0},
    "entropy-high": {"entropy": 2.0},
    "entropy-low": {"entropy": 0.01},
    "same-answer": {"same_answers": 0.97},
    "cut": {"cut_answers": 0.9, "success": 0.1},
    "too-hard": {"zero_variance": 1.0, "success": 0.0},
    "too-easy": {"zero_variance": 1.0, "success": 1.0},
    "no-signal": {"zero_variance": 1.0, "success": 0.5},
}
"""What a step of a run that dies has instead."""
LONG: Final = 40


def run_steps(one: Guard, since: int, until: int, **other: float) -> tuple[int | None, Alarm | None]:
    """Make steps; return the first at which the guard warns, and its first alarm."""
    warned = None
    for step in range(since, until + 1):
        alarm = one.on_step(1, step, WELL | other)
        warned = warned or (step if one.warnings() else None)
        if alarm is not None:
            return warned, alarm
    return warned, None


@pytest.mark.parametrize("kind", STEP_RULES)
def test_each_way_to_die_that_steps_show_is_named_within_10_steps_and_pauses_within_30(kind: str) -> None:
    one = guard()
    assert run_steps(one, 1, LONG) == (None, None)
    warned, alarm = run_steps(one, LONG + 1, LONG + 30, **DYING[kind])
    assert warned is not None
    assert warned <= LONG + 10
    assert alarm.kind == kind
    assert alarm.why.startswith(title_of(kind))
    assert f"for {STEP_RULES[kind].pause} steps" in alarm.why
    assert one.state.step < LONG + 30


@pytest.mark.parametrize("kind", STEP_RULES)
def test_a_single_step_that_looks_dead_is_no_alarm(kind: str) -> None:
    one = guard()
    for step in range(1, 400):
        assert one.on_step(1, step, WELL | (DYING[kind] if step % 20 == 0 else {})) is None


def test_a_policy_that_looks_dead_at_three_of_four_steps_is_dead() -> None:
    one = guard()
    run_steps(one, 1, LONG)
    flat = [one.on_step(1, LONG + step, WELL | (DYING["too-hard"] if step % 4 else {})) for step in range(1, 200)]
    assert flat == [None] * 199, "8 steps have signal among them"
    same = WELL | DYING["same-answer"]
    alarms = [one.on_step(1, 300 + step, same if step % 8 else WELL) for step in range(1, 200)]
    assert next(number for number, alarm in enumerate(alarms, 1) if alarm) < 60


@pytest.mark.parametrize("kind", STEP_RULES)
def test_a_rule_that_only_warns_pauses_nothing(kind: str) -> None:
    one = Guard(GuardLimits(warn_only=(kind,)), {})
    run_steps(one, 1, LONG)
    warned, alarm = run_steps(one, LONG + 1, LONG + 100, **DYING[kind])
    assert (warned is not None, alarm) == (True, None)
    assert one.pause_after(kind) is None


def test_the_alarm_says_what_the_guard_has_seen() -> None:
    one = guard()
    run_steps(one, 1, LONG)
    _, alarm = run_steps(one, LONG + 1, LONG + 30, **DYING["too-hard"])
    assert alarm.why == (
        "the task is too hard (0 of 64 groups with rewards that differ, 0.0 % of answers solved, "
        "40.0 % at best), for 16 steps"
    )


def test_few_groups_with_signal_are_no_want_of_it() -> None:
    """In 1 group of 10, by chance: batches without any are frequent."""
    chance, one = random.Random(0), guard()
    for step in range(1, 5_000):
        signal = sum(chance.random() < 0.1 for _ in range(8))
        assert one.on_step(1, step, WELL | {"zero_variance": 1 - signal / 8, "success": 0.007}) is None, step


def test_small_batches_are_judged_by_as_many_groups() -> None:
    one = guard()
    alarms = steps(one, *[WELL | DYING["no-signal"] | {"groups": 2.0}] * 60)
    first = next(number for number, alarm in enumerate(alarms, 1) if alarm)
    assert first == 24 + 16 - 1, "48 groups, and 16 steps"


def test_a_thousand_steps_without_signal_hide_no_gradient() -> None:
    one = Guard(GuardLimits(warn_only=("too-hard", "too-easy", "no-signal")), {})
    flat = {"groups": 8.0, "zero_variance": 1.0, "success": 0.5, "updates": 0.0, "grad_norm": 0.0}
    assert steps(one, *[flat] * 1000) == [None] * 1000
    assert steps(one, *[WELL] * LEAST_NORMS, since=1001) == [None] * LEAST_NORMS
    *_, alarm = steps(one, *[WELL | {"grad_norm": 50.0}] * 3, since=1001 + LEAST_NORMS)
    assert alarm is not None


def test_a_learned_task_that_leaves_entropy_only_to_few_groups_is_no_collapse() -> None:
    one = guard()
    metrics = [WELL | {"entropy": 0.5 * 0.97**step, "success": min(0.95, 0.4 + 0.01 * step)} for step in range(100)]
    assert steps(one, *metrics) == [None] * 100
    without = {name: value for name, value in WELL.items() if name != "entropy"}
    assert steps(one, *[without] * 100, since=101) == [None] * 100


def test_a_policy_that_answers_nearly_always_alike_from_its_start_may_be_right() -> None:
    """Nine of ten questions have the answer no."""
    same = {"same_answers": 0.93, "success": 0.9}
    assert steps(guard(), *[WELL | same] * 100) == [None] * 100
    assert steps(guard(), *[WELL | same | {"success": 0.1}] * 100)[-1] is not None


def test_long_answers_that_solve_more_are_no_fault() -> None:
    one = guard()
    assert run_steps(one, 1, LONG) == (None, None)
    assert run_steps(one, LONG + 1, LONG + 50, cut_answers=0.95, success=0.6) == (None, None)


def test_updates_that_cannot_be_made_are_gradients_that_are_not_finite() -> None:
    bad = {"skipped_updates": 4.0, "updates": 4.0, "grad_norm": math.inf}
    *_, alarm = steps(guard(), *[WELL | bad] * 3)
    assert alarm is not None
    assert "not finite, so no update was made), for 3 steps" in alarm.why
    some = {"skipped_updates": 3.0, "updates": 4.0}
    assert steps(guard(), *[WELL | bad, WELL | bad, WELL | some] * 5) == [None] * 15
    nothing = {"skipped_updates": 0.0, "updates": 0.0, "grad_norm": 0.0}
    assert steps(guard(), *[WELL | one for one in (bad, nothing, bad, nothing, bad)])[-1] is not None


def test_a_gradient_without_history_or_that_grows_slowly_is_none() -> None:
    growing = [WELL | {"grad_norm": 10.0**n} for n in range(LEAST_NORMS)]
    assert steps(guard(), *growing) == [None] * LEAST_NORMS
    assert steps(guard(), *[WELL | {"grad_norm": 1.1**n} for n in range(200)]) == [None] * 200
    assert steps(guard(), *[WELL, WELL | {"grad_norm": 0.0}] * 40) == [None] * 80


def train(one: Guard, since: int, number: int, **other: float) -> int:
    """Make steps; return the one after the last."""
    steps(one, *[WELL | other | {"reward": WELL["reward"] + other.get("rise", 0.0) + 0.01 * (step % 2)}
                 for step in range(number)], since=since)  # fmt: skip
    return since + number


def by_turns(one: Guard, since: int, values: list[float], **other: float) -> list[Alarm | None]:
    """Make 4 steps before each of the exams."""
    alarms = []
    for value in values:
        since = train(one, since, 4, **other)
        alarms.append(one.on_exam(exam(since, prompts=512, reverse=value)))
    return alarms


def test_a_reward_that_rises_while_held_out_results_fall_is_suspected_to_be_hacked() -> None:
    one = guard()
    assert by_turns(one, 1, [0.5, 0.6, 0.62, 0.6]) == [None] * 4
    *before, last = by_turns(one, 17, [0.45, 0.42, 0.41], rise=0.5)
    assert before == [None, None]
    assert last.kind == "hacking"
    assert "reward 0.505 to 1, held-out -21.0 points since version 13" in last.why
    falling = guard()
    by_turns(falling, 1, [0.5, 0.6, 0.62, 0.6])
    assert by_turns(falling, 17, [0.45] * 8, rise=-0.2) == [None] * 8, "both fall, and half of the best is left"


def test_held_out_results_that_never_leave_their_floor_while_training_solves_its_prompts() -> None:
    one = guard()
    alarms = by_turns(one, 1, [0.0] * 9)
    assert [alarm is not None for alarm in alarms] == [False] * 6 + [True] * 3
    assert alarms[6] is not None
    assert alarms[6].kind == "floor"
    assert "40.0 % of training's answers solved" in alarms[6].why
    assert by_turns(guard({"reverse": Measure("up", 0.4)}), 1, [0.4] * 9) == [None] * 9, "training is at it too"
    assert by_turns(guard(), 1, [0.0, 0.0, 0.03, *[0.02] * 9]) == [None] * 12, "it has left it once"


def test_a_sparse_run_may_stay_at_the_floor_for_long() -> None:
    assert by_turns(guard(), 1, [0.0] * 20, success=0.007) == [None] * 20
    solving_nothing = by_turns(guard(), 1, [0.0] * 22, success=0.0)
    assert [alarm is not None for alarm in solving_nothing] == [False] * 20 + [True] * 2, "6 of them behind 64 steps"
    one = guard()
    rising = [by_turns(one, 1 + 4 * turn, [0.0], success=0.0, rise=0.05 * turn)[0] for turn in range(30)]
    assert rising == [None] * 30, "its reward rises"


@pytest.mark.parametrize("kind", EXAM_RULES)
def test_an_exam_rule_warns_at_its_first_exam(kind: str) -> None:
    one = guard()
    if kind == "floor":
        by_turns(one, 1, [0.0] * 3)
    else:
        by_turns(one, 1, [0.5, 0.6, 0.62])
        by_turns(one, 13, [0.45, 0.45] if kind == "hacking" else [0.1], rise=0.5 if kind == "hacking" else 0.0)
    assert kind in one.warnings()


def test_a_task_that_marks_what_no_policy_should_do_is_too_easy_where_nothing_is_marked() -> None:
    one = guard({"reverse": Measure("down", 1.0)})
    _, alarm = run_steps(one, 1, 30, zero_variance=1.0, success=0.0)
    assert alarm.kind == "too-easy"


def test_groups_that_are_left_out_for_want_of_signal_count_as_steps() -> None:
    one = guard()
    assert one.on_flat(SIGNAL_STEPS - 1, 0.0) is None
    assert not one.warnings()
    assert one.on_flat(SIGNAL_STEPS, 0.0) is None
    assert one.warnings() == ["too-hard"]
    alarm = one.on_flat(SIGNAL_STEPS + 15, 0.0)
    assert alarm.why.startswith("the task is too hard (23 batches of groups without rewards that differ")


def test_a_step_that_is_made_again_after_a_restart_counts_once() -> None:
    one = guard()
    run_steps(one, 1, LONG)
    for _ in range(30):
        assert one.on_step(1, LONG, WELL | DYING["gradient"]) is None
    assert not one.warnings()


def test_a_resume_begins_what_is_remembered_of_steps_anew() -> None:
    one = guard()
    run_steps(one, 1, LONG)
    run_steps(one, LONG + 1, LONG + 30, **DYING["entropy-low"])
    one.begin_anew()
    assert run_steps(one, LONG + 31, LONG + 130, **DYING["entropy-low"]) == (None, None), "the policy as it is"


def test_the_state_survives_its_encoding() -> None:
    one = guard()
    by_turns(one, 1, [0.1, 0.9, 0.2])
    again = msgspec.json.decode(msgspec.json.encode(one.state), type=GuardState)
    assert again == one.state
    assert Guard(one.limits, {}, again).on_exam(exam(50, reverse=0.1)) is None
    assert Guard(one.limits, {}, again).on_exam(exam(60, reverse=0.1)) is not None


def test_the_error_of_a_share_is_above_zero_at_both_ends() -> None:
    assert share_error(0.5, 62) == pytest.approx(0.0625)
    assert 0.01 < share_error(0.0, 64) < 0.03
    assert share_error(0.0, 64) == pytest.approx(share_error(1.0, 64))
