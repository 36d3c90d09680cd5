"""The calibration of a class: which classes it takes, which weights it measures, and what a fault leaves behind."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo2.coordinator.calibration import calibrate as calibration
from echo2.coordinator.calibration.calibrate import LOCK, WEIGHTS, calibrate, class_parts, measured_classes
from echo2.coordinator.calibration.honest_groups import HonestTokens, MeasuredVersion
from echo2.coordinator.database.database import Database
from echo2.coordinator.run.setup import Run
from echo2.coordinator.verification.calibration import TOKENS_LEAST
from echo2.coordinator.verification.open_classes import OpenClasses, ledger_keys
from echo2.coordinator.verification.token_evidence import BINS, TOKEN
from echo2.engines import registry
from echo2.engines.registry import engine_row
from echo2.runtime.child import ChildDied, ChildError
from echo2.runtime.errors import DiskFull, LocalFault
from echo2.runtime.lock import lock_file
from echo2.weights.store import Store, StoreReader
from tests.support.bigram import random_table, write_table
from tests.support.run_folders import NOW, load, make_run, write_model

CLASS = "transformers/bfloat16/cpu"


def test_a_class_that_needs_a_calibration_has_three_parts() -> None:
    assert class_parts(CLASS) == ("transformers", "bfloat16", "cpu")
    assert class_parts("transformers/float16/cuda") == ("transformers", "float16", "cuda")


@pytest.mark.parametrize(
    ("engine_class", "says"),
    {
        "no device": ("transformers/bfloat16", "name engine/dtype/device"),
        "an unknown number format": ("transformers/int3/cpu", "name engine/dtype/device"),
        "a misspelt device": ("transformers/bfloat16/cudda", "'cudda' is no device"),
        "an exact class": ("transformers/float32/cpu", "open without a Calibration"),
        "an unknown engine": ("abacus/bfloat16/cpu", "engine abacus is not in this build"),
    }.values(),
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_another_class_is_refused_with_the_reason(engine_class: str, says: str) -> None:
    with pytest.raises(LocalFault, match=says):
        class_parts(engine_class)


class Measuring:
    """Stands in for engines and learner: gives honest tokens without any that differ, or raises `fault`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.weights: list[MeasuredVersion] = []
        self.content: list[bytes] = []
        self.engines: list[str] = []
        self.drift = {"vllm": 1_000}
        """Engine -> drift of its tokens, units of 2^-16 nats; of others 0."""
        self.fault: Exception | None = None
        monkeypatch.setattr(calibration, "measure", self._measure)
        monkeypatch.setattr(calibration, "write_base", self._write_base)

    async def _measure(
        self, run: Run, weights: MeasuredVersion, wanted: Any, machines: Mapping[str, Any], tokens: int
    ) -> HonestTokens:
        self.weights.append(weights)
        self.engines.append("/".join(wanted))
        self.content.append(await asyncio.to_thread(weights.path.read_bytes))
        if self.fault:
            raise self.fault
        compared = np.zeros(tokens, TOKEN)
        compared["gap"] = np.arange(tokens) % BINS
        compared["drift"] = self.drift.get(wanted.engine, 0)
        return HonestTokens(dict.fromkeys(machines, compared), ["torch 2"])

    async def _write_base(self, folder: Path, path: Path) -> bytes:
        await asyncio.to_thread(path.write_bytes, b"the base")
        return bytes([7]) * 32


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "run", write_model(tmp_path / "model"), engines=("transformers",))


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    return Measuring(monkeypatch)


def opened(run: Run) -> OpenClasses:
    classes = OpenClasses()
    classes.read(run.folder.calibrations, run.id, ledger_keys(run.chain), lambda era, version: published(run, version))
    return classes


def published(run: Run, version: int) -> bytes:
    """Return the root of a version: that of its snapshot in the store, else that of `Measuring`."""
    if not run.folder.store.is_dir():
        return bytes([7]) * 32
    with StoreReader(run.folder.store) as store:
        return next(one.hash for one in store.snapshots() if one.version == version)


