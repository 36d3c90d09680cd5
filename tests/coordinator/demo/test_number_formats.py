"""The demo in several number formats: which demos are played, what their comparison says, and when it ends early."""

import io
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from rich.console import Console

from echo2.coordinator.calibration import own_classes
from echo2.coordinator.demo import demo, number_formats
from echo2.coordinator.demo.demo import Played
from echo2.coordinator.demo.demo_settings import TINY_DEMO, DemoOptions
from echo2.coordinator.demo.number_formats import play_each
from echo2.coordinator.run import first_model
from echo2.engines.engine import Dtype
from echo2.runtime.errors import LocalFault
from echo2.runtime.exit_codes import Exit
from tests.support import pictures
from tests.support.run_folders import write_model

GOOD = Played(int(Exit.OK), msgspec.structs.replace(pictures.FINISHED, accepted=640, refused={"late": 2}), 41.4)


class Demos:
    """Stands in for `play`: `ends` by format. `seen`: the options, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **ends: Played) -> None:
        self.ends, self.seen = ends, list[DemoOptions]()
        monkeypatch.setattr(number_formats, "play", self._play)

    def _play(self, options: DemoOptions, *_: object) -> Played:
        self.seen.append(options)
        return self.ends.get(options.dtype, GOOD)


def played(*dtypes: Dtype) -> tuple[int, str]:
    text = io.StringIO()
    code = play_each(DemoOptions(seed=7), dtypes, None, Console(file=text, width=200, highlight=False))
    return code, text.getvalue()


def test_each_format_is_played_once_from_the_same_seed_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = msgspec.structs.replace(pictures.FINISHED, accepted=3, refused={"evidence": 9})
    demos = Demos(monkeypatch, float16=Played(int(Exit.OK), bad, 99.6))
    code, said = played("float32", "float16", "float32")
    assert code == Exit.OK
    assert demos.seen == [DemoOptions(seed=7, dtype="float32"), DemoOptions(seed=7, dtype="float16")]
    first, last = pictures.FINISHED.evaluations[0], pictures.FINISHED.evaluations[-1]
    learnt = [f"{first.sampled:.3f}", "→", f"{last.sampled:.3f}", f"{first.greedy:.3f}", "→", f"{last.greedy:.3f}"]
    rows = {words[0]: words[1:] for words in map(str.split, said.splitlines()) if words and words[0] in demos.ends}
    assert rows["float16"] == [*learnt, "40", "3", "9", "100"]
    assert ["float32", *learnt, "40", "640", "2", "41"] in [text_line.split() for text_line in said.splitlines()]


def test_one_format_needs_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    Demos(monkeypatch)
    assert played("bfloat16") == (Exit.OK, "")


def test_a_demo_that_fails_ends_the_comparison_which_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    demos = Demos(monkeypatch, float16=Played(int(Exit.INTERNAL)))
    code, said = played("float32", "float16", "bfloat16")
    assert code == Exit.INTERNAL
    assert [one.dtype for one in demos.seen] == ["float32", "float16"]
    assert "–" in said


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the classes that the making of a demo's run calibrates, with the tokens per machine; no engine runs."""
    calibrated: list[tuple[str, int]] = []

    def calibrate(run: Any, *_: object) -> list[str]:
        calibrated.append((run.config.run.engines[0], run.config.calibration.tokens))
        return ["nodes wait"] if run.config.run.compute_dtype == "bfloat16" else []

    monkeypatch.setattr(own_classes, "calibrate_own", calibrate)
    monkeypatch.setattr(first_model, "make_model", lambda folder, *_: write_model(folder))
    monkeypatch.setattr(structlog, "configure", lambda **_: None)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return calibrated


def test_the_class_is_calibrated_with_few_tokens_and_a_closed_class_is_no_demo(
    made: list[tuple[str, int]], tmp_path: Path
) -> None:
    demo._make_run(tmp_path / "float16", demo.settings_of(DemoOptions(dtype="float16")), 0)
    bfloat16 = demo.settings_of(DemoOptions(dtype="bfloat16"))
    with pytest.raises(LocalFault, match="nodes wait"):
        demo._make_run(tmp_path / "bfloat16", bfloat16, 0)
    assert made == [("transformers/float16/cpu", 2_000), ("transformers/bfloat16/cpu", 2_000)]
    demo._make_run(tmp_path / "left closed", replace(bfloat16, calibrate=False), 0)
    assert len(made) == 2
    assert TINY_DEMO.run.get("engines") is None
