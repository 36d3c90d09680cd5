"""Keys and values of rows of different lengths, for a step that takes all of them one token further.

A row has a place in each layer's buffer, [places, heads, tokens, size], and fills it from the beginning. A step writes
one token per row, at the row's own position, and attends to the tokens up to it: a mask hides the rest of the buffer.
Masked values must be finite, since zero times NaN is NaN: buffers begin as zeros, and a place with values that are
not finite is cleaned.

Layers with a sliding window keep all tokens too, and mask those outside it: in a buffer of its own length each row's
window would begin elsewhere.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from echo2.engines.devices.host_transfers import upload

LEAST_SPARE_TOKENS: Final = 64
"""Least spare tokens of a larger buffer; a quarter of the tokens if that is more."""
FULL_ATTENTION: Final = "full_attention"
SLIDING_ATTENTION: Final = "sliding_attention"


class _RowLayer(CacheLayerMixin):
    """The buffer of one layer. `cache`: whose step it follows."""

    def __init__(self, cache: "RowCache") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write one token per row, [rows, heads, 1, size]; return keys and values up to the longest row's."""
        cache = self._cache
        self.reach(key_states, value_states, cache.count, cache.span)
        assert self.keys is not None
        assert self.values is not None
        self.keys[cache.places, :, cache.positions] = key_states[:, :, 0]
        self.values[cache.places, :, cache.positions] = value_states[:, :, 0]
        return self.keys[: cache.count, :, : cache.span], self.values[: cache.count, :, : cache.span]

    def reach(self, keys: Tensor, values: Tensor, places: int, tokens: int) -> None:
        """Enlarge the buffer to so many places and tokens; `keys` and `values` show the other sizes."""
        self.keys, self.values = (
            _reaching(self.keys, keys, places, tokens),
            _reaching(self.values, values, places, tokens),
        )

    def get_seq_length(self) -> int:
        return self._cache.span

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.span, 0

    def get_max_length(self) -> int:
        return -1


class RowCache(Cache):
    """The cache of a model's decode steps. `count`, `places`, `positions`, `span`: those of the present step: its rows,
    their indices, the position of each row's token, and the tokens up to the longest row's."""

    def __init__(self, layers: int, device: torch.device) -> None:
        super().__init__(layers=[_RowLayer(self) for _ in range(layers)])
        self._device = device
        self.count, self.span = 0, 0
        self.places = self.positions = torch.empty(0, dtype=torch.int64, device=device)

    def step(self, positions: Sequence[int]) -> None:
        """Begin a step of the rows in places 0, 1, ...: the position of each row's token."""
        self.count, self.span = len(positions), max(positions) + 1
        self.places = torch.arange(self.count, device=self._device)
        self.positions = upload(positions, self._device)

    def step_at(self, positions: Tensor, places: Tensor, span: int) -> None:
        """Begin a step with tensors at hand; the buffers reach so far. `span`: tokens of the longest row, or more."""
        self.count, self.span, self.places, self.positions = len(positions), span, places, positions

    def reach(self, tokens: int) -> None:
        """Enlarge the buffers of all rows to so many tokens."""
        for layer in self._layers():
            layer.reach(layer.keys, layer.values, layer.keys.shape[0], tokens)

    @property
    def room(self) -> tuple[int, int]:
        """The places and tokens of the buffers."""
        keys: Tensor = self._layers()[0].keys
        return keys.shape[0], keys.shape[2]

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where the buffers lie, and their room."""
        return *self.room, *(buffer.data_ptr() for layer in self._layers() for buffer in (layer.keys, layer.values))

    def mask(self, dtype: torch.dtype, window: int | None = None) -> Tensor:
        """Return what the step's rows attend to, as a number to add: [rows, 1, 1, span]. `window`: only so many last
        tokens."""
        token = torch.arange(self.span, device=self._device)[None]
        hidden = token > self.positions[:, None]
        if window is not None:
            hidden |= token <= self.positions[:, None] - window
        return torch.zeros(hidden.shape, dtype=dtype, device=self._device).masked_fill_(hidden, -torch.inf)[
            :, None, None
        ]

    def put(self, first: int, count: int, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Fill places from `first` on with a prompt's keys and values, [heads, tokens, size] per layer."""
        for layer, key, value in zip(self._layers(), keys, values, strict=True):
            tokens = key.shape[-2]
            layer.reach(key[None], value[None], first + count, tokens)
            layer.keys[first : first + count, :, :tokens] = key
            layer.values[first : first + count, :, :tokens] = value

    def copy_place(self, place: int, tokens: int) -> list[tuple[Tensor, Tensor]]:
        """Return copies of a place's first keys and values, [1, heads, tokens, size], per layer."""
        return [
            (layer.keys[place, :, :tokens][None].clone(), layer.values[place, :, :tokens][None].clone())
            for layer in self._layers()
        ]

    def move(self, source: int, to: int, tokens: int) -> None:
        """Copy the first tokens of a place to another one."""
        for layer in self._layers():
            layer.keys[to, :, :tokens] = layer.keys[source, :, :tokens]
            layer.values[to, :, :tokens] = layer.values[source, :, :tokens]

    def clean(self, place: int) -> None:
        """Fill a place with zeros."""
        for layer in self._layers():
            layer.keys[place] = 0
            layer.values[place] = 0

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        buffers = [buffer for layer in self._layers() for buffer in (layer.keys, layer.values) if buffer is not None]
        return sum(buffer.nbytes for buffer in buffers)

    def _layers(self) -> list[Any]:
        return list(self.layers)


def kinds(config: Any) -> tuple[str, ...]:
    """Return the kind of attention of each layer of a text model's config."""
    given = getattr(config, "layer_types", None)
    if given:
        return tuple(given)
    sliding = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    return (SLIDING_ATTENTION if sliding else FULL_ATTENTION,) * int(config.num_hidden_layers)


def _reaching(buffer: Tensor | None, states: Tensor, places: int, tokens: int) -> Tensor:
    """Return a buffer of at least so many places and tokens, with the content of `buffer`. Its places double: rows
    that come one group at a time would otherwise copy the whole buffer for each group."""
    have = (0, 0) if buffer is None else (buffer.shape[0], buffer.shape[2])
    if buffer is not None and have[0] >= places and have[1] >= tokens:
        return buffer
    if tokens > have[1]:
        tokens += max(LEAST_SPARE_TOKENS, tokens // 4)
    if places > have[0]:
        places = max(places, 2 * have[0])
    size = (max(places, have[0]), states.shape[1], max(tokens, have[1]), states.shape[3])
    larger = torch.zeros(size, dtype=states.dtype, device=states.device)
    if buffer is not None:
        larger[: have[0], :, : have[1]] = buffer
    return larger
