"""The context length of a model, read from its config.json."""

import json
from pathlib import Path

import pytest

from echo2.engines.context import context_of

STATED: dict[str, tuple[object, int | None]] = {
    "the usual name": ({"max_position_embeddings": 8192}, 8192),
    "the name of GPT-2": ({"n_positions": 1024}, 1024),
    "a model of text and pictures": ({"text_config": {"max_position_embeddings": 4096}}, 4096),
    "nothing": ({"vocab_size": 64}, None),
    "what is no number": ({"max_position_embeddings": "8192"}, None),
    "zero": ({"max_position_embeddings": 0}, None),
    "a list": ([1, 2], None),
}


@pytest.mark.parametrize("what", STATED)
def test_the_context_of_a_config_that_states(what: str, tmp_path: Path) -> None:
    config, expected = STATED[what]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert context_of(tmp_path) == expected


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff", b"[" * 100_000])
def test_a_config_that_cannot_be_read_states_no_context(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    assert context_of(tmp_path) is None
