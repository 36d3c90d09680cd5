"""Settings come from flags, variables and the file, in this order; a wrong one is named in one line."""

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from echo2.coordinator.learner.batches.cut_rollouts import CUT_KINDS
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.learner.objective import advantages, loss
from echo2.coordinator.learner.objective.aggregates import AGGREGATES
from echo2.coordinator.learner.objective.loss_weights import WEIGHTS
from echo2.coordinator.learner.objective.surrogates import SURROGATES
from echo2.coordinator.settings import config
from echo2.coordinator.settings.objective_choices import PRESET, PRESETS
from echo2.coordinator.settings.training_config import LearnerSection, RunSection
from echo2.protocol.authority import RunSpec
from echo2.runtime.settings import SettingsFault


def test_every_key_has_an_explanation() -> None:
    bare = [
        f"{name}.{key}"
        for name, model in config.sections()
        for key, field in model.model_fields.items()
        if not field.description
    ]
    assert bare == []


def test_the_learners_section_holds_the_learners_settings_with_its_defaults() -> None:
    own = {"device", "threads", "checkpoint_share", "ranks", "hosts", "rendezvous"}
    section = {key: field.default for key, field in LearnerSection.model_fields.items() if key not in own}
    assert section | {"temperature": RunSection().temperature_thousandths} == msgspec.structs.asdict(Hyper())


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("objective", PRESETS),
        ("advantage", advantages.KINDS),
        ("anchor", {PRESET, *loss.ANCHORS}),
        ("weight", {PRESET, *WEIGHTS}),
        ("surrogate", {PRESET, *SURROGATES}),
        ("aggregate", AGGREGATES),
        ("cut_rollouts", CUT_KINDS),
    ],
)
def test_every_choice_is_one_that_the_learner_knows(key: str, known: Collection[str]) -> None:
    assert set(get_args(LearnerSection.model_fields[key].annotation)) == set(known)


@pytest.mark.parametrize("flags", [{"anchor": "behaviour"}, {"objective": "grpo", "weight": "m2po"}])
def test_a_weight_beside_a_ratio_to_the_behaviour_is_refused_with_a_sentence(
    tmp_path: Path, flags: dict[str, str]
) -> None:
    (tmp_path / "coordinator.toml").write_text("")
    with pytest.raises(SettingsFault, match="with anchor behaviour counts the staleness of a token twice"):
        config.load(tmp_path / "coordinator.toml", env={}, flags={"learner": flags})


def test_every_signed_setting_is_in_the_runspec() -> None:
    assert set(config.SIGNED_KEYS) <= RunSection.model_fields.keys()
    assert set(config.SIGNED_KEYS) - {"task"} <= {field.name for field in msgspec.structs.fields(RunSpec)}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("name", "my\x1b[2Jrun", "cannot be printed"),
        ("model", "tiny\n", "cannot be printed"),
        ("description", "a\u202eb", "cannot be printed"),
        ("contact", "ann\n", "cannot be printed"),
        ("description", "x" * 501, "500"),
        ("contact", "x" * 501, "500"),
        ("page", f"https://{'x' * 493}", "500"),
        ("page", "javascript:alert(1)", "should be like https"),
        ("page", "run.example.org", "should be like https"),
        ("page", "https://run.example.org/a b", "should be like https"),
    ],
)
def test_words_for_people_are_printable_and_a_page_has_an_address(key: str, value: str, words: str) -> None:
    with pytest.raises(SettingsFault, match=words):
        config.parse({"run": {key: value}}, source="it", env={})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "greater than or equal to 0.5"),
        (-0.8, "greater than or equal to 0.5"),
        (0.499, "greater than or equal to 0.5"),
        (2.001, "less than or equal to 2"),
        (0.8005, r"should be a multiple of 0\.001, such as 0\.8\d\d, not 0\.8005"),
        (float("nan"), "run.temperature"),
        ("warm", "run.temperature"),
    ],
)
def test_a_temperature_is_within_its_bounds_and_in_thousandths(value: object, words: str) -> None:
    with pytest.raises(SettingsFault, match=words):
        config.parse({"run": {"temperature": value}}, source="it", env={})


