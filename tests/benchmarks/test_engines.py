"""The rows of the table of engines."""

from benchmarks.engines import TRANSFORMERS, engines
from echo2.engines import registry


def test_each_engine_is_compared_with_transformers_in_its_types() -> None:
    assert engines([registry.LLAMACPP, registry.VLLM]) == {
        TRANSFORMERS: ("transformers", "float32"),
        "llamacpp float32": ("llamacpp", "float32"),
        "llamacpp float16": ("llamacpp", "float16"),
        "llamacpp bfloat16": ("llamacpp", "bfloat16"),
        "vllm float32": ("vllm", "float32"),
    }


def test_without_another_engine_transformers_is_measured_alone() -> None:
    assert list(engines([])) == [TRANSFORMERS]
