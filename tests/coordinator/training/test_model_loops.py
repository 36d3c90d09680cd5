"""The learner's settings come from those of the run, each under its own name."""

from pathlib import Path

import msgspec
import pytest

from echo2.coordinator.run import setup
from echo2.coordinator.settings.computing import computing_of
from echo2.coordinator.training.model_loops import course_of
from tests.support.run_folders import NOW


def test_the_learner_gets_every_setting_of_its_section(home: Path) -> None:
    run = setup.load_run(home, env={}, flags={"learner": {"learning_rate": 0.125, "seed": 9}}, now=NOW)
    course = course_of(run)
    values = msgspec.structs.asdict(course.hyper)
    assert values.pop("temperature") == run.runspec.temperature
    for name, value in values.items():
        assert value == getattr(run.config.learner, name), name
    assert (course.hyper.learning_rate, course.hyper.seed) == (0.125, 9)
    assert (course.model, course.database) == (run.folder.model, run.folder.database)
    assert course.steps == run.config.run.steps
    assert course.hosts == 1
    assert (run.config.learner.device, run.config.learner.threads) == ("auto", "auto")
    assert (course.device, course.threads) == computing_of(run.config.learner, run.config.scorer)[:2], (
        "what the journal records"
    )
    assert course.device != "auto"


def test_ranks_on_other_hosts_hear_whole_paths_also_of_a_run_folder_named_by_a_relative_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home.parent)
    learner = {"hosts": 2, "rendezvous": "10.0.0.1:29500"}
    course = course_of(setup.load_run(Path(home.name), env={}, flags={"learner": learner}, now=NOW))
    assert (course.model, course.folder) == (home / "model", home / "learner")
    assert course.hosts == 2
