"""A cache of verdicts on gossip: each message is validated once, however many copies arrive and however close together.

1. Upstream checks its seen-cache, waits for the validator, and only then marks the message as seen; a copy that arrives
   meanwhile is validated again. Here a copy waits for the verdict on the first copy.
2. A message that repeats the content of another one under a new id is handled, but never forwarded. Otherwise any peer
   could keep old content circulating for ever by signing it anew.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable

import anyio
from blake3 import blake3

CACHED_MESSAGES = 1024
"""Verdicts and contents remembered. Upstream forgets a message after two minutes and handles some ten per second."""


class ValidationCache:
    """Validation verdicts by message id, and the contents seen."""

    def __init__(self) -> None:
        self._verdicts: OrderedDict[bytes, _Verdict] = OrderedDict()
        self._contents: OrderedDict[bytes, None] = OrderedDict()

    async def validate(self, message: bytes, content: bytes, handler: Callable[[], Awaitable[bool]]) -> bool:
        """Return whether the message with this id is forwarded: `handler`'s verdict, and False for repeated content.
        `handler` is called for the first copy of a message only."""
        if (known := self._verdicts.get(message)) is not None:
            await known.decided.wait()
            return known.valid
        verdict = self._verdicts[message] = _Verdict()
        if len(self._verdicts) > CACHED_MESSAGES:
            self._verdicts.popitem(last=False)
        new = self._is_new(content)
        try:
            verdict.valid = await handler() and new
        finally:
            verdict.decided.set()
        return verdict.valid

    def _is_new(self, content: bytes) -> bool:
        digest = blake3(content).digest()
        if digest in self._contents:
            self._contents.move_to_end(digest)
            return False
        self._contents[digest] = None
        if len(self._contents) > CACHED_MESSAGES:
            self._contents.popitem(last=False)
        return True


class _Verdict:
    def __init__(self) -> None:
        self.valid = False
        self.decided = anyio.Event()