def test_a_temperature_is_signed_in_thousandths() -> None:
    values = {1: 1000, 0.8: 800, 0.7: 700, 1.001: 1001, 0.5: 500}
    runs = [config.parse({"run": {"temperature": value}}, source="it", env={}).run for value in values]
    assert [run.temperature_thousandths for run in runs] == list(values.values())
    assert [run.temperature for run in runs] == list(values)


def test_a_flag_overrides_a_variable_that_overrides_the_file_that_overrides_the_default(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.toml"
    path.write_text("[web]\nport = 1\nhost = 'a'\n[run]\nsteps = 1\n")
    env = {"ECHO2_COORD_WEB_PORT": "2", "ECHO2_COORD_WEB_HOST": "b"}
    settings = config.load(path, env=env, flags={"web": {"port": 3}})
    assert (settings.web.port, settings.web.host, settings.run.steps, settings.run.staleness) == (3, "b", 1, 4)


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("RUN_NAME", "7", "7"),
        ("RUN_NAME", '"in quotes"', "in quotes"),
        ("RUN_NAME", '"open', '"open'),
        ("RUN_STEPS", "9", 9),
        ("LEARNER_COMPUTE_DTYPE", "bfloat16", "bfloat16"),
        ("LEARNER_COMPUTE_DTYPE", '"bfloat16"', "bfloat16"),
        ("LEARNER_LEARNING_RATE", "1e-5", 1e-5),
        ("LEARNER_BETAS", "[0.1, 0.2]", (0.1, 0.2)),
        (
            "NETWORK_LISTEN",
            "/ip4/1.2.3.4/tcp/4001, /ip4/1.2.3.4/tcp/4002",
            ("/ip4/1.2.3.4/tcp/4001", "/ip4/1.2.3.4/tcp/4002"),
        ),
        ("NETWORK_LISTEN", '["/ip4/1.2.3.4/tcp/4001"]', ("/ip4/1.2.3.4/tcp/4001",)),
    ],
)
def test_a_variable_is_parsed_by_the_type_of_its_key(variable: str, text: str, value: object) -> None:
    settings = config.parse({}, source="it", env={f"ECHO2_COORD_{variable}": text})
    section, _, key = variable.lower().partition("_")
    assert getattr(getattr(settings, section), key) == value


def test_the_commands_own_variable_is_not_a_setting() -> None:
    variables = {"ECHO2_COORD_HOME": "/somewhere", "PATH": "/bin"}
    assert config.parse({}, source="it", env=variables) == config.parse({}, source="it")


