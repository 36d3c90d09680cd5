"""Requirements of an installed library that the environment lacks are named."""

from pathlib import Path

import pytest

from echo2.runtime.declared_requirements import lacking


def install(folder: Path, name: str, *needs: str) -> None:
    facts = folder / f"{name.replace('-', '_')}-1.dist-info"
    facts.mkdir()
    rows = [f"Name: {name}", "Version: 1", *(f"Requires-Dist: {need}" for need in needs)]
    (facts / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(rows) + "\n")


def test_a_missing_requirement_of_a_requirement_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "e2-upper", "E2_Middle>=1", "e2-lost[fast] (>2)")
    install(tmp_path, "e2_middle", "e2-upper", "e2.gone")
    assert lacking(["e2-upper"]) == ["e2-lost", "e2.gone"]


def test_what_only_some_platforms_need_and_what_has_no_metadata_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "e2-upper", 'e2-windows; sys_platform == "win32"', 'e2-fast; extra == "fast"')
    assert lacking(["e2-upper", "e2-unknown"]) == []
