"""`echo2-coord plan`: its terms from flags, and from a run under way."""

import msgspec
import pytest
from typer.testing import CliRunner

from echo2.coordinator import cli
from echo2.coordinator.metrics.views import BroadcastView
from echo2.coordinator.training.plan_terms import PlanFlags, describe_run_plan
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from tests.support import pictures

FLAGS = (
    *("--step-seconds", "60", "--rollouts", "512", "--group", "8", "--tokens", "1000", "--node-tokens", "800"),
    *("--staleness", "4", "--version-mb", "60", "--uplink", "100", "--node-uplink", "20", "--node-downlink", "100"),
    *("--scorer-tokens", "20000"),
)
MEASURED = msgspec.structs.replace(
    pictures.CAPACITY, step_seconds=10.0, turnaround_seconds=25.0, rollouts_per_step=256.0, supply=12.0
)
UNDER_WAY = msgspec.structs.replace(
    pictures.EMPTY, capacity=MEASURED, broadcast=BroadcastView(source="", p90=3.0), nodes=[pictures.node(1)] * 4
)


def test_flags_alone_make_a_plan() -> None:
    result = CliRunner().invoke(cli.app, ["plan", *FLAGS])
    assert result.exit_code == Exit.OK, result.output
    assert result.stdout.splitlines()[-2] == "12 such nodes keep the learner busy, with a reserve of 10%."


@pytest.mark.parametrize("flag", ["--step-seconds", "--tokens", "--node-tokens", "--uplink", "--node-price", "--gamma"])
@pytest.mark.parametrize("value", ["inf", "nan", "1e300"])
def test_a_flag_that_is_no_number_to_compute_with_is_refused(flag: str, value: str) -> None:
    result = CliRunner().invoke(cli.app, ["plan", *FLAGS, flag, value])
    assert result.exit_code != 0
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert flag in result.stderr


def test_flags_that_are_missing_are_named() -> None:
    result = CliRunner().invoke(cli.app, ["plan", *FLAGS[2:-4]])
    assert result.exit_code == Exit.CONFIG
    assert (
        "a plan without a run needs --step-seconds, --node-downlink, --scorer-tokens too; or name a running one"
        in result.stderr
    )


@pytest.mark.parametrize(
    "flags",
    [
        ("--step-seconds", "inf"),
        ("--tokens", "nan"),
        ("--node-tokens", "1e400"),
        ("--rollouts", "9" * 400),
        ("--publish-every", "-1"),
    ],
)
def test_a_figure_that_is_no_finite_number_in_its_range_is_wrong_usage(flags: tuple[str, str]) -> None:
    result = CliRunner().invoke(cli.app, ["plan", *FLAGS, *flags])
    assert result.exit_code == Exit.USAGE
    assert f"Invalid value for '{flags[0]}'" in result.stderr


@pytest.mark.parametrize("flag", ["--step-seconds", "--tokens", "--version-mb", "--load-seconds", "--node-price"])
def test_the_largest_figures_that_are_taken_end_in_a_sentence(flag: str) -> None:
    result = CliRunner().invoke(cli.app, ["plan", *FLAGS, flag, "1e9"])
    assert result.exit_code == Exit.OK, result.output


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (PlanFlags(publish_every=9, staleness=4), "--publish-every is 9, and S = 4 allows at most 5"),
        (PlanFlags(own_tokens=1.0, own_price=1.0, tokens=9.0, staleness=0), "from S = 1 on: leave --own-tokens out"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags: PlanFlags, words: str) -> None:
    with pytest.raises(LocalFault, match=words):
        describe_run_plan(flags, UNDER_WAY)


def test_a_run_under_way_brings_its_measurements() -> None:
    words = describe_run_plan(PlanFlags(node_price=0.1), UNDER_WAY)
    assert words[0] == "A step of 10 s takes 256 rollouts, 25.6 per second. A node makes 3 per second."
    assert words[1].startswith("A version reaches 4 nodes in 3 s, and its groups are verified after 25.0 s (B).")
    assert words[2].startswith("10 such nodes would be enough; 6 are missing, and the learner is idle for 53% of")
    short = " ".join(describe_run_plan(PlanFlags(staleness=3, nodes=4, step_seconds=8.5), UNDER_WAY))
    assert "188 such nodes would be enough" in short  # (3 - 1 + 1) 8.5 - 25 = 0.5 s for 256 rollouts
    assert "S = 3 leaves little time: at S = 4 12 are enough." in short


@pytest.mark.parametrize(
    ("idle", "flags", "said"),
    [
        (
            0.12,
            PlanFlags(),
            "is idle for 12% of its time since its first step. For the terms above the formulas give 53%",
        ),
        (0.12, PlanFlags(staleness=2), "For the terms above the formulas give 57%: they take"),
        (0.51, PlanFlags(), "is idle for 51% of its time since its first step."),
    ],
)
def test_the_idle_share_that_the_run_measured_stands_beside_the_one_of_the_formulas(
    idle: float, flags: PlanFlags, said: str
) -> None:
    """Before, the formulas' share alone was there, and `status` had another."""
    told = describe_run_plan(flags, msgspec.structs.replace(UNDER_WAY, idle=idle))
    assert told[-1].startswith("Measured in this run, the learner is idle for ")
    assert said in told[-1]
    assert ("formulas" in told[-1]) == (idle == 0.12)


def test_the_reserve_of_a_run_is_its_own_unless_a_flag_names_another() -> None:
    capacity = msgspec.structs.replace(UNDER_WAY.capacity, gamma=2.0)
    state = msgspec.structs.replace(UNDER_WAY, capacity=capacity)
    assert "18 such nodes would be enough" in " ".join(describe_run_plan(PlanFlags(), state))
    assert "10 such nodes would be enough" in " ".join(describe_run_plan(PlanFlags(gamma=1.1), state))


def test_the_rate_of_a_run_is_that_of_all_its_scorers() -> None:
    capacity = msgspec.structs.replace(UNDER_WAY.capacity, verified=20.0, scorers=2)
    words = " ".join(describe_run_plan(PlanFlags(), msgspec.structs.replace(UNDER_WAY, capacity=capacity)))
    assert "2 scorers verify a step's rollouts in 12.8 s" in words  # 256 rollouts at 20 per second
    assert "until there are 3 such scorers" in words
    state = msgspec.structs.replace(UNDER_WAY, capacity=capacity)
    words = " ".join(describe_run_plan(PlanFlags(scorers=3), state))
    assert "3 scorers verify a step's rollouts in 8.53 s, of the 10.00 s of a step" in words
    assert "The bottleneck is the nodes" in words


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (PlanFlags(uplink=100.0), "--uplink would"),
        (PlanFlags(at_once=8, scorer_tokens=9.0), "--at-once, --scorer-tokens"),
    ],
)
def test_a_flag_for_what_a_run_measures_is_refused_and_not_passed_over(flags: PlanFlags, named: str) -> None:
    with pytest.raises(LocalFault, match=f"measures what {named}"):
        describe_run_plan(flags, UNDER_WAY)


def test_a_run_without_steps_and_half_of_ones_own_machines_are_refused() -> None:
    with pytest.raises(LocalFault, match="a measured step, verdicts, or a connected node"):
        describe_run_plan(PlanFlags(), pictures.EMPTY)
    with pytest.raises(LocalFault, match="both --own-tokens and --own-price"):
        describe_run_plan(PlanFlags(own_price=1.0), UNDER_WAY)
    with pytest.raises(LocalFault, match="--own-tokens needs --tokens too"):
        describe_run_plan(PlanFlags(own_price=1.0, own_tokens=100.0), UNDER_WAY)