BAD = {
    "hosts without a rendezvous": ({"learner": {"hosts": 2}}, "learner"),
    "a rendezvous for one host": ({"learner": {"rendezvous": "10.0.0.1:29500"}}, "learner"),
    "a rendezvous without a port": ({"learner": {"hosts": 2, "rendezvous": "10.0.0.1"}}, "learner.rendezvous"),
    "an unknown section": ({"runn": {}}, "unknown section or key runn; did you mean run?"),
    "an unknown key": ({"run": {"stalenes": 3}}, "unknown key run.stalenes; did you mean run.staleness?"),
    "a key of another section": ({"run": {"port": 3}}, "unknown key run.port; did you mean web.port?"),
    "a key outside a section": ({"port": 3}, "unknown section or key port; did you mean web.port?"),
    "a setting that is gone": (
        {"learner": {"contrast": 0.5}},
        "learner.contrast is no longer a setting, as half of each group taught less",
    ),
    "a key like no other": ({"web": {"zzz": 1}}, "unknown key web.zzz; known are host, port"),
    "a value for a section": ({"run": 3}, "[run] should be a section of settings, not 3"),
    "words for a number": ({"run": {"steps": "four"}}, "run.steps should be a whole number, not 'four'"),
    "a fraction for a whole number": ({"run": {"staleness": 1.5}}, "run.staleness should be a whole number, not 1.5"),
    "yes for a number": ({"run": {"staleness": True}}, "run.staleness should be a whole number, not True"),
    "a number in quotes": ({"web": {"port": "80"}}, "web.port should be a whole number, not '80'"),
    "a text for a list": ({"network": {"listen": "x"}}, "network.listen should be a list, not 'x'"),
    "a number in a list of texts": ({"network": {"listen": [3]}}, "network.listen should be a text, not 3"),
    "too few numbers": ({"learner": {"betas": [0.9]}}, "learner.betas should be a longer list, not [0.9]"),
    "below the bound": ({"run": {"staleness": -1}}, "run.staleness should be greater than or equal to 0, not -1"),
    "a group of one, which has nothing to be compared with": (
        {"run": {"group_size": 1}},
        "run.group_size should be greater than or equal to 2, not 1",
    ),
    "no number at all": (
        {"learner": {"learning_rate": float("nan")}},
        "learner.learning_rate should be a finite number",
    ),
    "no choice of the list": (
        {"run": {"compute_dtype": "f16"}},
        "run.compute_dtype should be 'float32', 'float16', 'bfloat16' or 'blocks', not",
    ),
    "a type that no admitted class computes in": (
        {"run": {"compute_dtype": "bfloat16"}},
        "run: engines admits no class in bfloat16, in which nodes compute: add transformers/bfloat16",
    ),
    "bounds the wrong way round": (
        {"leases": {"minimum_seconds": 1e3, "maximum_seconds": 900.0}},
        "leases: minimum_seconds is 1000, above maximum_seconds, 900: lower the one, or raise the other",
    ),
    "nowhere to listen": (
        {"network": {"listen": ["0.0.0.0:4310"]}},
        "network: listen has '0.0.0.0:4310': write /ip4/0.0.0.0/tcp/4310 or the like",
    ),
    "nowhere for a former identity to listen": (
        {"network": {"former_listen": ["nonsense"]}},
        "network: former_listen has 'nonsense': write /ip4/0.0.0.0/tcp/4310 or the like",
    ),
    "nowhere to listen for HTTPS": (
        {"https": {"listen": ["/ip4/0.0.0.0/tcp/70000"]}},
        "https: listen has '/ip4/0.0.0.0/tcp/70000': write /ip4/0.0.0.0/tcp/4310 or the like",
    ),
    "a host that is no address": (
        {"network": {"advertise": ["run.example.org"]}},
        "network: advertise has 'run.example.org': write /dns4/run.example.org/tcp/4310 or the like",
    ),
    "a relay without its id": (
        {"network": {"relays": ["/dns4/relay.example.org/tcp/4101"]}},
        "network: relays has '/dns4/relay.example.org/tcp/4101': write all that `echo2-coord relay` prints",
    ),
    "a port that nodes do not dial": (
        {"network": {"advertise": ["/dns4/run.example.org/tcp/80"]}},
        "network: advertise has '/dns4/run.example.org/tcp/80': nodes dial port 443, and ports from 1024 on, and no",
    ),
    "a port that nodes do not dial, to listen on": (
        {"network": {"listen": ["/ip4/0.0.0.0/tcp/25"]}},
        "network: listen has '/ip4/0.0.0.0/tcp/25': nodes dial port 443, and ports from 1024 on, and no others",
    ),
    "versions further apart than S": (
        {"run": {"publish_every": 6}},
        "run.publish_every is 6; with run.staleness 4",
    ),
    "a meeting place without a port": (
        {"learner": {"hosts": 2, "rendezvous": "10.0.0.1"}},
        "learner.rendezvous should be like 10.0.0.1:29500, not '10.0.0.1'",
    ),
    "a sequential run with overlap": (
        {"run": {"mode": "sequential", "staleness": 4}},
        "run: mode sequential means staleness 0 and publish_every 1, not 4 and 1: leave them out, or choose mode async",
    ),
    "a sequential run whose versions are two steps apart": (
        {"run": {"mode": "sequential", "publish_every": 2}},
        "run: mode sequential means staleness 0 and publish_every 1, not 0 and 2",
    ),
    "an asynchronous run without overlap": (
        {"run": {"mode": "async", "staleness": 0}},
        "run: mode async means a staleness from 1, not 0",
    ),
    "a period that is neither a number nor auto": (
        {"run": {"publish_every": "often"}},
        "run.publish_every: should be a whole number from 1, or auto, not 'often'",
    ),
    "an unknown rail": (
        {"payout": {"rail": "paypal"}},
        "payout.rail should be 'points', 'csv', 'command', 'bank' or 'https', not 'paypal'",
    ),
    "a very long value": ({"run": {"name": "x" * 999}}, "run.name should have at most 80 characters, not 'xxx"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_wrong_setting_is_named_in_one_line(what: str) -> None:
    given, sentence = BAD[what]
    with pytest.raises(SettingsFault) as fault:
        config.parse(given, source="coordinator.toml")
    assert str(fault.value).startswith(f"coordinator.toml: {sentence}")
    assert "\n" not in str(fault.value)
    assert len(str(fault.value)) < 200


def test_the_error_for_a_wrong_value_names_its_source() -> None:
    with pytest.raises(SettingsFault, match=r"^command line: web\.port"):
        config.parse({"web": {"port": 1}}, source="it", env={"ECHO2_COORD_WEB_PORT": "2"}, flags={"web": {"port": -1}})
    with pytest.raises(SettingsFault, match=r"^ECHO2_COORD_WEB_PORT: web\.port should be a whole number, not 'x'"):
        config.parse({"web": {"port": 1}}, source="it", env={"ECHO2_COORD_WEB_PORT": "x"})
    with pytest.raises(SettingsFault, match=r"store\.budget_bytes should be a whole number without a unit, not '2GB'"):
        config.parse({}, source="it", flags=config.from_assignments(["store.budget_bytes=2GB"]))
    with pytest.raises(
        SettingsFault, match="unknown environment variable ECHO2_COORD_WEB_PRT; did you mean ECHO2_COORD_WEB_PORT"
    ):
        config.parse({}, source="it", env={"ECHO2_COORD_WEB_PRT": "2"})


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("web.port", "^'web.port' has no value: write section.key=value"),
        ("port=3", r"did you mean \S*\.port\?"),
        ("batch_groups=3", r"^unknown section or key batch_groups; did you mean run\.batch_groups\?"),
        ("wep.port=3", r"did you mean web\?"),
        ("web.prt=3", r"did you mean web\.port\?"),
    ],
)
def test_a_setting_on_the_command_line_is_checked_like_any_other(word: str, sentence: str) -> None:
    assert config.from_assignments(["web.port=3"]) == {"web": {"port": 3}}
    with pytest.raises(SettingsFault, match=sentence):
        config.from_assignments([word])


