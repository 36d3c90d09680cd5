"""Let a model compute its attention by a function that `transformers.AttentionInterface` has under another name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class AttentionSwitch:
    """The configurations of a model that name its attention function."""

    def __init__(self, model: Any) -> None:
        """`model`: a transformers.PreTrainedModel, whose methods carry no types."""
        configs = [part.config for part in model.modules() if hasattr(part, "config")]
        self._configs = list({id(config): config for config in configs}.values())

    @property
    def names(self) -> set[str | None]:
        """The present names."""
        return {config._attn_implementation for config in self._configs}

    @contextmanager
    def to(self, name: str) -> Iterator[None]:
        """Let them name another function until the end. Then the library makes no attention mask."""
        names = [config._attn_implementation for config in self._configs]
        try:
            for config in self._configs:
                config._attn_implementation = name
            yield
        finally:
            for config, own in zip(self._configs, names, strict=True):
                config._attn_implementation = own
