"""The native build is present or absent; no result depends on which."""

import platform
import runpy
import shutil
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging import tags
from packaging.tags import Tag

import hatch_build
from echo2.weights.codec import native
from echo2.weights.codec.exponent_classes import LAYOUTS, REFERENCE
from tests.support.paths import PACKAGES, ROOT

SOURCE = Path(native.__file__).parent / "classes.c"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(SOURCE, tmp_path)
    return tmp_path


def test_without_a_compiler_nothing_is_built_and_nothing_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    assert hatch_build.compile_levels(folder) == []
    monkeypatch.setattr(native, "_FOLDER", folder)
    assert native.best() is None


def test_a_compiler_that_fails_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    monkeypatch.delenv("ECHO2_NATIVE", raising=False)
    assert hatch_build.compile_levels(folder) == []
    assert [path.name for path in folder.iterdir()] == ["classes.c"]
    monkeypatch.setenv("ECHO2_NATIVE", "1")
    with pytest.raises(Exception, match="false"):
        hatch_build.compile_levels(folder)


def test_a_compiler_is_a_command_with_arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = folder / "recorder.py"
    recorder.write_text("import sys; open(sys.argv[sys.argv.index('-o') + 1], 'w').write(' '.join(sys.argv[1:3]))")
    monkeypatch.setenv("CC", f"'{sys.executable}' '{recorder}' cc")
    monkeypatch.delenv("ECHO2_NATIVE", raising=False)
    built = hatch_build.compile_levels(folder)
    assert [path.read_text() for path in built] == ["cc -O3"] * len(hatch_build.LEVELS)


def test_two_builds_at_once_leave_each_other_what_they_have_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second build goes from its beginning to its end while the first one compiles its last level."""
    seconds: list[list[Path]] = []

    def compile_one(command: list[str], **_: object) -> None:
        if command[-1].endswith(f"{len(hatch_build.LEVELS) - 1}.so") and not seconds:
            seconds.append([])
            seconds[0] += hatch_build.compile_levels(folder)
        assert all(path.exists() for built in seconds for path in built)
        Path(command[-1]).write_text(str(len(seconds)))

    monkeypatch.setenv("ECHO2_NATIVE", "1")
    monkeypatch.setattr(hatch_build.subprocess, "run", compile_one)
    (folder / "classes9.so").touch()
    first = hatch_build.compile_levels(folder)
    assert sorted(folder.iterdir()) == [folder / "classes.c", *first] == [folder / "classes.c", *seconds[0]]


def test_a_file_beside_the_links_hinders_no_build_and_a_lost_link_does(tmp_path: Path) -> None:
    assert hatch_build.PACKAGES == PACKAGES
    for name in PACKAGES:
        (tmp_path / name).mkdir()
    for stray in (".DS_Store", "notes", "_libp2p"):
        (tmp_path / stray).touch()
    hatch_build.check_links(tmp_path)
    (tmp_path / "node").rmdir()
    (tmp_path / "node").write_text("../node")
    with pytest.raises(SystemExit, match="links were lost"):
        hatch_build.check_links(tmp_path)


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no compiler")
@pytest.mark.slow
def test_every_level_is_built_and_writes_the_same_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(hatch_build.compile_levels(folder)) == len(hatch_build.LEVELS)
    monkeypatch.setattr(native, "_FOLDER", folder)
    builds = native.builds()
    assert builds
    old = np.arange(5000, dtype=np.uint16)
    new = old + (old % 7 == 0)
    layout = LAYOUTS["F16"]
    assert {build.encode(old, new, layout, 5000) for build in builds} == {REFERENCE.encode(old, new, layout, 5000)}


@pytest.mark.parametrize(
    ("processor", "variables", "wanted"),
    [
        ("arm64", {}, "macosx_15_0_arm64"),
        ("x86_64", {}, "macosx_15_0_x86_64"),
        ("arm64", {"ARCHFLAGS": "-arch x86_64", "MACOSX_DEPLOYMENT_TARGET": "10.13"}, "macosx_10_13_x86_64"),
        ("arm64", {"ARCHFLAGS": "-arch arm64 -arch x86_64"}, "macosx_15_0_universal2"),
    ],
)
def test_a_wheel_for_macos_names_the_processors_of_its_library_and_not_those_of_python(
    processor: str, variables: dict[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ARCHFLAGS", "MACOSX_DEPLOYMENT_TARGET"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "macosx-10.9-universal2")
    monkeypatch.setattr(
        tags, "sys_tags", lambda: (Tag("cp311", "cp311", one) for one in tags.mac_platforms((15, 3), processor))
    )
    assert hatch_build.platform_of(WheelBuilder(str(ROOT))) == wanted


def test_the_compiler_gets_the_processors_that_a_wheel_for_macos_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    for flags, levels in {"": 1, "-arch x86_64": 3, "-arch arm64 -arch x86_64": 1}.items():
        monkeypatch.setenv("ARCHFLAGS", flags)
        module = runpy.run_path(hatch_build.__file__)
        assert (" ".join(module["ARCHITECTURES"]), len(module["LEVELS"])) == (flags, levels)
    recorder = folder / "recorder.py"
    recorder.write_text("import sys; open(sys.argv[sys.argv.index('-o') + 1], 'w').write(' '.join(sys.argv))")
    monkeypatch.setenv("CC", f"'{sys.executable}' '{recorder}'")
    monkeypatch.setattr(hatch_build, "ARCHITECTURES", ["-arch", "arm64"])
    assert all("-arch arm64" in path.read_text() for path in hatch_build.compile_levels(folder))


def test_a_library_for_another_system_is_as_good_as_absent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "classes0.so").write_bytes(b"MZ no library of this system")
    monkeypatch.setattr(native, "_FOLDER", folder)
    assert native.best() is None


def test_frames_of_two_lengths_are_no_frame() -> None:
    build = native.best()
    if build is not None:
        with pytest.raises(ValueError, match="two lengths"):
            build.encode(np.zeros(2, np.uint16), np.zeros(3, np.uint16), LAYOUTS["BF16"], 2)