@pytest.mark.parametrize(
    ("content", "sentence"),
    {
        "not TOML": (b"[run\nsteps = 1", "is not TOML: .*line 1"),
        "a key twice": (b"[run]\nsteps = 1\nsteps = 2", "is not TOML"),
        "not UTF-8": (b"[run]\nname = '\xff'", "is not UTF-8"),
    }.values(),
)
def test_a_file_that_cannot_be_read_is_named(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "coordinator.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsFault, match=f"{path} {sentence}"):
        config.load(path, env={})


def test_the_mode_of_a_run_settles_its_staleness() -> None:
    def staleness(**section: object) -> int:
        return config.parse({"run": section}, source="it").run.staleness

    assert (staleness(mode="sequential"), staleness(mode="async"), staleness()) == (0, 4, 4)
    assert staleness(mode="sequential", staleness=0, publish_every=1) == 0


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_a_rendezvous_without_a_port_is_refused_before_any_rank_starts(port: str) -> None:
    settings = {"learner": {"hosts": 2, "rendezvous": f"here:{port}"}}
    with pytest.raises(SettingsFault, match="no port from 1 to 65535"):
        config.parse(settings, source="coordinator.toml")


@pytest.mark.parametrize("value", [1 << 60, 1e300], ids=["a whole number of 60 bits", "a number of 300 digits"])
def test_no_number_is_without_a_bound_that_its_use_bears(value: float) -> None:
    """Beyond them lie whole numbers that no message or row can hold, and factors that make each gradient infinite."""
    taken = []
    for section, model in config.sections():
        for key in model.model_fields.keys() - {"seed"}:
            with contextlib.suppress(SettingsFault):
                config.parse({section: {key: value}}, source="coordinator.toml")
                taken.append(f"{section}.{key}")
    assert taken == []
