"""Settings of a run folder, read and changed by their operator."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from echo2.coordinator.settings import config, config_edits
from echo2.runtime.settings import SettingsFault

EMPTY: Mapping[str, str] = MappingProxyType({})
TEXT = """\
# mine
[run]
steps = 40          # enough
batch_groups = 8

[web]
port = 8421
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "coordinator.toml"
    file.write_text(TEXT)
    return file


def change(path: Path, *assigned: str, removed: Sequence[str] = (), env: Mapping[str, str] = EMPTY) -> list[str]:
    """Change the file as a command does where no coordinator runs."""
    edit = config_edits.prepare(path, assigned, removed, env=env)
    edit.write()
    return edit.sentences()


def test_a_key_changes_in_place_and_all_else_stays(path: Path) -> None:
    said = change(path, "run.steps=50")
    assert said == ["run.steps = 50, it was 40: it counts from the coordinator's next start"]
    assert change(path, "run.steps=50") == ["run.steps = 50, as before"]
    assert path.read_text() == TEXT.replace("steps = 40 ", "steps = 50 ")


def test_a_new_key_and_a_new_section_are_added(path: Path) -> None:
    change(path, "learner.learning_rate=1e-5", "network.listen=/ip4/1.2.3.4/tcp/4310, /ip4/1.2.3.4/tcp/4312")
    change(path, "learner.schedule=steps", "learner.schedule_points=[[5, 0.5], [9, 0.1]]")
    settings = config.load(path, env={})
    assert settings.learner.learning_rate == 1e-5
    assert settings.learner.schedule_points == ((5, 0.5), (9, 0.1))
    assert settings.network.listen == ("/ip4/1.2.3.4/tcp/4310", "/ip4/1.2.3.4/tcp/4312")
    assert "# mine" in path.read_text()


def test_a_removed_key_has_its_default_again(path: Path) -> None:
    assert change(path, removed=["run.batch_groups"])[0].startswith("run.batch_groups = 16, it was 8")
    assert "batch_groups" not in path.read_text()


