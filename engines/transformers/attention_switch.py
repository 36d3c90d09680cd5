"""Let a model compute its attention by a function that `transformers.AttentionInterface` has under another name."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any


class AttentionSwitch:
    """The configurations of a model that name its attention function."""

    def __init__(self, model: Any) -> None:
        """`model`: a transformers.PreTrainedModel, whose methods carry no types."""
        configs = [part.config for part in model.modules() if hasattr(part, "config")]
        self._configs = list({id(config): config for config in configs}.values())

    @property
    def names(self) -> set[str | None]:
        return {config._attn_implementation for config in self._configs}

    def to(self, name: str) -> AbstractContextManager[None]:
        """Let them name another function until the end. Then the library makes no attention mask."""
        return self._naming([name] * len(self._configs))

    def as_now(self) -> AbstractContextManager[None]:
        """Return a context, to be entered later, in which they name what they name at this call."""
        return self._naming([config._attn_implementation for config in self._configs])

    def set_all(self, name: str) -> None:
        """Let them name another function from now on."""
        self._set([name] * len(self._configs))

    @contextmanager
    def _naming(self, names: list[str | None]) -> Iterator[None]:
        before = [config._attn_implementation for config in self._configs]
        try:
            self._set(names)
            yield
        finally:
            self._set(before)

    def _set(self, names: list[str | None]) -> None:
        for config, name in zip(self._configs, names, strict=True):
            config._attn_implementation = name
