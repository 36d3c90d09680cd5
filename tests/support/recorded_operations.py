"""A CUDA graph for a CPU: record the operations of PyTorch that a function calls, and call them again.

1. As with a graph, a replay computes what was recorded: the shapes, numbers and addresses of then, and nothing of the
   Python code between the operations.
2. Whatever was computed while recording is spoiled at its end, since a graph computes nothing at that time: a replay
   that used one of those values shows it.
3. What waits for a device raises an error with PyTorch's word for it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from echo2.engines.transformers.step_graphs import WAITS, Graph

WAITING = {
    "item", "_local_scalar_dense", "is_nonzero", "nonzero", "argwhere", "equal", "masked_select", "unique_dim",
    "_unique2", "unique_consecutive", "lift_fresh",
}  # fmt: skip
"""Operations that wait on a device: they read a value there, have a shape that depends on one, or bring one."""


class ForbiddenWaits(TorchDispatchMode):
    """Raises where an operation would wait (rule 3)."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(one is not None and one.dtype == torch.bool for one in args[1])
        if name in WAITING or by_mask:
            raise RuntimeError(f"called a {WAITS} operation: {name}\nwith more lines")
        return func(*args, **(kwargs or {}))


class RecordedOperations(ForbiddenWaits):
    """`Graph`. `replays`: how often it was replayed."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.replays = object(), 0
        self._operations: list[tuple[Any, Any, dict[str, Any], list[Any]]] = []
        self._fresh: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = super().__torch_dispatch__(func, types, args, kwargs)
        before = {_storage(one) for one in tensors((args, kwargs))}
        self._fresh |= {_storage(one): one for one in tensors(result) if _storage(one) not in before}
        self._operations.append((func, args, kwargs, tensors(result)))
        return result

    def spoil(self) -> None:
        for one in self._fresh.values():
            one.fill_(torch.nan if one.is_floating_point() else 1)

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, results in self._operations:
            for old, new in zip(results, tensors(func(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class OperationRecorder:
    """`GraphRecorder`. `graphs`: all that were recorded."""

    def __init__(self) -> None:
        self.graphs: list[RecordedOperations] = []

    @property
    def replays(self) -> int:
        return sum(graph.replays for graph in self.graphs)

    def record(self, compute: Callable[[], object], beside: Graph | None) -> RecordedOperations:
        graph = RecordedOperations()
        with graph:
            compute()
        graph.spoil()
        self.graphs.append(graph)
        return graph

    @contextmanager
    def forbid_waits(self) -> Iterator[None]:
        with ForbiddenWaits():
            yield


def tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
