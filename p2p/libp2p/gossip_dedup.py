"""A gossip message is judged once, however many copies of it arrive, and however close together.

Upstream looks whether it has seen a message, waits for the validator, and only then marks it as seen; a copy that comes
meanwhile is judged again. Here it waits for the first copy's verdict.

A message that says again what another one said, under an id of its own, is heard, and never passed on: all peers would
else carry what a stranger signs anew, for ever.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable

import anyio
from blake3 import blake3

KEPT = 1024
"""Verdicts and contents remembered; upstream forgets a message after two minutes, and hears some ten a second."""


class ValidationCache:
    """Verdicts by message id."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[bytes, _Verdict] = OrderedDict()
        self._said: OrderedDict[bytes, None] = OrderedDict()

    async def validate(self, message: bytes, content: bytes, handler: Callable[[], Awaitable[bool]]) -> bool:
        """Whether the message with this id goes on, which is `handler`'s verdict where the content is new. `handler` is
        called for the first copy of a message only."""
        if (known := self._verdicts.get(message)) is not None:
            await known.given.wait()
            return known.valid
        verdict = self._verdicts[message] = _Verdict()
        if len(self._verdicts) > KEPT:
            self._verdicts.popitem(last=False)
        new = self._is_new(content)
        try:
            verdict.valid = await handler() and new
        finally:
            verdict.given.set()
        return verdict.valid

    def _is_new(self, content: bytes) -> bool:
        digest = blake3(content).digest()
        if digest in self._said:
            self._said.move_to_end(digest)
            return False
        self._said[digest] = None
        if len(self._said) > KEPT:
            self._said.popitem(last=False)
        return True


class _Verdict:
    def __init__(self) -> None:
        self.valid = False
        self.given = anyio.Event()
