"""The TOML file of a run on a taskset, and the Python that it names."""

import sys
from pathlib import Path

import pytest

from echo2.tasks import plugins
from echo2.tasks.verifiers import taskset_file
from echo2.tasks.verifiers.taskset_file import TasksetFault

ENV = '[env]\ntaskset = {id = "my-taskset"}\n'


def written(folder: Path, text: str) -> str:
    path = folder / "a.toml"
    path.write_text(text)
    return str(path)


def test_a_file_names_the_taskset_and_may_name_a_python(tmp_path: Path) -> None:
    told = taskset_file.read(written(tmp_path, f'python = "{sys.executable}"\n{ENV}'))
    assert told.env == {"taskset": {"id": "my-taskset"}}
    assert (told.success, told.rows, told.renderer) == (1.0, 4096, None)


def test_folders_are_looked_for_from_the_files_own(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    told = taskset_file.read(written(tmp_path, f'python = "{sys.executable}"\npath = [".", "/usr", "b"]\n{ENV}'))
    assert told.path == [str(tmp_path), "/usr", str(tmp_path / "b")]


@pytest.mark.parametrize(
    ("text", "reason"),
    {
        "no TOML": ("env =", "cannot be used"),
        "no environment": ('python = "x"', "env"),
        "an unknown key": (f"rewards = 3\n{ENV}", "rewards"),
        "another type": (f'rows = "all"\n{ENV}', "rows"),
        "a Python that is not there": (
            f'python = "/nowhere/python"\n{ENV}',
            r"no Python .* install .*\[verifiers\]",
        ),
        "a folder that is not there": (
            f'python = "{sys.executable}"\npath = ["/nowhere"]\n{ENV}',
            "there is no folder /nowhere, which .*a.toml names",
        ),
    }.values(),
)
def test_a_file_that_cannot_be_used_is_refused_with_a_sentence(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(TasksetFault, match=reason):
        taskset_file.read(written(tmp_path, text))


@pytest.mark.parametrize("argument", ["", "a.toml"])
def test_a_path_that_is_not_absolute_is_refused(argument: str) -> None:
    with pytest.raises(TasksetFault, match="absolute path"):
        taskset_file.read(argument)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TasksetFault, match=r"none\.toml cannot be read: No such file"):
        taskset_file.read(str(tmp_path / "none.toml"))


def test_a_python_without_verifiers_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, f'python = "{sys.executable}"\n{ENV}')
    with pytest.raises(plugins.PluginFault, match=r"the Python at .* has no verifiers: .* verifiers==0\.4\.0"):
        plugins.find(f"verifiers:{path}")


def test_the_files_of_a_taskset_are_its_folders_and_its_python_with_what_that_is_a_link_to(tmp_path: Path) -> None:
    for name in ("made/bin", "base/bin", "sets"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "base/bin/python").touch()
    (tmp_path / "made/bin/python").symlink_to("../../base/bin/python")
    text = f'python = "{tmp_path}/made/bin/python"\npath = ["sets"]\n{ENV}'
    argument = written(tmp_path, text)
    named = [str(tmp_path / "sets"), str(tmp_path / "made"), f"{tmp_path}/made/bin/../../base"]
    assert taskset_file.files(argument) == named
    assert plugins.files_of(f"verifiers:{argument}") == [*named, argument]
    assert plugins.files_of("verifiers:/no.toml") == ["/no.toml"]
