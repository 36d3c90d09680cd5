"""Map a function over items by several threads; the results come in the order of the items."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from echo2.runtime.usable_cores import usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Task(Generic[Item, Result]):
    """The work on one item, done by the first thread that claims it."""

    def __init__(self, work: Callable[[Item], Result], item: Item) -> None:
        self.result: Future[Result] = Future()
        self._work, self._item, self._claimed = work, item, threading.Lock()

    def claim(self) -> bool:
        return self._claimed.acquire(blocking=False)

    def run(self) -> None:
        try:
            self.result.set_result(self._work(self._item))
        except BaseException as error:  # raised again where the result is taken
            self.result.set_exception(error)

    def run_if_free(self) -> None:
        if self.claim():
            self.run()


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None) -> Iterator[Result]:
    """Yield `work(item)` of each item, in order. `threads`: their number; None: one per core that this process may use.

    The caller's thread is one of them: it works where it would wait, so no core is taken from another. At most twice as
    many items as threads are being processed or waiting, so memory does not grow with the number of items. An error
    ends the iteration."""
    threads = threads or usable_cores()
    if threads == 1:
        yield from map(work, items)
        return
    tasks: deque[_Task[Item, Result]] = deque()
    with ThreadPoolExecutor(threads - 1) as pool:
        try:
            for item in items:
                tasks.append(_Task(work, item))
                pool.submit(tasks[-1].run_if_free)
                if len(tasks) == 2 * threads:
                    yield _first(tasks)
            while tasks:
                yield _first(tasks)
        finally:
            for task in tasks:
                task.claim()


def _first(tasks: deque[_Task[Item, Result]]) -> Result:
    """Take the first task and return its result; until it is done, the caller works on unclaimed tasks."""
    for task in tasks:
        if tasks[0].result.done():
            break
        task.run_if_free()
    return tasks.popleft().result.result()
