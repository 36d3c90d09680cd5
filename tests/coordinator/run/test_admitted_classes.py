"""Test the engine classes that a run may admit, and those that need a Calibration."""

import pytest

from echo2.coordinator.run.admitted_classes import admitted_classes, check_admitted, closed_classes
from echo2.coordinator.settings.training_config import RunSection
from echo2.runtime.settings import SettingsFault


def section(*engines: str, dtype: str = "bfloat16") -> RunSection:
    return RunSection.model_validate({"engines": list(engines), "compute_dtype": dtype})


def test_a_class_without_a_format_has_the_runs_own_and_one_without_a_device_leaves_it_open() -> None:
    (one,) = admitted_classes(section("transformers"))
    assert (one.engine, one.dtype, one.device) == ("transformers", "bfloat16", "auto")
    assert one.name == "transformers/bfloat16"


def test_classes_that_are_exact_on_every_device_are_open_from_the_start() -> None:
    assert closed_classes(section("transformers/float32", dtype="float32")) == []
    closed = closed_classes(section("llamacpp/float32", "llamacpp/float32/cpu", dtype="float32"))
    assert [one.name for one in closed] == ["llamacpp/float32"]
    closed = closed_classes(section("transformers/float32", "transformers/bfloat16", "llamacpp/float32/vulkan"))
    assert [one.name for one in closed] == ["transformers/bfloat16", "llamacpp/float32/vulkan"]


@pytest.mark.parametrize(
    "engines",
    [
        ("transformers/bfloat16/cuda",),
        ("transformers", "second/float32"),
        ("transformers", "second/bfloat16"),
        ("llamacpp/bfloat16/vulkan",),
    ],
)
def test_known_classes_are_admitted_and_engines_of_other_builds_in_the_floats(engines: tuple[str, ...]) -> None:
    check_admitted(section(*engines))


def test_a_run_may_admit_an_engine_of_another_build_alone() -> None:
    check_admitted(section("second/float32", dtype="float32"))


@pytest.mark.parametrize(
    ("engine_class", "says"),
    {
        "an engine that nobody could calibrate": ("abacus/blocks", "nobody could calibrate it"),
        "a device of another engine": ("transformers/bfloat16/vulkan", "computes on cuda, xpu, mps, cpu"),
        "a format that there is not": ("llamacpp/int3/cpu", "llamacpp computes in float32 or float16"),
    }.values(),
    ids=lambda value: value.split("/")[0],
)
def test_other_classes_are_refused_with_the_reason(engine_class: str, says: str) -> None:
    with pytest.raises(SettingsFault, match=says):
        check_admitted(section("transformers", engine_class))


@pytest.mark.parametrize(
    ("engines", "says"),
    [
        (("transfomers",), "did you mean transformers"),
        (("transformers", "lamacpp/float32"), "did you mean llamacpp"),
    ],
)
def test_a_misspelt_engine_is_refused_before_it_is_signed(engines: tuple[str, ...], says: str) -> None:
    with pytest.raises(SettingsFault, match=says):
        check_admitted(section(*engines, dtype="float32"))


def test_a_run_that_names_no_format_is_one_in_float32_whatever_the_operators_card() -> None:
    assert RunSection().compute_dtype == "float32"
    assert closed_classes(RunSection()) == []
    assert [one.name for one in admitted_classes(RunSection())] == ["transformers/float32", "llamacpp/float32/cpu"]