@pytest.mark.parametrize(
    ("assigned", "words"),
    [
        ("run.limit=512", "is signed, and binds nodes"),
        ("run.temperature=0.8", "is signed, and binds nodes"),
        ("run.description=other", "is signed"),
        ("run.template=chat", "is signed"),
        ("run.stepz=1", r"did you mean run\.steps"),
        ("learner.learning_rat=1", r"did you mean learner\.learning_rate"),
        ("learner.batch_groups=1", r"did you mean run\.batch_groups"),
        ("steps=1", r"did you mean run\.steps"),
        ("run.steps", "write section.key=value"),
        ("", "write section.key=value"),
        ("run.steps=many", "run.steps should be"),
        ("run.steps=0", "run.steps should be"),
        ("run.steps=1.5", "run.steps should be a whole number"),
        ("run.publish_every=6", "it can be at most 5"),
        ("run.batch_groups=-3", "greater than or equal to 1, not -3"),
        ("learner.learning_rate=nan", "learner.learning_rate should be"),
        ("learner.learning_rate=3e-4x", "learner.learning_rate should be a number, not '3e-4x'"),
        ("learner.betas=[0.9]", "learner.betas should be a longer list"),
        ("guard.auto_rollback=yes", "guard.auto_rollback should be true or false"),
        ("guard.warn_only=too-easi", "guard.warn_only should be"),
        ("leases.maximum_seconds=20", "minimum_seconds is 30, above maximum_seconds, 20"),
        ("run.stop_after=0", "run.stop_after should be greater than or equal to 1"),
        ("nothing.at_all=1", "unknown section"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(path: Path, assigned: str, words: str) -> None:
    with pytest.raises(SettingsFault, match=words) as refused:
        change(path, "run.steps=50", assigned) if "steps" not in assigned else change(path, "web.port=1", assigned)
    assert "\n" not in str(refused.value)
    assert path.read_text() == TEXT, "none is written, not even the valid one"


TYPED = {
    "a word": (["run.steps=many"], "`echo2-coord config set run.steps=many`: run.steps should be a whole number, not "),
    "against the file": (["leases.maximum_seconds=20"], "`echo2-coord config set leases.maximum_seconds=20`: leases: "),
    "of several": (["web.port=1", "run.steps=0"], "`echo2-coord config set web.port=1 run.steps=0`: run.steps should"),
    "a long one": ([f"run.steps={'9' * 100}x"], f"`echo2-coord config set run.steps={'9' * 70}...`: run.steps should"),
    "nothing": (["web.port="], "not ''; `echo2-coord config unset web.port --home {home}` removes the setting"),
    "a word for nothing": (["run.steps=None"], "not 'None'; `echo2-coord config unset run.steps --home {home}` remo"),
}


@pytest.mark.parametrize("case", TYPED)
def test_a_wrong_value_is_blamed_on_the_command_that_has_it_and_not_on_the_file(path: Path, case: str) -> None:
    assigned, said = TYPED[case]
    with pytest.raises(SettingsFault) as refused:
        change(path, *assigned)
    assert said.format(home=path.parent) in str(refused.value)
    assert "coordinator.toml" not in str(refused.value)


def test_a_variable_that_contradicts_a_typed_value_is_named(path: Path) -> None:
    with pytest.raises(SettingsFault, match=r"^ECHO2_COORD_RUN_STEPS: run\.steps should be a whole number, not 'x'"):
        change(path, "web.port=1", env={"ECHO2_COORD_RUN_STEPS": "x"})


def test_a_key_is_named_once(path: Path) -> None:
    for assigned, removed in ((["run.steps=5", "run.steps=6"], []), (["run.steps=5"], ["run.steps"])):
        with pytest.raises(SettingsFault, match=r"run\.steps is named 2 times: name it once"):
            change(path, *assigned, removed=removed)


def test_the_mark_of_a_live_setting_is_in_the_schema_and_a_signed_setting_has_none() -> None:
    schema = config.CoordinatorConfig.model_json_schema()["$defs"]
    assert schema["LearnerSection"]["properties"]["learning_rate"]["live"] is True
    assert "live" not in schema["LearnerSection"]["properties"]["device"]
    assert not config_edits.LIVE_KEYS & config_edits.SIGNED


def test_a_variable_that_overrides_the_file_is_named(path: Path) -> None:
    said = change(path, "run.steps=50", env={"ECHO2_COORD_RUN_STEPS": "60"})
    assert said == ["run.steps = 50, it was 40", "in force here is the value from ECHO2_COORD_RUN_STEPS"]


def test_settings_are_listed_with_meaning_or_origin(path: Path) -> None:
    assert list(config_edits.list_settings(path, "web.port", origin=True, env={})) == [
        "web.port = 8421  # from coordinator.toml"
    ]
    (meant,) = config_edits.list_settings(path, "web.host", origin=False, env={})
    assert meant.startswith('web.host = "127.0.0.1"  # Address to bind')
    assert len(list(config_edits.list_settings(path, None, origin=False, env={}))) > 100
    with pytest.raises(SettingsFault, match="did you mean"):
        list(config_edits.list_settings(path, "web.prt", origin=False, env={}))
    with pytest.raises(SettingsFault, match=r"did you mean learner\.learning_rate\?"):
        list(config_edits.list_settings(path, "learning_rate", origin=False, env={}))
    of_section = list(config_edits.list_settings(path, "store", origin=False, env={}))
    assert len(of_section) > 1
    assert all(row.startswith("store.") for row in of_section)


def test_only_what_differs_is_in_the_differences(path: Path) -> None:
    assert list(config_edits.list_differences(path, env={"ECHO2_COORD_WEB_HOST": "::1"})) == [
        "run.steps = 40  # default unset, from coordinator.toml",
        "run.batch_groups = 8  # default 16, from coordinator.toml",
        'web.host = "::1"  # default "127.0.0.1", from ECHO2_COORD_WEB_HOST',
        "web.port = 8421  # default 8420, from coordinator.toml",
    ]


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsFault, match="no run in"):
        change(tmp_path / "coordinator.toml", "run.steps=1")
