"""The table of docs/hardware.md is what the learner's memory plan gives for the shapes of Qwen3."""

import json
from pathlib import Path

import pytest

from echo2.coordinator.learner.memory_count import count_folder
from echo2.coordinator.learner.memory_plan import MemorySettings, parts_of
from echo2.coordinator.run.disk_room import RUN_BYTES
from tests.support.documents import tables
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "hardware.md").read_text()
COLUMNS = [MemorySettings(ranks=ranks, state=state) for ranks in (1, 2, 4) for state in ("float32", "host")]
SHAPES = {
    "Qwen3-0.6B": (1024, 28, 16, 3072, True),
    "Qwen3-1.7B": (2048, 28, 16, 6144, True),
    "Qwen3-4B": (2560, 36, 32, 9728, True),
    "Qwen3-8B": (4096, 36, 32, 12288, False),
    "Qwen3-14B": (5120, 40, 40, 17408, False),
}
"""Model -> width, layers, heads, inner width, whether the output layer is the embedding."""


@pytest.mark.slow
@pytest.mark.parametrize("model", SHAPES)
def test_a_row_of_the_table_is_what_plan_prints(model: str, tmp_path: Path) -> None:
    width, layers, heads, inner, tied = SHAPES[model]
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16", "vocab_size": 151_936,
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": inner, "tie_word_embeddings": tied, "max_position_embeddings": 40_960,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    counted = count_folder(tmp_path, "bfloat16")
    each = [parts_of(counted, 8192, choice).total for choice in COLUMNS]
    figures = [f"{one / 1e9:.1f}" for one in (*each, 4 * counted.parameters)]
    assert f"| {model} | {' | '.join(figures)} |" in PAGE.splitlines()


def test_the_page_has_a_row_for_each_shape_and_the_disk_of_a_run() -> None:
    table = next(rows for rows in tables(PAGE) if rows[0][0] == "model")
    assert [row[0] for row in table[1:]] == list(SHAPES)
    assert f"{RUN_BYTES} bytes per trained parameter" in PAGE
