import sqlite3
from importlib.util import find_spec
from pathlib import Path

import pytest
import structlog

from benchmarks import honest
from benchmarks.honest import Ended, NodeEnds, Options, Played, calibrate, ends, nodes_of, play, report, settings_of
from echo2.coordinator.demo.demo import real_programs
from echo2.coordinator.demo.demo_settings import WIDE_HEADS
from echo2.coordinator.settings.config import parse
from echo2.weights.lora.adapter_folder import AdapterOrder
from echo2.weights.lora.frozen_base import BaseFormat
from tests.support import llama_cpp

OPTIONS = Options("tiny", ("transformers/float16/cpu",), 160, 1, 2_000, 60.0)
SIXTEEN_BITS = ("bfloat16", "float16")
NODE = "transformers-float16-cpu-1"
MIXED = tuple(f"{engine}/{dtype}/cpu" for engine in ("transformers", "llamacpp", "vllm") for dtype in SIXTEEN_BITS)


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_run_of_each_format_is_one_that_a_coordinator_takes(model: str, dtype: str) -> None:
    settings = settings_of(OPTIONS._replace(model=model, classes=(f"transformers/{dtype}/cpu",)))
    config = parse({"run": dict(settings.run), "learner": dict(settings.learner)}, source="the benchmark")
    assert config.run.compute_dtype == dtype
    assert config.run.engines == (f"transformers/{dtype}/cpu",)


@pytest.mark.parametrize("base", ["q8_0", "q4_0"])
def test_a_class_that_computes_in_blocks_has_a_run_with_an_adapter_over_such_a_base(base: BaseFormat) -> None:
    settings = settings_of(OPTIONS._replace(classes=("llamacpp/blocks/cpu",), base=base))
    assert settings.adapter == AdapterOrder(16, 32.0, base=base)
    config = parse({"run": dict(settings.run), "learner": dict(settings.learner)}, source="the benchmark")
    assert config.run.compute_dtype == "blocks"
    assert settings_of(OPTIONS).adapter is None


def test_nodes_of_several_engines_and_formats_are_in_one_run() -> None:
    options = OPTIONS._replace(classes=MIXED)
    settings = settings_of(options)
    config = parse({"run": dict(settings.run), "learner": dict(settings.learner)}, source="the benchmark")
    assert config.run.engines == MIXED
    assert settings.warm_up["shape"] == WIDE_HEADS, "vLLM's attention on a CPU takes no narrower ones"
    assert options.names["vllm-bfloat16-cpu-1"] == "vllm/bfloat16/cpu"
    assert len(options._replace(nodes=2).names) == 12


