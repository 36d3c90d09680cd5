"""Generate many groups together, for any engine that can compute one token for many rows (`Backend`).

Rules
1. A row is one rollout; it has a place from its first token to its last. Places are dense: when a row ends, the row of
   the last place moves into its place. A free place goes to the next row that waits, in the order of the groups; a
   group need not have places for all its rows at once.
2. The prompt of a group is computed once, when its first row gets a place. Prompts of like length are computed
   together; a long one in parts of `PROMPT_PART` tokens, one part per step, so that the rows that run never wait long.
3. How many rows run is the row limit's (engines.row_limit), within the memory at hand.
4. A fault of one group (logits that are not finite, its task) is that group's outcome; the others go on.
5. After an out-of-memory all rows are dropped, the limit halves, and the groups begin again from their seeds. A group
   fails where not even one row fits.
6. With `Backend.overlap` the tokens of a step are read after the next step was begun. A row that ended is then computed
   once more in vain, and the device never waits for this process.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from engines.engine import EngineError, EngineRows, Finished, Job, LogitsNotFinite, Sample
from engines.rollout_state import RolloutState
from engines.row_limit import Memory, RowLimit

PROMPT_PART: Final = 512
"""Most tokens of prompts per step while rows run, and the size of a part of a long prompt."""
PADDING: Final = 1.25
"""Prompts computed together have lengths within this factor: the shorter ones are padded."""

P = TypeVar("P")


class OutOfMemory(Exception):
    """The device has no memory left for this call; what it held of rows and prompts may be incomplete."""


class NextToken(NamedTuple):
    """A row that is taken further. `token`: fed to the model; None: the one that the step before chose in this place.
    `position`: of that token in the whole sequence, prompt counted. `seed`, `number`, `greedy`: the choice of the next
    token: its seed and its number within the rollout."""

    token: int | None
    position: int
    seed: bytes
    number: int
    greedy: bool


class FirstToken(NamedTuple, Generic[P]):
    """A row that gets the next place: its first token is chosen by the prompt's logits."""

    prompt: P
    seed: bytes
    greedy: bool


class Chosen(NamedTuple):
    """The tokens of a step by place, and the log-probability of each."""

    tokens: Sequence[int]
    logprobs: Sequence[float]


class Backend(Protocol[P]):
    """One model on one device. Each call may raise `OutOfMemory`. P: a computed prompt."""

    overlap: bool

    def prefill(self, prompts: Sequence[Sequence[int]]) -> list[P]:
        """Compute prompts, or the first part of a single one."""

    def extend(self, prompt: P, tokens: Sequence[int]) -> None:
        """Compute the next part of a prompt."""

    def release(self, prompt: P) -> None:
        """Free a prompt: all rows of it have their places."""

    def decode(self, rows: Sequence[NextToken], first: Sequence[FirstToken[P]]) -> Callable[[], Chosen]:
        """Take the rows of places 0, 1, ... further, and give the next places to new rows with the prompt's keys and
        values. Return a function that waits for the tokens of both, in the order of the places."""

    def vacate(self, place: int, last: int) -> None:
        """Free a place: the row of `last`, the last place, moves into it. The two may be the same."""

    def clean(self, place: int) -> None:
        """Remove values that are not finite from a place, before it is vacated."""

    def reset(self) -> None:
        """Drop all rows and prompts, and free their memory."""

    def memory(self) -> Memory:
        """Say what rows cost and may cost."""


class _Group(Generic[P]):
    def __init__(self, ticket: int, job: Job, states: list[RolloutState]) -> None:
        self.ticket, self.job = ticket, job
        self.states = states
        self.prompt: P | None = None
        self.computed = 0
        """Tokens of the prompt that are computed."""
        self.outcome: list[Sample] | Exception | None = None
        self.waiting = deque(range(len(states)))
        self.unfinished = len(states)

    @property
    def length(self) -> int:
        return len(self.job.prompt) + self.job.limit


class _Row(Generic[P]):
    def __init__(self, group: _Group[P], number: int) -> None:
        self.group, self.number = group, number
        self.begun = 0
        """Tokens whose choice was begun: one more than those taken, while a step was not read yet."""

    @property
    def state(self) -> RolloutState:
        return self.group.states[self.number]

    @property
    def gone(self) -> bool:
        return self.group.outcome is not None or self.state.ended


