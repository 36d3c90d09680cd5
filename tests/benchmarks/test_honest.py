import sqlite3
from pathlib import Path

import pytest

from benchmarks.honest import Ended, Options, ends, report, settings_of
from coordinator.config import parse

OPTIONS = Options("tiny", "transformers/float16/cpu", 160, 1, 2_000, 60.0)


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_run_of_each_format_is_one_that_a_coordinator_takes(model: str, dtype: str) -> None:
    settings = settings_of(OPTIONS._replace(model=model, engine_class=f"transformers/{dtype}/cpu"))
    config = parse({"run": dict(settings.run), "learner": dict(settings.learner)}, source="the benchmark")
    assert config.run.compute_dtype == dtype
    assert config.run.engines == (f"transformers/{dtype}/cpu",)


def test_a_refused_group_is_counted_by_its_rollouts_and_late_ones_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    honest = [Ended("accepted", "ok", 15, 240, 2400), Ended("refused", "late", 3, 48, 400)]
    assert report(OPTIONS, honest, 16, 9.0) == 0
    out = capsys.readouterr().out
    assert "0 of 240 rollouts refused in 9 s: the rate is below 0.013 at 95 %" in out
    assert "transformers/float16/cpu: ratio 0.000 against 240 rollouts, bar 0: ok" in out
    assert report(OPTIONS, [*honest, Ended("refused", "evidence", 1, 16, 99)], 16, 9.0) == 1
    assert "16 of 256 rollouts refused" in capsys.readouterr().out


def test_a_run_that_was_cut_off_says_so_and_one_without_a_verdict_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(OPTIONS, [Ended("accepted", "ok", 2, 32, 320)], 16, 9.0) == 0
    assert "ended by the clock, 160 rollouts were asked for" in capsys.readouterr().out
    assert report(OPTIONS, [Ended("expired", "expired", 4, 0, 0)], 16, 9.0) == 1


def test_the_ends_of_a_run_are_read_over_all_nodes(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE sums (node, verdict, code, groups, trainable, rollouts, tokens, weight)")
        for node, groups in ((b"a", 2), (b"b", 3), (b"", 5)):
            connection.execute(
                "INSERT INTO sums VALUES (?, 'accepted', 'ok', ?, 0, ?, ?, 0)", (node, groups, 16 * groups, 9)
            )
    assert ends(path) == [Ended("accepted", "ok", 5, 80, 9)]
