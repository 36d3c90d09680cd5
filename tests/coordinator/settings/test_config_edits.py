"""Settings of a run folder, read and changed by their operator."""

from pathlib import Path

import pytest

from echo2.coordinator.settings import config, config_edits
from echo2.runtime.settings import SettingsFault

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


def test_a_key_changes_in_place_and_all_else_stays(path: Path) -> None:
    said = config_edits.change(path, "run.steps", "50", env={})
    assert said == ["run.steps = 50, it was 40: it counts from the coordinator's next start"]
    assert path.read_text() == TEXT.replace("steps = 40 ", "steps = 50 ")


def test_a_new_key_and_a_new_section_are_added(path: Path) -> None:
    config_edits.change(path, "learner.learning_rate", "1e-5", env={})
    config_edits.change(path, "network.listen", "/ip4/1.2.3.4/tcp/4310, /ip4/1.2.3.4/tcp/4312", env={})
    settings = config.load(path, env={})
    assert settings.learner.learning_rate == 1e-5
    assert settings.network.listen == ("/ip4/1.2.3.4/tcp/4310", "/ip4/1.2.3.4/tcp/4312")
    assert "# mine" in path.read_text()


def test_a_removed_key_has_its_default_again(path: Path) -> None:
    assert config_edits.change(path, "run.batch_groups", None, env={})[0].startswith("run.batch_groups = 16, it was 8")
    assert "batch_groups" not in path.read_text()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("run.limit", "512", "is signed, and binds nodes"),
        ("run.description", "other", "is signed"),
        ("run.template", "chat", "is signed"),
        ("run.stepz", "1", r"did you mean run\.steps"),
        ("steps", "1", "write section.key=value"),
        ("run.steps", "many", "run.steps should be"),
        ("run.steps", "0", "run.steps should be"),
        ("run.publish_every", "6", "it can be at most 5"),
        ("nothing.at_all", "1", "unknown section"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(path: Path, key: str, value: str, words: str) -> None:
    with pytest.raises(SettingsFault, match=words):
        config_edits.change(path, key, value, env={})
    assert path.read_text() == TEXT


def test_a_variable_that_overrides_the_file_is_named(path: Path) -> None:
    said = config_edits.change(path, "run.steps", "50", env={"ECHO2_COORD_RUN_STEPS": "60"})
    assert said[1] == "in force here is the value from ECHO2_COORD_RUN_STEPS"


def test_settings_are_listed_with_meaning_or_origin(path: Path) -> None:
    assert list(config_edits.list_settings(path, "web.port", origin=True, env={})) == [
        "web.port = 8421  # from coordinator.toml"
    ]
    (meant,) = config_edits.list_settings(path, "web.host", origin=False, env={})
    assert meant.startswith('web.host = "127.0.0.1"  # Address to bind')
    assert len(list(config_edits.list_settings(path, None, origin=False, env={}))) > 100
    with pytest.raises(SettingsFault, match="did you mean"):
        list(config_edits.list_settings(path, "web.prt", origin=False, env={}))


def test_only_what_differs_is_in_the_differences(path: Path) -> None:
    assert list(config_edits.list_differences(path, env={"ECHO2_COORD_WEB_HOST": "::1"})) == [
        "run.steps = 40  # default unset, from coordinator.toml",
        "run.batch_groups = 8  # default 16, from coordinator.toml",
        'web.host = "::1"  # default "127.0.0.1", from ECHO2_COORD_WEB_HOST',
        "web.port = 8421  # default 8420, from coordinator.toml",
    ]


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsFault, match="no run in"):
        config_edits.change(tmp_path / "coordinator.toml", "run.steps", "1", env={})
