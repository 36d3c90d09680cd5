"""Engine classes and their parts."""

import pytest

from protocol.engine_classes import parts


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
