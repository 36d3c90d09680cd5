"""The command that calibrates a class: which classes it takes, and what it needs."""

from pathlib import Path

import pytest

from coordinator.run.calibrate import newest_snapshot, parts_of
from runtime.errors import LocalFault
from weights.store import Store


def test_a_class_that_needs_a_calibration_has_three_parts() -> None:
    assert parts_of("transformers/bfloat16/cpu") == ("transformers", "bfloat16", "cpu")
    assert parts_of("transformers/float16/cuda") == ("transformers", "float16", "cuda")


@pytest.mark.parametrize(
    ("engine_class", "says"),
    {
        "no device": ("transformers/bfloat16", "name engine/dtype/device"),
        "an unknown number format": ("transformers/int3/cpu", "name engine/dtype/device"),
        "an exact class": ("transformers/float32/cpu", "open without a Calibration"),
        "an unknown engine": ("abacus/bfloat16/cpu", "engine abacus is not in this build"),
    }.values(),
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_another_class_is_refused_with_the_reason(engine_class: str, says: str) -> None:
    with pytest.raises(LocalFault, match=says):
        parts_of(engine_class)


def test_a_run_without_a_version_cannot_calibrate(tmp_path: Path) -> None:
    with pytest.raises(LocalFault, match="start `echo2-coord run` first"):
        newest_snapshot(tmp_path / "store")
    with Store(tmp_path / "store"):
        pass
    with pytest.raises(LocalFault, match="wait until `echo2-coord run` has published one"):
        newest_snapshot(tmp_path / "store")
