"""Continuous batching's backend in PyTorch (engines.batch.continuous_batch.Backend): one token for many rows per pass.

1. Log-probabilities are exact: log softmax, in float32, of the same logits from which the token was chosen, at the
   job's temperature.
2. Prompts of like length are computed in one pass, padded on the right, where causal attention never looks. Their keys
   and values are then copied into the places of their rows.
3. On a GPU the tokens of a step are fed to the next one on the device, and copied to the host beside it; what a step
   needs of the host is copied without a wait (engines.devices.host_transfers). So no step waits for this process,
   and the noise is computed on the device, MPS included (engines.sampling.noise_bits). On CUDA the pass of a step is
   one graph (engines.transformers.step_graphs).
4. It serves decoder models whose layers all have full or sliding attention (engines.transformers.model_config). `check`
   compares a decode step with a plain pass over the same tokens, so that a model of another kind is refused.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor
from transformers import DynamicCache

from echo2.engines.batch.continuous_batch import Chosen, FirstToken, NextToken, OutOfMemory
from echo2.engines.batch.request_batch import ProgramLost
from echo2.engines.batch.row_limit import Memory
from echo2.engines.devices.host_transfers import PINNED_DEVICE_KINDS, download, upload
from echo2.engines.engine import EngineError, LogitsNotFinite
from echo2.engines.sampling import sampling
from echo2.engines.transformers import half_attention
from echo2.engines.transformers.attention_switch import AttentionSwitch
from echo2.engines.transformers.device_memory import free_memory, release
from echo2.engines.transformers.lost_device import lost_device
from echo2.engines.transformers.output_layer import OutputLayer, compute_checked
from echo2.engines.transformers.row_cache import SLIDING_ATTENTION, RowCache, kinds
from echo2.engines.transformers.step_graphs import RECORDED_STEP, GraphRecorder, StepGraphs

LOGITS: Final = 24
"""Bytes per row and word of the vocabulary: logits, twice as they are put together, noise, and what the choice computes
from them."""
GRAPH_LOGITS: Final = 4
"""The same, where graphs leave their logits in memory of their own."""
_CLOSE_LOGITS_SHARE: Final = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
"""The part of the logits' standard deviation by which a decode step and a plain pass may differ in the mean."""
_PAIRS: Final = 4
NO_MEMORY: Final = ("can't allocate memory", "not enough memory", "out of memory")
"""Texts of PyTorch's errors of a full processor or GPU."""


class ComputedPrompt:
    """A prompt, or the beginning of one. `cache`, `row`: its keys and values. `logits`: logits after its last token,
    [V]."""

    def __init__(self, cache: DynamicCache, row: int, length: int, logits: Tensor) -> None:
        self.cache, self.row, self.length, self.logits = cache, row, length, logits

    def states(self, name: str) -> list[Tensor]:
        """Return the keys, or the values, of each layer: [heads, tokens, size]."""
        return [getattr(layer, name)[self.row, :, : self.length] for layer in self.cache.layers]


