"""A gossip message is judged once, however many copies of it arrive, and however close together.

Upstream looks whether it has seen a message, waits for the validator, and only then marks it as seen; a copy that comes
meanwhile is judged again. Here it waits for the first copy's verdict.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable

import anyio

KEPT = 1024
"""Verdicts remembered; upstream forgets a message after two minutes, and hears at most some ten a second."""


class Once:
    """Verdicts by message id."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[bytes, _Verdict] = OrderedDict()

    async def judge(self, message: bytes, handler: Callable[[], Awaitable[bool]]) -> bool:
        """`handler`'s verdict on the message with this id; it is called for the first copy only."""
        if (known := self._verdicts.get(message)) is not None:
            await known.given.wait()
            return known.valid
        verdict = self._verdicts[message] = _Verdict()
        if len(self._verdicts) > KEPT:
            self._verdicts.popitem(last=False)
        try:
            verdict.valid = await handler()
        finally:
            verdict.given.set()
        return verdict.valid


class _Verdict:
    def __init__(self) -> None:
        self.valid = False
        self.given = anyio.Event()
