"""The written settings read back as they were."""

import tomllib

from echo2.coordinator.settings import config, config_docs
from echo2.coordinator.settings.config import CoordinatorConfig


def test_the_written_settings_read_back_as_the_defaults() -> None:
    written = config_docs.toml(CoordinatorConfig())
    assert config.parse(tomllib.loads(written), source="it") == CoordinatorConfig()
    assert not [row for row in written.splitlines() if row.startswith("#") and "  " in row]


def test_settings_that_differ_from_the_defaults_survive_being_written() -> None:
    given = {
        "run": {"steps": 7, "name": 'a "quoted" name\\', "engines": ["a", "b"]},
        "learner": {"betas": [0.5, 0.75], "learning_rate": 1e-07},
    }
    settings = config.parse(given, source="it")
    assert settings.run.steps == 7
    assert config.parse(tomllib.loads(config_docs.toml(settings)), source="it") == settings


def test_the_first_table_has_at_most_40_settings_and_each_exists() -> None:
    keys = {(name, key) for name, model in config.sections() for key in model.model_fields}
    first = [(name, key) for name, words in config_docs.FIRST_SETTINGS.items() for key in words.split()]
    assert len(first) == len(set(first)) <= 40
    assert set(first) <= keys


def test_the_written_file_leaves_out_expert_settings_that_have_their_defaults() -> None:
    usual = config_docs.toml(CoordinatorConfig())
    assert "minibatches" not in usual
    changed = config.parse({"learner": {"minibatches": 2}}, source="it")
    assert "minibatches = 2" in config_docs.toml(changed)
