"""What `--set` says is never overridden by an option that was not given, for any key."""

from pathlib import Path

import pytest
import tomlkit

from echo2.coordinator.command_line.making_app import settings_of_init
from echo2.coordinator.command_line.running_app import settings_of_run
from echo2.coordinator.run.setup import settings_for
from echo2.coordinator.settings.config import CoordinatorConfig, from_assignments, sections

KEYS = [(section, key) for section, model in sections() for key in model.model_fields]


def words(section: str, key: str) -> list[str]:
    """Return the assignment of a key's default, which is a value of its type."""
    default = getattr(getattr(CoordinatorConfig(), section), key)
    plain = list(default) if isinstance(default, tuple) else default
    value = "" if plain is None else tomlkit.item(plain).as_string()
    return [f"{section}.{key}={value}"]


@pytest.mark.parametrize(("section", "key"), KEYS, ids=[f"{section}.{key}" for section, key in KEYS])
def test_options_that_are_not_given_say_nothing(section: str, key: str) -> None:
    said = words(section, key)
    for settings in (settings_of_init(said), settings_of_run(said)):
        given = {name: values for name, values in settings.items() if values}
        assert given == from_assignments(said)


@pytest.mark.parametrize("name", ["run.name=chosen", 'run.name="chosen"'])
def test_a_run_has_the_name_that_it_is_given_and_else_its_folders(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    assert settings_for("tiny", settings_of_init([name]), {}, name=folder.name).run.name == "chosen"
    assert settings_for("tiny", settings_of_init([]), {}, name=folder.name).run.name == "folder"
    assert settings_for("tiny", settings_of_init([], name="option"), {}, name=folder.name).run.name == "option"
    variable = {"ECHO2_COORD_RUN_NAME": "variable"}
    assert settings_for("tiny", settings_of_init([]), variable, name=folder.name).run.name == "variable"