def names(run: Run) -> set[str]:
    return {path.name for path in run.folder.calibrations.iterdir()}


def test_a_class_that_the_run_does_not_admit_is_refused_before_anything_is_measured(
    run: Run, measuring: Measuring
) -> None:
    for engine_class in ("vllm/float32/cpu", "vllm/bfloat16/cpu"):
        with pytest.raises(
            LocalFault, match=f"does not admit {engine_class}: its run.engines, which is signed, is trans"
        ):
            calibrate(run, engine_class, 100, NOW)
    assert not measuring.weights


MEASURED = {
    "a format alone": ("bfloat16", [CLASS]),
    "a class whose engine is the format's own": (CLASS, [CLASS]),
    "a class that only widens": ("transformers/bfloat16/cuda", [CLASS, "transformers/bfloat16/cuda"]),
    "an engine that rounds in a way of its own": ("llamacpp/bfloat16/vulkan", ["llamacpp/bfloat16/vulkan"]),
    "float32 where it is not exact": ("vllm/float32/cuda", ["vllm/float32/cuda"]),
}


@pytest.mark.parametrize(("named", "classes"), MEASURED.values(), ids=MEASURED.keys())
def test_a_format_is_measured_by_the_scorers_engine_whatever_card_the_operator_has(
    named: str, classes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = ("transformers/bfloat16", "vllm/float32", "llamacpp/bfloat16")
    monkeypatch.setattr(calibration, "choose", engine_row)
    monkeypatch.setattr(registry, "choose", engine_row)
    run = make_run(tmp_path / "run", write_model(tmp_path / "model"), engines=engines)
    assert measured_classes(run, named) == classes


def test_another_engine_may_only_widen_the_bounds_of_a_format(
    tmp_path: Path, measuring: Measuring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "choose", engine_row)
    monkeypatch.setattr(registry, "choose", engine_row)
    run = make_run(tmp_path / "run", write_model(tmp_path / "model"), engines=("transformers", "vllm"))
    calibrate(run, "bfloat16", 2_000, NOW)
    (alone,) = opened(run).newest()
    calibrate(run, "vllm/bfloat16/cuda", 2_000, NOW + 1)
    (wider,) = opened(run).newest()
    assert (alone.rounding, wider.rounding) == ("bfloat16", "bfloat16")
    assert (alone.classes, wider.classes) == ([CLASS], [CLASS, "vllm/bfloat16/cuda"])
    assert measuring.engines == [CLASS, CLASS, "vllm/bfloat16/cuda"]
    assert wider.bound > alone.bound
    assert all(p <= q for name in alone.tables for p, q in zip(alone.tables[name], wider.tables[name], strict=True))
    assert max(wider.tables["drift"]) > max(alone.tables["drift"])
    assert {one.partition(", ")[0] for one in wider.machines} == {*wider.classes}


def test_landed_groups_of_three_parties_widen_the_bounds_where_the_operator_names_their_device(
    run: Run, measuring: Measuring
) -> None:
    kind = "vllm/bfloat16/cuda, a card"
    tokens = np.zeros(TOKENS_LEAST, TOKEN)
    tokens["drift"] = 3_000
    with pytest.raises(LocalFault, match=r"no .*run\.sqlite"):
        calibrate(run, "bfloat16", 2_000, NOW, [kind])
    with Database.open(run.folder.database) as database:
        for number in range(3):
            with pytest.raises(LocalFault, match="; those are: none" if not number else f"of {number} parties"):
                calibrate(run, "bfloat16", 2_000, NOW, [kind])
            row = (bytes([number]), "bfloat16", kind, f"subnet {number}", NOW, tokens.tobytes())
            database.do("INSERT INTO landings VALUES (?, ?, ?, ?, ?, ?)", row)
    assert not measuring.weights
    calibrate(run, "bfloat16", 2_000, NOW)
    (alone,) = opened(run).newest()
    calibrate(run, "bfloat16", 2_000, NOW + 1, [kind])
    (wider,) = opened(run).newest()
    assert (alone.devices, wider.devices) == ([], [kind])
    assert wider.bound > alone.bound
    assert max(wider.tables["drift"]) > max(alone.tables["drift"])
    with pytest.raises(LocalFault, match=f"no group of device 'another' landed in bfloat16; those are: {kind}"):
        calibrate(run, "bfloat16", 2_000, NOW, ["another"])


def test_before_the_first_version_the_base_model_is_measured_as_version_0(run: Run, measuring: Measuring) -> None:
    path = calibrate(run, CLASS, 100, NOW)
    (document,) = opened(load(run.folder.path)).newest()
    assert (document.rounding, document.classes) == ("bfloat16", [CLASS])
    assert (document.era, document.version, document.root) == (1, 0, bytes([7]) * 32)
    assert document.builds == ["torch 2"]
    assert set(document.machines.values()) == {TOKENS_LEAST}
    assert measuring.content == [b"the base"]
    assert names(run) == {path.name, LOCK}


def test_a_run_that_has_begun_is_measured_by_its_newest_snapshot_which_may_be_dropped_meanwhile(
    run: Run, measuring: Measuring, tmp_path: Path
) -> None:
    with Store(run.folder.store) as store:
        for version in (3, 4):
            written = write_table(tmp_path / f"{version}", random_table(version))
            store.put_snapshot(1, version, written.root, written.path)
        content = next(one.path for one in store.snapshots() if one.version == 4).read_bytes()
        calibrate(run, CLASS, 2_500, NOW)
    (document,) = opened(run).newest()
    assert (document.version, document.root) == (4, written.root)
    assert set(document.machines.values()) == {2_500}
    assert measuring.content == [content]
    assert measuring.weights[0].path == run.folder.calibrations / WEIGHTS


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (ChildError("NoDevice", "there is no cuda here"), f"cannot calibrate {CLASS} here: NoDevice: there is no cuda"),
        (ChildDied("calibration", -9, "killed"), "calibration ended with -9"),
        (DiskFull("no room"), "no room"),
    ],
)
def test_a_fault_is_one_sentence_and_opens_nothing(run: Run, measuring: Measuring, fault: Exception, says: str) -> None:
    measuring.fault = fault
    with pytest.raises(LocalFault, match=says):
        calibrate(run, CLASS, 2_000, NOW)
    assert names(run) == {LOCK}
    measuring.fault = None
    calibrate(run, CLASS, 2_000, NOW)
    assert [one.rounding for one in opened(run).newest()] == ["bfloat16"]


