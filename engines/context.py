"""Read the greatest sequence length of a model from its config.json. No torch."""

import json
from pathlib import Path
from typing import Any, Final

_KEYS: Final = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length")
"""Names of the same number in configurations of model families, the usual one first."""


def context_of(folder: Path) -> int | None:
    """Return the most tokens, prompt and completion together, that the model in `folder` was made for.

    None: its config.json names no such number, or is not there yet."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return _stated_length(config) or (_stated_length(config.get("text_config")) if isinstance(config, dict) else None)


def _stated_length(config: Any) -> int | None:
    if not isinstance(config, dict):
        return None
    lengths = [config[key] for key in _KEYS if isinstance(config.get(key), int) and config[key] > 0]
    return lengths[0] if lengths else None