class Decoder:
    """`engines.batch.continuous_batch.Backend` over a transformers model. `overlap`: see there. `recorder`: records
    the passes of steps; None: they are launched operation by operation."""

    def __init__(
        self,
        model: Any,
        device: torch.device,
        *,
        overlap: bool | None = None,
        recorder: GraphRecorder | None = None,
    ) -> None:
        self._model, self._device = model, device
        self._config = model.config.get_text_config()
        self._kinds = kinds(self._config)
        self._head = OutputLayer.of(model)
        self._dtype: torch.dtype = next(model.parameters()).dtype
        self._attention = AttentionSwitch(model) if half_attention.serves(model, device, self._dtype) else None
        self._graphs = None if recorder is None else StepGraphs(recorder, device, self._head.linear.out_features)
        self.overlap = device.type in PINNED_DEVICE_KINDS if overlap is None else overlap
        self.clock: Callable[[], float] = time.process_time if device.type == "cpu" else time.perf_counter
        self.reset()

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[ComputedPrompt]:
        """See `Backend.prefill`."""
        longest = max(len(prompt) for prompt in prompts)
        ids = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
        cache, last = DynamicCache(), [len(prompt) - 1 for prompt in prompts]
        with _computing():
            hidden = self._pass(ids, cache)
            logits = self._head(hidden[upload(range(len(prompts)), self._device), upload(last, self._device)])
        return [ComputedPrompt(cache, row, end + 1, logits[row]) for row, end in enumerate(last)]

    def extend(self, prompt: ComputedPrompt, tokens: Sequence[int]) -> None:
        """See `Backend.extend`."""
        with _computing():
            prompt.logits = self._head(self._pass([tokens], prompt.cache)[:, -1])[0]
            prompt.length += len(tokens)

    def release(self, prompt: ComputedPrompt) -> None:
        """See `Backend.release`: nothing else refers to it."""

    def decode(self, rows: Sequence[NextToken], first: Sequence[FirstToken[ComputedPrompt]]) -> Callable[[], Chosen]:
        """See `Backend.decode`."""
        with _computing():
            logits = [self._next_logits(rows)] if rows else []
            if first:
                self._place(first)
                logits.append(torch.stack([one.prompt.logits for one in first]))
            drawn: list[NextToken | FirstToken[ComputedPrompt]] = [*rows, *first]
            tempered = sampling.temper(torch.cat(logits), [one.temperature for one in drawn])
            tokens, logprobs = self._choose(tempered, [(one.seed, one.number, one.greedy) for one in drawn])
            self._last = tokens
            return _reading(tokens, logprobs)

    def resume(self, prompt: ComputedPrompt) -> None:
        """See `Backend.resume`."""
        with _computing():
            self._cache.put(len(self._lengths), 1, prompt.states("keys"), prompt.states("values"))
            self._lengths.append(prompt.length)
            self._last = torch.nn.functional.pad(self._last, (0, 1))

    def park(self, place: int, length: int) -> ComputedPrompt:
        """See `Backend.park`."""
        with _computing():
            cache = DynamicCache()
            for number, (keys, values) in enumerate(self._cache.copy_place(place, length)):
                cache.update(keys, values, number)
        return ComputedPrompt(cache, 0, length, torch.empty(0))

    def vacate(self, place: int, last: int) -> None:
        """See `Backend.vacate`."""
        length = self._lengths.pop()
        if place != last:
            with _computing():
                self._cache.move(last, place, length)
                self._last[place] = self._last[last]
            self._lengths[place] = length
        self._last = self._last[:last]

    def clean(self, place: int) -> None:
        """See `Backend.clean`."""
        with _computing():
            self._cache.clean(place)

    def reset(self) -> None:
        """See `Backend.reset`."""
        self._cache = RowCache(len(self._kinds), self._device)
        self._lengths: list[int] = []
        """Tokens of each place whose keys and values are there."""
        self._last = torch.empty(0, dtype=torch.int64, device=self._device)
        if self._graphs is not None:
            self._graphs.forget()
        release(self._device)

    def memory(self) -> Memory:
        """See `Backend.memory`."""
        config = self._config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        token = 2 * len(self._kinds) * heads * size * self._dtype.itemsize
        row = (LOGITS + (0 if self._graphs is None else GRAPH_LOGITS)) * config.vocab_size
        return Memory(free_memory(self._device) + self._cache.nbytes, token, row)

    def check(self) -> None:
        """Compare decode steps of rows of two lengths with a plain pass. One of `_PAIRS` must agree: rounding may
        choose another expert of a mixture, as float16 does on CPUs with AMX, but a wrong cache is wrong for all. Raises
        EngineError, UnknownOutput."""
        try:
            alike, why = any(self._is_alike(number) for number in range(_PAIRS)), ""
        except (AttributeError, IndexError, KeyError, NotImplementedError, TypeError, ValueError) as error:
            alike, why = False, f" ({type(error).__name__}: {error})"  # a model that asks more of its cache
        if not alike:
            name = type(self._model).__name__
            raise EngineError(f"{name} cannot be decoded with rows of several lengths: use another model{why}")
        if self._graphs is not None:
            self._check_graphs(self._graphs)

    def _check_graphs(self, graphs: StepGraphs) -> None:
        """Compare a replayed step with the same one launched operation by operation; use no graph unless they agree.
        What is replayed was recorded with other tokens, at other positions."""
        lengths = (3, 6)
        prompts = self.prefill([[5] * length for length in lengths])
        self.decode([], [FirstToken(prompt, bytes(16), False) for prompt in prompts])
        with _computing():
            for number in range(RECORDED_STEP + 2):
                fed = [(101 * number + 59 * length) % self._config.vocab_size for length in lengths]
                rows = [
                    NextToken(token, length + number, bytes(16), 1, False)
                    for token, length in zip(fed, lengths, strict=True)
                ]
                replayed = self._next_logits(rows).clone()
            self._graphs = None
            agree = _alike(replayed, self._next_logits(rows), self._dtype)
        if graphs.on and not agree:
            graphs.end("a replayed step gives other logits")
        graphs.forget()
        self._graphs = graphs if graphs.on else None
        self.reset()

    def _is_alike(self, number: int) -> bool:
        """Tell whether a decode step of two rows agrees with a plain pass. `number`: number of the pair of rows."""
        # Special tokens, which often come first in a vocabulary, magnify rounding.
        first_token = 4099 + 6151 * number
        lengths = (4, 7)
        sequences = [[(7919 * n + first_token) % self._config.vocab_size for n in range(length)] for length in lengths]
        first = [FirstToken(prompt, bytes(16), False) for prompt in self.prefill([each[:-1] for each in sequences])]
        self.decode([], first)
        with _computing():
            decoded = self._next_logits([NextToken(each[-1], len(each) - 1, bytes(16), 1, False) for each in sequences])
            # What is filled up at the end of a row changes none of its tokens before.
            filled = torch.tensor([each + [0] * (max(lengths) - len(each)) for each in sequences], device=self._device)
            whole = compute_checked(self._model, filled)[[0, 1], [len(each) - 1 for each in sequences]]
        self.reset()
        if self._dtype == torch.float16 and not bool(whole.isfinite().all()):
            raise LogitsNotFinite
        return _alike(decoded, whole, self._dtype)

    def _pass(self, ids: Sequence[Sequence[int]], cache: DynamicCache) -> Tensor:
        """The last hidden states of tokens that follow those of `cache`."""
        hidden: Tensor = self._model.base_model(
            upload(ids, self._device), past_key_values=cache, use_cache=True
        ).last_hidden_state
        return hidden

    def _next_logits(self, rows: Sequence[NextToken]) -> Tensor:
        """The logits after one more token of each row, [rows, V], good until the next call."""
        positions = [row.position for row in rows]
        if self._graphs is None:
            self._cache.step(positions)
            logits = self._step_logits(self._fed_tokens(rows))
        else:
            logits = self._graphs.step(self._cache, self._fed_tokens(rows), positions, self._step_logits)
            if not self._graphs.on:
                self._graphs = None
        self._lengths = [position + 1 for position in positions]
        return logits

    def _step_logits(self, fed: Tensor) -> Tensor:
        """The logits after a token of each row of the cache's present step."""
        masks = {
            kind: self._cache.mask(self._dtype, self._config.sliding_window if kind == SLIDING_ATTENTION else None)
            for kind in set(self._kinds)
        }
        with self._attention.to(half_attention.NAME) if self._attention else nullcontext():
            hidden = self._model.base_model(
                fed[:, None],
                attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
                position_ids=self._cache.positions[:, None],
                past_key_values=self._cache,
                use_cache=True,
            ).last_hidden_state
        return self._head(hidden[:, -1])

    def _fed_tokens(self, rows: Sequence[NextToken]) -> Tensor:
        known = [(place, row.token) for place, row in enumerate(rows) if row.token is not None]
        if len(known) == len(rows):
            return upload([token for _, token in known], self._device)
        fed = self._last[: len(rows)].clone()
        if known:
            places, tokens = zip(*known, strict=True)
            fed[upload(places, self._device)] = upload(tokens, self._device)
        return fed

    def _place(self, first: Sequence[FirstToken[ComputedPrompt]]) -> None:
        """Copy each prompt into the places of its rows, which follow each other."""
        start = 0
        while start < len(first):
            prompt = first[start].prompt
            count = next((n for n, one in enumerate(first[start:]) if one.prompt is not prompt), len(first) - start)
            self._cache.put(len(self._lengths), count, prompt.states("keys"), prompt.states("values"))
            self._lengths += [prompt.length] * count
            start += count

    def _choose(self, logits: Tensor, choices: Sequence[tuple[bytes, int, bool]]) -> tuple[Tensor, Tensor]:
        if all(greedy for _, _, greedy in choices):
            return sampling.greedy(logits)
        keys = sampling.keys([(seed, number) for seed, number, _ in choices], self._device)
        tokens, logprobs = sampling.choose(logits, keys)
        if any(greedy for _, _, greedy in choices):
            plain = upload([greedy for _, _, greedy in choices], self._device)
            likely, likely_logprobs = sampling.greedy(logits)
            return torch.where(plain, likely, tokens), torch.where(plain, likely_logprobs, logprobs)
        return tokens, logprobs


def _alike(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    """Tell whether logits differ by rounding alone."""
    apart, spread = (one - other.float()).abs().mean(), other.float().std()
    return bool(apart <= _CLOSE_LOGITS_SHARE[dtype] * spread) or not bool(other.isfinite().all())


def _reading(tokens: Tensor, logprobs: Tensor) -> Callable[[], Chosen]:
    """Copy to the host at once; return a function that waits for that copy, not for what was begun later."""
    values = download((tokens, logprobs))

    def read() -> Chosen:
        with _computing():
            return Chosen(*values())

    return read


@contextmanager
def _computing() -> Iterator[None]:
    try:
        with torch.inference_mode():
            yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in NO_MEMORY):
            raise OutOfMemory(str(error)) from error
        if why := lost_device(error):
            raise ProgramLost(why) from error
        raise