def test_what_a_killed_calibration_left_is_replaced(run: Run, measuring: Measuring) -> None:
    run.folder.calibrations.mkdir()
    (run.folder.calibrations / WEIGHTS).write_bytes(b"weights of another version")
    (run.folder.calibrations / LOCK).write_text("4711\n")
    assert opened(run).newest() == []
    path = calibrate(run, CLASS, 2_000, NOW)
    assert measuring.content == [b"the base"]
    assert names(run) == {path.name, LOCK}


def test_two_calibrations_of_a_run_do_not_mix(run: Run, measuring: Measuring) -> None:
    run.folder.calibrations.mkdir()
    sentence = r"process \d+ calibrates a class of this run"
    with lock_file(run.folder.calibrations / LOCK, name_holder=True), pytest.raises(LocalFault, match=sentence):
        calibrate(run, CLASS, 2_000, NOW)
    assert measuring.weights == []


def test_the_newest_calibration_counts_and_the_older_one_stays_for_its_leases(run: Run, measuring: Measuring) -> None:
    calibrate(run, CLASS, 2_000, NOW)
    first = opened(run).of(CLASS)
    calibrate(run, CLASS, 2_000, NOW + 1)
    classes = opened(run)
    assert classes.of(CLASS) != first
    assert first is not None
    assert classes.tables(first) is not None