class ContinuousBatch(Generic[P]):
    """`begin`, `cancel`, `step` and `rows` of engines.engine.Engine over a backend. `rollouts`: returns the states of a
    job's rollouts at their beginning. `clock`: seconds; of processor time where the processor is the device."""

    def __init__(
        self,
        backend: Backend[P],
        rollouts: Callable[[Job], list[RolloutState]],
        limit: RowLimit,
        clock: Callable[[], float],
    ) -> None:
        self._backend, self._rollouts, self._limit, self._clock = backend, rollouts, limit, clock
        self._groups: dict[int, _Group[P]] = {}
        self._queue: deque[_Group[P]] = deque()
        """Groups with rows that wait for a place."""
        self._places: list[_Row[P]] = []
        self._unread: tuple[list[_Row[P]], Callable[[], Chosen]] | None = None
        self._fitting: int | None = None

    @property
    def busy(self) -> bool:
        """Whether groups are under way."""
        return bool(self._groups)

    @property
    def rows(self) -> EngineRows:
        """See `Engine.rows`."""
        waiting = sum(len(group.waiting) for group in self._queue)
        return EngineRows(running=len(self._places), waiting=waiting, limit=self._most())

    def begin(self, ticket: int, job: Job) -> None:
        """See `Engine.begin`."""
        if ticket in self._groups:
            raise EngineError(f"a group named {ticket} is under way")
        group: _Group[P] = _Group(ticket, job, self._rollouts(job))
        self._groups[ticket] = group
        if group.unfinished:
            self._queue.append(group)
            self._fitting = None
        else:
            group.outcome = []

    def cancel(self, ticket: int) -> None:
        """See `Engine.cancel`."""
        group = self._groups.get(ticket)
        if group is not None:
            self._end(group, EngineError("the group was cancelled"))
            del self._groups[ticket]
            self._vacate()

    def step(self) -> list[Finished]:
        """See `Engine.step`."""
        try:
            self._advance()
        except OutOfMemory as error:
            self._begin_again(error)
        except Exception:
            self._drop_all()
            self._groups.clear()
            raise
        ended = [group for group in self._groups.values() if group.outcome is not None]
        for group in ended:
            del self._groups[group.ticket]
        return [Finished(group.ticket, group.outcome) for group in ended if group.outcome is not None]

    def _advance(self) -> None:
        began, before = self._clock(), len(self._places)
        prompts = self._compute_prompts()
        unread, self._unread = self._unread, self._launch()
        if unread is not None:
            self._take(*unread)
        if not self._backend.overlap and self._unread is not None:
            unread, self._unread = self._unread, None
            self._take(*unread)
        self._vacate()
        if before and not prompts:
            self._limit.measured(before, self._clock() - began)

    # --- beginning rows

    def _most(self) -> int:
        """Return how many rows may run now (rule 3)."""
        if self._fitting is None:
            longest = max((group.length for group in self._groups.values()), default=1)
            self._fitting = self._backend.memory().fitting(longest)
        return min(self._limit.rows, self._fitting)

    def _compute_prompts(self) -> int:
        """Compute the prompts of the rows that get places in this step, or a part of them; return how many tokens."""
        parts: list[tuple[_Group[P], list[int]]] = []
        tokens, room = 0, self._most() - len(self._places)
        for group in self._queue:
            left = len(group.job.prompt) - group.computed
            if room <= 0 or (tokens and tokens + left > PROMPT_PART):
                break
            room -= len(group.waiting)
            if left:
                part = group.job.prompt[group.computed : group.computed + PROMPT_PART]
                parts.append((group, part))
                tokens += len(part)
        for group, part in parts:
            if group.prompt is not None:
                self._backend.extend(group.prompt, part)
                group.computed += len(part)
        for together in _alike([(group, part) for group, part in parts if group.prompt is None]):
            prompts = self._backend.prefill([part for _, part in together])
            for (group, part), prompt in zip(together, prompts, strict=True):
                group.prompt, group.computed = prompt, len(part)
        return tokens

    def _launch(self) -> tuple[list[_Row[P]], Callable[[], Chosen]] | None:
        """Begin the next token of all rows, and the first one of rows that get a place."""
        rows = [self._next(row) for row in self._places]
        new = self._new_rows()
        if not rows and not new:
            return None
        first = []
        for row in new:
            assert row.group.prompt is not None
            first.append(FirstToken(row.group.prompt, row.state.seed, row.group.job.greedy))
        read = self._backend.decode(rows, first)
        self._places += new
        for row in self._places:
            row.begun += 1
        self._release()
        return list(self._places), read

    def _new_rows(self) -> list[_Row[P]]:
        """Return the rows that get a place: those of the first groups in the queue whose prompts are computed."""
        new: list[_Row[P]] = []
        room = self._most() - len(self._places)
        for group in self._queue:
            if group.computed < len(group.job.prompt):
                break
            while group.waiting and len(new) < room:
                new.append(_Row(group, group.waiting.popleft()))
        return new

    def _release(self) -> None:
        """Free the prompts of groups whose rows all have their places."""
        while self._queue and not self._queue[0].waiting:
            group = self._queue.popleft()
            self._free(group)

    def _next(self, row: _Row[P]) -> NextToken:
        """Return what feeds a row, which has one token more begun than taken where a step was not read yet."""
        state, job = row.state, row.group.job
        last = state.last if row.begun == state.position else state.given
        return NextToken(last, len(job.prompt) + row.begun - 1, state.seed, row.begun, job.greedy)

    # --- ending rows

    def _take(self, rows: Sequence[_Row[P]], read: Callable[[], Chosen]) -> None:
        """Read a step's tokens."""
        chosen = read()
        for row, token, logprob in zip(rows, chosen.tokens, chosen.logprobs, strict=True):
            if row.gone:
                continue
            if not math.isfinite(logprob):
                self._end(row.group, LogitsNotFinite())
                self._clean(row.group)
                continue
            try:
                row.state.step(token, logprob)
            except Exception as error:  # the task's code
                self._end(row.group, error)
                continue
            if row.state.ended:
                row.group.unfinished -= 1
                if not row.group.unfinished:
                    row.group.outcome = [state.sample() for state in row.group.states]

    def _vacate(self) -> None:
        """Free the places of rows that are gone (rule 1)."""
        for place in reversed(range(len(self._places))):
            if self._places[place].gone:
                last = len(self._places) - 1
                self._backend.vacate(place, last)
                self._places[place] = self._places[last]
                self._places.pop()

    def _clean(self, group: _Group[P]) -> None:
        for place, row in enumerate(self._places):
            if row.group is group:
                self._backend.clean(place)

    def _end(self, group: _Group[P], error: Exception) -> None:
        """End a group without samples; its rows are vacated later."""
        group.outcome = error
        group.waiting.clear()
        if group in self._queue:
            self._queue.remove(group)
            self._free(group)

    def _free(self, group: _Group[P]) -> None:
        if group.prompt is not None:
            self._backend.release(group.prompt)
            group.prompt = None

    # --- out of memory

    def _drop_all(self) -> None:
        self._places, self._unread, self._fitting = [], None, None
        for group in self._groups.values():
            group.prompt, group.computed = None, 0
        self._queue.clear()
        self._backend.reset()

    def _begin_again(self, error: OutOfMemory) -> None:
        """Begin all groups again (rule 5)."""
        rows = max(len(self._places), min(self._most(), self.rows.running + self.rows.waiting))
        self._drop_all()
        self._limit.out_of_memory(rows)
        open_groups = [group for group in self._groups.values() if group.outcome is None]
        if rows <= 1 and open_groups:
            why = f"out of memory: no rollout of this length fits: free memory, or use a smaller model ({error})"
            open_groups.pop(0).outcome = EngineError(why)
        for group in open_groups:
            fresh = self._rollouts(group.job)
            group.states = [state if state.ended else new for state, new in zip(group.states, fresh, strict=True)]
            group.waiting = deque(number for number, state in enumerate(group.states) if not state.ended)
            self._queue.append(group)


def _alike(
    parts: Sequence[tuple[_Group[P], list[int]]],
) -> Iterator[list[tuple[_Group[P], list[int]]]]:
    """Yield prompts that are computed together: those of like length (`PADDING`)."""
    together: list[tuple[_Group[P], list[int]]] = []
    for part in sorted(parts, key=lambda part: len(part[1])):
        if together and len(part[1]) > PADDING * len(together[0][1]):
            yield together
            together = []
        together.append(part)
    if together:
        yield together
