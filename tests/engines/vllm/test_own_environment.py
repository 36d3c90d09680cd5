"""The environment of vLLM's own: found where it is whole and of this echo2, else refused with a sentence."""

import importlib.util
import sys
from pathlib import Path

import msgspec
import pytest

from echo2.engines import registry
from echo2.engines.process.process import EngineProcess
from echo2.engines.vllm import availability, own_environment
from echo2.engines.vllm.own_environment import Mark


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment that is whole, of an echo2 that has no vLLM beside it."""
    monkeypatch.setenv(own_environment.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    python = own_environment.python_of(own_environment.folder())
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    write(Mark(echo2=own_environment.own_build(), vllm="vllm 0.32.0"))
    return own_environment.folder()


def write(mark: Mark) -> None:
    (own_environment.folder() / own_environment.MARK).write_bytes(msgspec.json.encode(mark))


def test_a_process_of_vllm_runs_in_its_environment_and_others_do_not(place: Path) -> None:
    assert availability.missing() == []
    assert EngineProcess(engine="vllm")._argv[0] == str(place / "bin/python")
    assert EngineProcess()._argv[0] == sys.executable
    assert EngineProcess().aim("transformers")._argv[0] == sys.executable
    assert EngineProcess().aim("vllm").aim("transformers")._argv[0] == sys.executable
    assert EngineProcess(command=["a program"]).aim("vllm")._argv == ["a program"]


def test_where_vllm_is_installed_beside_echo2_that_is_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert own_environment.python() is None


def test_an_environment_of_another_echo2_is_refused_with_both_builds(place: Path) -> None:
    write(Mark(echo2="0.0.1 /elsewhere", vllm="vllm 0.32.0"))
    (lacks,) = availability.missing()
    assert own_environment.own_build() in lacks
    assert "its own has 0.0.1 /elsewhere" in lacks
    assert own_environment.python() is None
    with pytest.raises(registry.UnknownEngine, match="echo2-node engine install vllm"):
        registry.choose("vllm")


@pytest.mark.parametrize("fault", ["no mark", "a damaged mark", "no Python"])
def test_an_environment_that_is_not_whole_is_none(fault: str, place: Path) -> None:
    if fault == "no Python":
        (place / "bin/python").unlink()
    else:
        (place / own_environment.MARK).write_bytes(b"{")
    if fault == "no mark":
        (place / own_environment.MARK).unlink()
    assert own_environment.mark() is None
    assert availability.missing() == ["vllm"]


def test_it_lies_in_the_users_data_unless_a_variable_names_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(own_environment.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert own_environment.folder() == Path("/data/echo2/engines/vllm")
