"""The cells of the staleness benchmark, its picture and its tables."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import learning
from benchmarks.harness.seeds import standard_error
from benchmarks.staleness import __main__ as staleness
from benchmarks.staleness.figure import drawing, markdown


def test_only_cells_that_the_file_lacks_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned = list[learning.Setting]()

    def learn(model: object, setting: learning.Setting, seed: int) -> learning.Outcome:
        learned.append(setting)
        return learning.Outcome(0.1, 0.5 + seed / 10, 0.1, 0.9, 0.0, 0.0, 0.0, [])

    monkeypatch.setattr(learning, "warmed", lambda setting, seed: object())
    monkeypatch.setattr(learning, "learn", learn)
    place, wanted = tmp_path / "cells.json", list(staleness.cells())
    assert len(wanted) == len({cell.name for cell in wanted}) == 3 * (3 * 7 * 3 + 5 * 4 * 2)
    staleness.measure(wanted[:5], place)
    staleness.measure(wanted[:7], place)
    assert [setting.staleness for setting in learned] == [0, 2, 4, 6, 8, 11, 16]
    assert len(json.loads(place.read_text())) == 7


def test_the_picture_has_a_line_per_rate_and_a_bar_per_point() -> None:
    curves = {("decoupled", rate): {0: [0.8, 0.9], 16: [0.1 * rate, 0.2]} for rate in (1.0, 3.0)}
    root = ElementTree.fromstring(drawing(curves))
    lines = [one for one in root.iter() if one.tag.endswith("polyline")]
    bars = [one for one in root.iter() if one.tag.endswith("path") and one.get("class", "").startswith("c")]
    assert (len(lines), len(bars)) == (4, 4), "two of the lines are the key"


def test_the_tables_have_means_and_standard_errors() -> None:
    text = markdown({("grpo", 1.0): {4: [0.5, 0.7]}, ("grpo", 3.0): {}}, 0.1)
    assert standard_error([0.5, 0.7]) == pytest.approx(0.1)
    assert "| 4 | 0.600 ± 0.100 | – |" in text
