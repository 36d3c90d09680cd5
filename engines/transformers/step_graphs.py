"""Compute a decode step on CUDA as one graph: recorded once per shape, and replayed with one call in place of the 2,000
that Qwen3-4B's step has (ADR 83).

Rules
1. A graph computes what was recorded, at the same addresses. What changes between two steps, tokens and positions, is
   copied into the same memory before, and logits come out in the same memory; a version patches weights in place.
2. Shapes are few: rows are filled up to a size of `rows_of`, tokens to one of `span_of`, as far as the buffers of keys
   and values have them. A filling row writes into a place that no row has, and its logits are cut off.
3. A shape is recorded at its `RECORDED_STEP`-th step. The steps before are computed as ever, the last of them under
   PyTorch's check for waits: a graph cannot wait for the device, and a recording that tries leaves the process spoiled.
4. Where a step waits, a recording fails or a replay differs (`Decoder.check`), each step is launched operation by
   operation from then on, and the log says why once.
5. Where a buffer moves, all graphs are dropped. Of more than `MOST_GRAPHS`, the one goes that was not used for longest.
6. ECHO2_ENGINE_GRAPHS=off in the environment of a node forbids them. ROCm has none.

Not shown on a card. On a CPU a recording of operations stands in (tests/support/recorded_operations.py).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final, NamedTuple, Protocol

import structlog
import torch
from torch import Tensor

from echo2.engines.devices.host_transfers import upload
from echo2.engines.transformers.row_cache import RowCache

VARIABLE: Final = "ECHO2_ENGINE_GRAPHS"
RECORDED_STEP: Final = 4
MOST_GRAPHS: Final = 32
ROW_UNIT: Final = 8
SPAN_UNIT: Final = 64
WAITS: Final = "synchronizing"
"""A word of PyTorch's error where an operation waits for the device."""

_log = structlog.get_logger("engines")


class Graph(Protocol):
    """What was recorded. `pool`: names the memory of its intermediate values, which graphs share."""

    @property
    def pool(self) -> Any: ...

    def replay(self) -> None:
        """Compute it once more."""


class GraphRecorder(Protocol):
    """A device that records."""

    def record(self, compute: Callable[[], object], beside: Graph | None) -> Graph:
        """Record what `compute` launches, without computing it. `beside`: a graph to share memory with."""

    def forbid_waits(self) -> AbstractContextManager[None]:
        """Let whatever waits for the device raise RuntimeError until the end."""


