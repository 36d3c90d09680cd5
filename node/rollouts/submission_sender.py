"""The sender of queued submissions: several are under way at once, so that a long round trip bounds no node's rate.

Rules
1. Submissions begin oldest first, each at most once per call of `send`, as many at once as the window admits
   (node/rollouts/submission_window.py). One that is queued meanwhile begins in the same call.
2. An answer is stored when it comes, in any order: it concerns its own submission alone. Until then the submission
   counts as queued, so that a killed process sends the same bytes again.
3. After a refusal with `retry_after`, and after a break, nothing begins any more. Those under way are awaited, then
   the refusal with the longest wait is raised. Any other error ends them at once: the coordinator is not
   to be trusted, or this machine is at fault.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from echo2.node.links.coordinator_client import CoordinatorClient, RequestRefused
from echo2.node.rollouts.outbox import Outbox
from echo2.node.rollouts.submission_window import SubmissionWindow
from echo2.p2p.errors import Unreachable
from echo2.protocol.methods import SUBMIT
from echo2.protocol.requests import Refusal

SOON_OVER: Final = (RequestRefused, Unreachable)
"""Errors after which the other submissions under way are awaited (rule 3)."""


class SubmissionSender:
    """The sender of one outbox. `take`: stores the coordinator's answer to a submission, or raises a `PeerFault`.
    `refuse`: stores a refusal that no retry can change. `on_sent`: called after each submission with either."""

    def __init__(
        self,
        outbox: Outbox,
        coordinator_client: CoordinatorClient,
        take: Callable[[bytes, bytes], None],
        refuse: Callable[[bytes, Refusal], None],
    ) -> None:
        self._outbox, self._coordinator_client = outbox, coordinator_client
        self._take, self._refuse = take, refuse
        self.window = SubmissionWindow()
        self.on_sent: Callable[[], None] = lambda: None
        self._news = asyncio.Event()
        """Set when a submission is queued, and when one is not under way any more."""

    def wake(self) -> None:
        """Look again for queued submissions."""
        self._news.set()

    async def send(self, enough: Callable[[int], bool]) -> int:
        """Send all queued submissions; return how many. `enough`: tells whether none is to begin any more, after so
        many have begun. Raises `RequestRefused`, `P2PError`."""
        sent: set[bytes] = set()
        under_way: set[asyncio.Task[None]] = set()
        failures: list[RequestRefused | Unreachable] = []
        try:
            while True:
                self._news.clear()
                while not failures and not enough(len(sent)) and (task := self._begin(sent)) is not None:
                    under_way.add(task)
                if not under_way:
                    break
                await self._news.wait()
                for task in [one for one in under_way if one.done()]:
                    under_way.remove(task)
                    failures += _failure(task)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
        if failures:
            raise max(failures, key=_wait)
        return len(sent)

    def _begin(self, sent: set[bytes]) -> asyncio.Task[None] | None:
        """Begin the oldest queued submission that is not among `sent`; None: there is none, or no place for it."""
        row = self._outbox.next_queued(sent)
        if row is None or not self.window.admits(len(row[1])):
            return None
        lease, body = row
        sent.add(lease)
        self.window.begin(len(body))
        task = asyncio.ensure_future(self._submit(lease, body))
        task.add_done_callback(lambda _: self._end(len(body)))
        return task

    def _end(self, nbytes: int) -> None:
        self.window.end(nbytes)
        self._news.set()

    async def _submit(self, lease: bytes, body: bytes) -> None:
        clock, client = asyncio.get_running_loop().time, self._coordinator_client
        began, busy = clock(), client.busy
        try:
            answer = await client.call(SUBMIT, body)
        except RequestRefused as error:
            if error.refusal.retry_after is not None:
                self.window.halve()
                raise
            self._refuse(lease, error.refusal)
        else:
            self._take(lease, answer)
        if client.busy == busy:
            self.window.note_answer(clock() - began)
        else:
            self.window.halve()
        self.on_sent()


def _failure(task: asyncio.Task[None]) -> list[RequestRefused | Unreachable]:
    """Return the error of a task that has ended, if the others may go on (rule 3). Raises any other."""
    error = task.exception()
    if error is None:
        return []
    if isinstance(error, SOON_OVER):
        return [error]
    raise error


def _wait(error: RequestRefused | Unreachable) -> float:
    """Return the place of an error among those of one call: the longest wait counts, and any refusal before a break."""
    return -1.0 if isinstance(error, Unreachable) else float(error.refusal.retry_after or 0)
