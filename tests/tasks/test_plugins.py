"""Tasks by entry point: found by name, and every fault of a plug-in is one sentence."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from echo2.tasks import plugins
from echo2.tasks.arithmetic import REVERSE_TASK
from echo2.tasks.plugins import PluginFault
from echo2.tasks.registry import UnknownTask
from tests.support import plugin_packages

HERE = "tests.support.faulty_tasks"


def point(name: str, target: str) -> EntryPoint:
    return EntryPoint(name, target, plugins.GROUP)


def test_a_task_of_an_installed_package_is_listed_and_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin_packages.install(tmp_path, monkeypatch, {"faulty": f"{HERE}:faulty"})
    assert plugins.Family("faulty", "toys 1.0") in plugins.families()
    assert plugins.find("faulty:none").name == "faulty:none"
    assert plugins.find("faulty:none", 1).version == 1


def test_a_task_of_this_build_is_opened_in_its_newest_version() -> None:
    assert plugins.find("reverse") is REVERSE_TASK
    with pytest.raises(UnknownTask, match="reverse version 7 is not in this build, which has 1"):
        plugins.find("reverse", 7)


FAULTS = {
    "no such task": ("chess", {}, "there is no task chess; known are .*reverse.*: correct the name"),
    "a name that is misspelt": ("rverse", {}, "there is no task rverse; did you mean reverse\\? known are "),
    "no argument behind the colon": ("math:", {}, "name math, or math:ARGUMENT"),
    "an argument for a task that takes none": ("add:5", {}, "task add takes no argument: name it add, not add:5"),
    "no data": ("verifiers:/no.toml", {}, r"^the task verifiers:/no\.toml cannot be made: /no\.toml cannot be read"),
    "a name of ours": ("add", {"add": "faulty"}, "brings a task named add, which echo2 has itself"),
    "a module that is missing": ("x", {"x": "!nowhere"}, "cannot be imported: ModuleNotFoundError"),
    "an attribute that is missing": ("x", {"x": "nothing"}, "cannot be imported: AttributeError"),
    "a function that raises": ("raises:/data", {"raises": "raises"}, "ValueError: no data in /data"),
    "a function without enough memory": ("hungry", {"hungry": "hungry"}, "needs more memory than its process has"),
    "a thing that is no task": ("number", {"number": "number"}, "gives int, which lacks a method"),
    "another name": ("misnamed", {"misnamed": "misnamed"}, "asked for the task misnamed and gives one named"),
    "a version that is no number": ("unversioned:x", {"unversioned": "unversioned"}, "gives the version 'one'"),
}


@pytest.mark.parametrize(("name", "points", "sentence"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_told(name: str, points: dict[str, str], sentence: str) -> None:
    brought = [point(one, target[1:] if target[0] == "!" else f"{HERE}:{target}") for one, target in points.items()]
    with pytest.raises(PluginFault, match=sentence):
        plugins.find(name, points=brought)


def test_another_version_than_the_runs_is_told() -> None:
    with pytest.raises(PluginFault, match=r"the run was made with version 2 of task faulty:x, and .* has version 1"):
        plugins.find("faulty:x", 2, [point("faulty", f"{HERE}:faulty")])


def test_two_packages_with_one_name_are_both_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("toys", "games"):
        plugin_packages.install(tmp_path / package, monkeypatch, {"faulty": f"{HERE}:faulty"}, package)
    with pytest.raises(PluginFault, match=r"games 1\.0 and toys 1\.0 both bring a task named faulty: uninstall one"):
        plugins.find("faulty:x")


def test_the_files_of_a_task_are_the_place_of_its_package_and_the_path_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin_packages.install(tmp_path, monkeypatch, {"faulty": f"{HERE}:faulty"})
    assert {Path(file).name for file in plugins.files_of("faulty:none")} == {"tests"}
    assert plugins.files_of("math:/data/problems.jsonl") == ["/data/problems.jsonl"]
    (tmp_path / "set").mkdir()
    (tmp_path / "set/rows.parquet").symlink_to(tmp_path / "blob")
    path = f"{tmp_path}/set"
    assert plugins.files_of(f"math:{path}?answer=a") == [f"{path}?answer=a", path, str(tmp_path / "blob")]
    assert plugins.files_of("reverse") == []