class StepGraphs:
    """The graphs of one decoder. `on`: whether steps go through here."""

    def __init__(self, recorder: GraphRecorder, device: torch.device, vocabulary: int) -> None:
        self.on = True
        self._recorder, self._device, self._vocabulary = recorder, device, vocabulary
        self._addresses: tuple[int, ...] = ()
        self._graphs: dict[tuple[int, int], Graph] = {}
        """By rows and tokens, that used last at the end."""
        self._steps: Counter[tuple[int, int]] = Counter()

    def step(
        self, cache: RowCache, fed: Tensor, positions: Sequence[int], compute: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the logits after one more token of each row, [rows, V], good until the next step. `fed`: their tokens,
        [rows]; the rows are those of all places in use. `compute`: computes logits for the cache's present step."""
        longest = max(positions) + 1
        cache.reach(longest)
        self._follow(cache)
        count, (places, tokens) = len(positions), cache.room
        rows, span = min(rows_of(count), places), min(span_of(longest), tokens)
        self._tokens[:count].copy_(fed)
        self._positions[:rows].copy_(upload([*positions, *[0] * (rows - count)], self._device))
        cache.step_at(self._positions[:rows], self._places[:rows], span)
        self._compute((rows, span), lambda: self._logits[:rows].copy_(compute(self._tokens[:rows])))
        return self._logits[:count]

    def forget(self) -> None:
        """Drop all graphs and the memory around them."""
        self._graphs.clear()
        self._addresses = ()
        self._tokens = self._positions = self._places = self._logits = torch.empty(0, device=self._device)

    def end(self, reason: str) -> None:
        """Record and replay no more (rule 4)."""
        self.on = False
        self._graphs.clear()
        _log.warning("decode steps are launched operation by operation", reason=reason)

    def _follow(self, cache: RowCache) -> None:
        """Begin anew where the buffers of keys and values moved (rule 5)."""
        if (addresses := cache.addresses) == self._addresses:
            return
        self.forget()
        self._addresses, (places, _) = addresses, cache.room
        self._tokens, self._positions = torch.zeros(2, places, dtype=torch.int64, device=self._device).unbind()
        self._places = torch.arange(places, device=self._device)
        self._logits = torch.empty(places, self._vocabulary, device=self._device)

    def _compute(self, shape: tuple[int, int], compute: Callable[[], object]) -> None:
        """Compute a step of a shape (rule 3)."""
        graph = self._graphs.pop(shape, None)
        self._steps[shape] += 1
        if graph is None and self._steps[shape] >= RECORDED_STEP:
            graph = self._record(compute)
        if graph is not None:
            self._graphs[shape] = graph
            graph.replay()
        elif self._steps[shape] == RECORDED_STEP - 1:
            self._compute_without_waits(compute)
        else:
            compute()

    def _compute_without_waits(self, compute: Callable[[], object]) -> None:
        try:
            with self._recorder.forbid_waits():
                compute()
        except RuntimeError as error:
            if WAITS not in str(error):
                raise
            self.end(_sentence(error))
            compute()

    def _record(self, compute: Callable[[], object]) -> Graph | None:
        if len(self._graphs) >= MOST_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        try:
            return self._recorder.record(compute, next(iter(self._graphs.values()), None))
        except RuntimeError as error:
            self.end(_sentence(error))
            return None


class CudaRecorder:
    """`GraphRecorder` of one of NVIDIA's cards."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, compute: Callable[[], object], beside: Graph | None) -> Graph:
        """See `GraphRecorder.record`."""
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle() if beside is None else beside.pool
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool, capture_error_mode="thread_local")
                try:
                    compute()
                finally:
                    graph.capture_end()
        except BaseException:
            self._take_back(pool)
            raise
        return CudaGraph(graph, pool)

    def _take_back(self, pool: Any) -> None:
        """Let PyTorch's allocator end what `capture_end` begins to end only after its own error: while it counts a
        recording as under way, neither `empty_cache` nor an out-of-memory gets memory back. Where it does not, it
        raises here."""
        index = self._stream.device_index
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(index, pool)
            torch._C._cuda_releasePool(index, pool)

    @contextmanager
    def forbid_waits(self) -> Iterator[None]:
        """See `GraphRecorder.forbid_waits`."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


class CudaGraph(NamedTuple):
    """`Graph` of CUDA."""

    graph: Any  # torch.cuda.CUDAGraph, whose methods carry no types
    pool: Any

    def replay(self) -> None:
        """See `Graph.replay`."""
        self.graph.replay()


def recorder_of(device: torch.device, environ: Mapping[str, str]) -> GraphRecorder | None:
    """Return what records on a device; None: nothing does, or may (rule 6)."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return CudaRecorder(device) if nvidia and environ.get(VARIABLE) != "off" else None


def rows_of(count: int) -> int:
    """Return how many rows are computed for so many: 1, 2, 4, 8, 16, 24, ..."""
    return 1 << (count - 1).bit_length() if count <= ROW_UNIT else -(-count // ROW_UNIT) * ROW_UNIT


def span_of(tokens: int) -> int:
    """Return how many keys of each row are looked at for the longest row's: eight sizes between powers of two."""
    unit = max(SPAN_UNIT, (1 << (tokens - 1).bit_length()) // 16)
    return -(-tokens // unit) * unit


def _sentence(error: Exception) -> str:
    """Return the first sentence of PyTorch's many."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300]