def test_each_rounding_is_calibrated_once_and_no_nodes_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    monkeypatch.setattr(honest.subprocess, "run", lambda argv, **_: asked.append(argv[argv.index("calibrate") + 1]))
    calibrate(OPTIONS._replace(classes=(*MIXED, "vllm/float32/cpu")), tmp_path, {})
    assert asked == ["bfloat16", "float16", "llamacpp/bfloat16/cpu", "llamacpp/float16/cpu"]


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
    run_well(OPTIONS._replace(classes=(engine_class,), seconds=200.0), tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@llama_cpp.needed
@pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM: make test-vllm")
def test_nodes_of_three_engines_in_two_formats_are_accepted_from_their_first_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator has a CPU, and calibrates formats by its scorer's engine and llama.cpp's library."""
    played = run_well(OPTIONS._replace(classes=MIXED, seconds=900.0, quick=True), tmp_path, monkeypatch)
    assert all(one.suffices for one in played.nodes), played.nodes
    assert {(one.rounding, *one.classes, *one.devices) for one in played.calibrations} == {
        *((dtype, f"transformers/{dtype}/cpu") for dtype in SIXTEEN_BITS),
        *((f"llamacpp/{dtype}", f"llamacpp/{dtype}/cpu") for dtype in SIXTEEN_BITS),
    }


def run_well(options: Options, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """Run the processes, and check that no honest group was refused or came into doubt."""
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(structlog, "configure", lambda **_: None)  # of this process
    played = play(options, settings_of(options), real_programs(), folder)
    judged = [one for one in played.ended if one.code not in honest.NOT_JUDGED]
    assert {(one.verdict, one.code) for one in judged} <= {("accepted", "ok"), ("accepted", "canary")}, played
    assert 16 * sum(one.groups for one in judged) >= options.rollouts
    assert {one.first for one in played.nodes} == {"accepted, ok"}
    return played


def end_of(*ended: Ended, first: str = "accepted, ok") -> Played:
    return Played(list(ended), [NodeEnds(NODE, OPTIONS.classes[0], 15, 0, 0, 3, first)], [], 9.0)


def test_a_refused_group_is_counted_by_its_rollouts_and_late_ones_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    well = [Ended("accepted", "ok", 15, 240, 2400), Ended("refused", "late", 3, 48, 400)]
    assert report(OPTIONS, end_of(*well), 16) == 0
    out = capsys.readouterr().out
    assert "0 of 240 rollouts refused in 9 s: the rate is below 0.013 at 95 %" in out
    assert "transformers/float16/cpu: ratio 0.000 against 240 rollouts, bar 0: ok" in out
    assert report(OPTIONS, end_of(*well, Ended("refused", "evidence", 1, 16, 99)), 16) == 1
    assert "16 of 256 rollouts refused" in capsys.readouterr().out


def test_a_group_in_doubt_or_a_first_one_that_is_not_accepted_fails(capsys: pytest.CaptureFixture[str]) -> None:
    well = Ended("accepted", "ok", 15, 240, 2400)
    assert report(OPTIONS, end_of(well, Ended("accepted", "quarantine", 5, 80, 800)), 16) == 1
    assert "honest rollouts in doubt: ratio 0.250 against 320 rollouts, bar 0: short" in capsys.readouterr().out
    for first in ("refused, unknown-device", ""):
        assert report(OPTIONS, end_of(well, first=first), 16) == 1
        assert "first group was not accepted: ratio 1.000 against 1 nodes, bar 0: short" in capsys.readouterr().out


def test_a_run_that_was_cut_off_says_so_and_one_without_a_verdict_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(OPTIONS, end_of(Ended("accepted", "ok", 2, 32, 320)), 16) == 0
    assert "ended by the clock, 160 rollouts were asked for" in capsys.readouterr().out
    assert report(OPTIONS, end_of(Ended("expired", "expired", 4, 0, 0)), 16) == 1


def test_the_ends_of_a_run_are_read_over_all_nodes(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE sums (node, verdict, code, groups, trainable, rollouts, tokens, weight)")
        for node, groups in ((b"a", 2), (b"b", 3), (b"", 5)):
            connection.execute(
                "INSERT INTO sums VALUES (?, 'accepted', 'ok', ?, 0, ?, ?, 0)", (node, groups, 16 * groups, 9)
            )
    assert ends(path) == [Ended("accepted", "ok", 5, 80, 9)]


def test_the_judged_groups_of_each_node_are_read_with_the_end_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    ended = [(b"a", "refused", "late", 1), (b"a", "accepted", "ok", 1), (b"a", "accepted", "quarantine", 2),
             (b"b", "refused", "evidence", 4), (b"b", "accepted", "ok", 4)]  # fmt: skip
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE nodes (key, name, engine)")
        connection.execute("CREATE TABLE leases (id, version)")
        connection.execute("CREATE TABLE verdicts (lease, node, verdict, code)")
        connection.executemany("INSERT INTO nodes VALUES (?, ?, 'e')", [(b"a", "ann"), (b"b", "bob"), (b"c", "cy")])
        for number, (node, verdict, code, version) in enumerate(ended):
            connection.execute("INSERT INTO leases VALUES (?, ?)", (number, version))
            connection.execute("INSERT INTO verdicts VALUES (?, ?, ?, ?)", (number, node, verdict, code))
    assert nodes_of(path) == [
        NodeEnds("ann", "e", 2, 1, 0, 2, "accepted, ok"),
        NodeEnds("bob", "e", 1, 0, 1, 1, "refused, evidence"),
        NodeEnds("cy", "e", 0, 0, 0, 0, ""),
    ]
    assert NodeEnds("ann", "e", 11, 0, 1, 2, "").suffices
    assert not NodeEnds("ann", "e", 11, 0, 1, 1, "").suffices
    assert not NodeEnds("ann", "e", 11, 11, 0, 2, "").suffices
