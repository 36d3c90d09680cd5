"""Results of a pure function per node, kept for those that ask again with the same arguments. Pure.

The entry of an epoch and the state behind it follow from the same steps of each node. So a step is made once, by the
first that needs it, and may be made ahead: a result is used only where it was made of the very same objects.
"""

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

_Result = TypeVar("_Result")


class NodeMemo(Generic[_Result]):
    """The newest result of `compute` of each node."""

    def __init__(self, compute: Callable[..., _Result]) -> None:
        self._compute = compute
        self._known: dict[str, tuple[tuple[Any, ...], tuple[int, ...], _Result]] = {}
        self._forgotten = self._known

    def of(self, node: str, objects: tuple[Any, ...], *numbers: int) -> _Result:
        """Return `compute(*objects, *numbers)`.

        Objects are compared by identity: each is immutable, or a list that only grows, whose length is a number."""
        known = self._known.get(node)
        if known is not None and known[1] == numbers and all(a is b for a, b in zip(known[0], objects, strict=True)):
            return known[2]
        result = self._compute(*objects, *numbers)
        self._known[node] = (objects, numbers, result)
        return result

    def __eq__(self, other: object) -> bool:
        """Return True for each other memo: what was asked of a state is no part of it."""
        return isinstance(other, NodeMemo)

    def clear(self) -> None:
        """Forget all results. They stay in memory until `free_stepwise` is taken, or until the next call."""
        self._forgotten, self._known = self._known, {}

    def free_stepwise(self) -> Iterator[str]:
        """Yield the nodes whose forgotten results have just been freed. To free millions takes a moment."""
        while self._forgotten:
            yield self._forgotten.popitem()[0]
