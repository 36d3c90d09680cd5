import sqlite3
from pathlib import Path

import pytest
import structlog

from benchmarks.honest import NOT_JUDGED, Ended, Options, ends, play, report, settings_of
from echo2.coordinator.demo.demo import real_programs
from echo2.coordinator.settings.config import parse
from echo2.weights.lora.adapter_folder import AdapterOrder
from echo2.weights.lora.frozen_base import BaseFormat
from tests.support import llama_cpp

OPTIONS = Options("tiny", "transformers/float16/cpu", 160, 1, 2_000, 60.0)


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_run_of_each_format_is_one_that_a_coordinator_takes(model: str, dtype: str) -> None:
    settings = settings_of(OPTIONS._replace(model=model, engine_class=f"transformers/{dtype}/cpu"))
    config = parse({"run": dict(settings.run), "learner": dict(settings.learner)}, source="the benchmark")
    assert config.run.compute_dtype == dtype
    assert config.run.engines == (f"transformers/{dtype}/cpu",)


@pytest.mark.parametrize("base", ["q8_0", "q4_0"])
def test_a_class_that_computes_in_blocks_has_a_run_with_an_adapter_over_such_a_base(base: BaseFormat) -> None:
    settings = settings_of(OPTIONS._replace(engine_class="llamacpp/blocks/cpu", base=base))
    assert settings.adapter == AdapterOrder(16, 32.0, base=base)
    config = parse({"run": dict(settings.run), "learner": dict(settings.learner)}, source="the benchmark")
    assert config.run.compute_dtype == "blocks"
    assert settings_of(OPTIONS).adapter is None


CLASSES = [
    "transformers/float16/cpu",
    *(
        pytest.param(f"llamacpp/{dtype}/cpu", marks=llama_cpp.needed, id=f"llamacpp/{dtype}/cpu")
        for dtype in ("float16", "bfloat16", "blocks")
    ),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine_class", CLASSES)
def test_a_class_is_calibrated_by_command_and_a_node_of_it_loses_no_group(
    engine_class: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole run: coordinator, learner, scorer, `echo2-coord calibrate` and `echo2-node join`."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(structlog, "configure", lambda **_: None)  # of this process
    options = OPTIONS._replace(engine_class=engine_class, seconds=200.0)
    ended, _ = play(options, settings_of(options), real_programs(), tmp_path)
    judged = [one for one in ended if one.code not in NOT_JUDGED]
    assert {(one.verdict, one.code) for one in judged} == {("accepted", "ok")}, ended
    assert 16 * sum(one.groups for one in judged) >= options.rollouts


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
