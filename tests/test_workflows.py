"""The workflows that would run elsewhere: what they call exists here, and each action is pinned by its commit."""

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EACH = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(path).values():
        yield from job["steps"]


@EACH
def test_every_target_and_script_that_a_workflow_calls_exists(path: Path) -> None:
    commands = "\n".join(step.get("run", "") for step in steps(path))
    assert set(re.findall(r"\bmake ([a-z0-9-]+)", commands)) - TARGETS == set()
    for script in re.findall(r"^(\.[\w/]+)$", commands, re.MULTILINE):
        assert os.access(ROOT / script, os.X_OK), script


@EACH
def test_where_figures_are_held_against_their_commits_the_whole_history_is_there(path: Path) -> None:
    for job in jobs(path).values():
        if any(step.get("run") == ".ci/run" for step in job["steps"]):
            assert [step["with"]["fetch-depth"] for step in job["steps"] if "checkout" in step.get("uses", "")] == [0]


@EACH
def test_every_action_is_pinned_by_its_commit_and_names_its_version(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text())
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


def test_an_action_has_one_commit_in_all_workflows() -> None:
    used = {pin for path in FILES for pin in re.findall(r"uses: (\S+)", path.read_text())}
    assert len(used) == len({pin.partition("@")[0] for pin in used})


@EACH
def test_no_job_waits_for_ever_or_may_write_more_than_it_needs(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    for name, job in jobs(path).items():
        assert job["timeout-minutes"] <= (240 if name == "test-all" else 60), name
        granted = {right for right, level in job.get("permissions", {}).items() if level == "write"}
        assert granted == ({"id-token"} if name == "publish" else set()), name


def test_files_go_up_only_for_a_tag_after_all_were_built_with_attestations_and_no_token() -> None:
    publish = jobs(ROOT / ".github/workflows/release.yml")["publish"]
    assert (publish["if"], publish["environment"]) == ("github.event_name == 'push'", "pypi")
    assert set(publish["needs"]) == set(jobs(ROOT / ".github/workflows/release.yml")) - {"publish"}
    upload = publish["steps"][-1]
    assert upload["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert upload["with"]["attestations"] is True
    assert "secrets." not in "".join(path.read_text() for path in FILES)


def test_the_tag_is_compared_with_the_version_as_pyproject_writes_it() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    version = tomllib.loads("\n".join(lines))["project"]["version"]
    assert lines.count(f'version = "{version}"') == 1


def test_the_platforms_of_the_first_release_are_built_and_tested() -> None:
    tested = jobs(ROOT / ".github/workflows/ci.yml")["test-dist"]["strategy"]["matrix"]["os"]
    built = jobs(ROOT / ".github/workflows/release.yml")["wheels"]["strategy"]["matrix"]["os"]
    assert set(tested) <= set(built)
    assert {"ubuntu-24.04", "ubuntu-24.04-arm", "macos-14"} <= set(tested)


def test_the_slow_tests_run_each_night_on_linux_and_no_push_waits_for_them() -> None:
    nightly = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
    assert nightly[True].keys() == {"schedule", "workflow_dispatch"}  # YAML reads `on` as true
    (job,) = nightly["jobs"].values()
    assert (job["runs-on"], job["steps"][-1]["run"]) == ("ubuntu-24.04", "make test-all")


def test_releasing_names_the_workflow_and_the_files_that_it_changes() -> None:
    text = (ROOT / "RELEASING.md").read_text()
    for name in ("release.yml", "ci.yml", "nightly.yml", "CHANGELOG.md", "changes/README.md", "PUBLISHED"):
        assert name in text
