"""Fragments of the changelog are as changes/README.md asks, and are gathered by kind."""

from pathlib import Path

from tests import changes
from tests.support.paths import ROOT


def test_every_change_is_a_file_as_the_readme_asks() -> None:
    assert changes.wrong(ROOT / "changes") == []


def test_the_readme_names_each_kind() -> None:
    text = (ROOT / "changes" / "README.md").read_text()
    assert [kind for kind in changes.KINDS if f"| `{kind}` |" not in text] == []


def test_a_file_that_is_no_change_is_named(tmp_path: Path) -> None:
    wrong = {"40.md": "A.", "40.news.md": "A.", "40.fix.md": " ", "41.fix.md": "- A.", "42.fix.md": "A."}
    for name, text in wrong.items():
        (tmp_path / name).write_text(text)
    assert [fault.split(":")[0] for fault in changes.wrong(tmp_path)] == [
        name for name in sorted(wrong) if name[:2] != "42"
    ]


def test_changes_are_gathered_by_kind(tmp_path: Path) -> None:
    (tmp_path / "a.fix.md").write_text("A fault\nis gone.\n")
    (tmp_path / "b.format.md").write_text("The store has form 2.\n")
    assert changes.gathered(tmp_path) == "### Formats\n\n- The store has form 2.\n\n### Fixed\n\n- A fault is gone."


def test_the_changelog_has_one_page_and_the_version_of_the_package() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert "\n## 0.1.0" in text
    assert len(text) < 6_000
