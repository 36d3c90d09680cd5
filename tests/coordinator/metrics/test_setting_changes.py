"""The changes of settings in run.sqlite, with the steps from which they count."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from echo2.coordinator.database.database import Database
from echo2.coordinator.metrics import setting_changes
from echo2.coordinator.metrics.setting_changes import note_settings, read_changes, settle_steps
from echo2.coordinator.settings import config, config_edits
from echo2.coordinator.settings.config import CoordinatorConfig

BEFORE = {"run.steps": "40", "learner.learning_rate": "0.001", "web.host": '"127.0.0.1"'}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database.open(tmp_path / "run.sqlite") as opened:
        note_settings(opened, 1, BEFORE, {})
        yield opened


def test_only_what_differs_from_the_settings_before_is_a_change_and_some_is_private(database: Database) -> None:
    assert read_changes(database, public=False) == [], "the first settings of a run change nothing"
    later = {**BEFORE, "run.steps": "50", "web.host": '"0.0.0.0"', "run.stop_after": "unset"}
    note_settings(database, 2, later, {"run.steps": 7})
    note_settings(database, 3, later, {})
    found = [(one.key, one.old, one.new, one.step, one.at) for one in read_changes(database, public=False)]
    assert found == [("web.host", '"127.0.0.1"', '"0.0.0.0"', None, 2), ("run.steps", "40", "50", 7, 2)]
    assert [one.key for one in read_changes(database, public=True)] == ["run.steps"]
    assert read_changes(database, public=True)[0].sentence() == "run.steps = 50, it was 40, from step 7"


def test_the_host_at_which_the_learners_of_several_machines_meet_is_private(database: Database) -> None:
    later = {**BEFORE, "learner.learning_rate": "0.002"}
    note_settings(database, 2, {**later, "learner.rendezvous": '""'}, {})
    note_settings(database, 3, {**later, "learner.rendezvous": '"gpu1:29500"'}, {})
    assert [one.key for one in read_changes(database, public=True)] == ["learner.learning_rate"]
    assert [one.key for one in read_changes(database, public=False)] == ["learner.rendezvous", "learner.learning_rate"]


def test_no_other_setting_whose_changes_the_page_shows_is_a_text_of_the_operators_own() -> None:
    definitions = CoordinatorConfig.model_json_schema()["$defs"]
    texts = {
        f"{section}.{name}"
        for section, model in config.sections()
        if section in setting_changes.PUBLIC_SECTIONS
        for name in model.model_fields
        if has_own_text(definitions[model.__name__]["properties"][name])
    }
    assert texts - config_edits.SIGNED == {"learner.device", "learner.rendezvous"}


def has_own_text(schema: Mapping[str, Any]) -> bool:
    """Tell whether a JSON schema admits texts that it does not name one by one."""
    if schema.get("type") == "string":
        return "enum" not in schema and "const" not in schema
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if isinstance(schema.get("items"), dict) else [])]
    return any(map(has_own_text, parts))


def test_a_change_of_a_step_that_was_lost_counts_from_the_next_one(database: Database) -> None:
    for step, rate in ((3, "0.002"), (8, "0.003"), (None, "0.004")):
        note_settings(database, 2, {**BEFORE, "learner.learning_rate": rate}, {"learner.learning_rate": step})
    settle_steps(database, 6)
    assert [one.step for one in read_changes(database, public=True)] == [6, 6, 3]


def test_the_commands_show_the_changes_as_comments(database: Database, tmp_path: Path) -> None:
    note_settings(database, 86_400_000, {**BEFORE, "run.steps": "50"}, {"run.steps": 7})
    assert setting_changes.lines_of(tmp_path / "run.sqlite") == [
        "# 1970-01-02 00:00 UTC: run.steps = 50, it was 40, from step 7"
    ]
    assert setting_changes.lines_of(tmp_path / "none.sqlite") == []


def test_the_host_at_which_ranks_meet_is_not_public(database: Database) -> None:
    for place in ("", "10.0.0.1:29500"):
        note_settings(database, 1, {"learner.rendezvous": place, "learner.hosts": f"{2 if place else 1}"}, {})
    assert [one.key for one in read_changes(database, public=True)] == ["learner.hosts"]
    assert len(read_changes(database, public=False)) == 2
