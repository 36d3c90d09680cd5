"""Engine classes and their parts."""

import pytest

from echo2.protocol.engine_classes import admits, parts


@pytest.mark.parametrize(
    ("text", "named"),
    {
        "transformers/bfloat16/cpu": ["transformers", "bfloat16", "cpu"],
        "transformers/float32": ["transformers", "float32"],
        "transformers/": ["transformers"],
        "": [""],
    }.items(),
)
def test_a_class_or_prefix_has_the_parts_that_it_names(text: str, named: list[str]) -> None:
    assert parts(text) == named


def test_classes_are_compared_part_by_part() -> None:
    assert admits("transformers/float32/cpu", ["transformers/float32"])
    assert admits("transformers/float32", ["transformers/float32/"])
    assert not admits("transformers/float", ["transformers/float32"])
    assert not admits("transformers/float32x", ["transformers/float32"])
