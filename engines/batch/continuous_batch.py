"""Generate many groups together, for any engine that can compute one token for many rows (`Backend`).

Rules
1. A row is one rollout; it has a place from its first token to its last. Places are dense: when a row ends, the row of
   the last place moves into its place. A free place goes to the next row that waits, in the order of the groups; a
   group need not have places for all its rows at once.
2. The prompt of a group is computed once, when its first row gets a place (engines.batch.row_starts). Prompts of like
   length are computed together, a long one in parts.
3. How many rows run is the row limit's (engines.batch.row_limit), within the memory at hand.
4. A fault of one group (logits that are not finite, its task) is that group's outcome; the others go on.
5. After an out-of-memory all rows are dropped, the limit halves, and the rows go on behind the tokens that they have. A
   group fails where not even one row fits; its sentence says which limit of a run would fit.
6. With `Backend.overlap` the tokens of a step are read after the next step was begun. A row that ended is then computed
   once more in vain, and the device never waits for this process.
7. A row of a served group leaves its place at the end of a sampled turn (`Backend.park`), and what is computed of it is
   kept. Once it is answered it waits for a place like a new row, and goes on behind the answer. A short answer goes
   through the steps of all rows, a token per step; a long one is computed like a prompt.
8. Where rows wait for a place that memory would give them but for what is kept of parked rows, that of the row which
   has been parked longest is dropped, and the next. A row of which nothing is kept is computed anew like a prompt.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from echo2.engines.batch.open_group import Group
from echo2.engines.batch.rollout_state import RolloutState
from echo2.engines.batch.row_limit import Memory, RowLimit
from echo2.engines.batch.row_starts import Row, Start, StartQueue
from echo2.engines.engine import EngineError, EngineRows, Finished, Job, LogitsNotFinite, NoMemory, SampledTurn
from echo2.engines.temperature import PLAIN_TEMPERATURE

PADDING: Final = 1.25
"""Prompts computed together have lengths within this factor: the shorter ones are padded."""

MOST_STEPWISE_TOKENS: Final = 16
"""Most tokens of an answer that goes through the steps (rule 7). On a CPU a pass of its own costs as much as some 20
tokens of a full batch (docs/log/, 2026-11-23)."""

P = TypeVar("P")


class OutOfMemory(Exception):
    """The device has no memory left for this call; what it held of rows and prompts may be incomplete."""


class NextToken(NamedTuple):
    """A row that is taken further. `token`: fed to the model; None: the one that the step before chose in this place.
    `position`: position of that token in the whole sequence, prompt counted. `seed`, `number`, `greedy`, `temperature`:
    the choice of the next token: its seed, its number within the rollout, `Job.applied_temperature`."""

    token: int | None
    position: int
    seed: bytes
    number: int
    greedy: bool
    temperature: int = PLAIN_TEMPERATURE


class FirstToken(NamedTuple, Generic[P]):
    """A row that gets the next place: its next token is chosen by the prompt's logits. `number`: number of that token
    within the rollout."""

    prompt: P
    seed: bytes
    greedy: bool
    number: int = 0
    temperature: int = PLAIN_TEMPERATURE


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

    def resume(self, prompt: P) -> None:
        """Give the next place to a row that goes on behind a prompt from `park`, in the next `decode`."""

    def park(self, place: int, length: int) -> P:
        """Return the first `length` tokens of a row as a prompt, before its place is vacated: it can be extended, and
        the row be given a place again."""

    def vacate(self, place: int, last: int) -> None:
        """Free a place: the row of `last`, the last place, moves into it. The two may be the same."""

    def clean(self, place: int) -> None:
        """Remove values that are not finite from a place, before it is vacated."""

    def reset(self) -> None:
        """Drop all rows and prompts, and free their memory."""

    def memory(self) -> Memory:
        """Say what rows cost and may cost."""


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
        self._groups: dict[int, Group] = {}
        self._queue: StartQueue[P] = StartQueue()
        self._places: list[Row] = []
        self._parked: dict[tuple[int, int], P | None] = {}
        """(ticket, sample) of a row that waits for its answer -> what is computed of it; None: nothing."""
        self._turns: list[SampledTurn] = []
        """Those that were not told yet."""
        self._unread: tuple[list[Row], Callable[[], Chosen]] | None = None
        self._fitting: int | None = None

    @property
    def idle(self) -> bool:
        """Whether no step would change anything: every row that is left waits for an answer."""
        ended = any(group.outcome is not None for group in self._groups.values())
        return not (ended or self._places or self._queue.waiting or self._unread)

    @property
    def rows(self) -> EngineRows:
        """See `Engine.rows`."""
        return EngineRows(
            running=len(self._places), waiting=self._queue.waiting, limit=self._most(), parked=len(self._parked)
        )

    def begin(self, ticket: int, job: Job) -> None:
        """See `Engine.begin`."""
        if ticket in self._groups:
            raise EngineError(f"a group named {ticket} is under way")
        group = Group(ticket, job, self._rollouts(job))
        self._groups[ticket] = group
        self._queue.begin_group(group)
        for number, state in enumerate(group.states):
            if state.parked:
                self._park(group, number, None)
        group.end_if_over()
        self._fitting = None

    def cancel(self, ticket: int) -> None:
        """See `Engine.cancel`."""
        group = self._groups.get(ticket)
        if group is not None:
            self._end(group, EngineError("the group was cancelled"))
            del self._groups[ticket]
            self._vacate()

    def turns(self) -> list[SampledTurn]:
        """See `Engine.turns`."""
        turns, self._turns = self._turns, []
        return turns

    def answer(self, served: bytes, sample: int, turn_number: int, given: Sequence[int] | None) -> None:
        """See `Engine.answer`."""
        group = next((one for one in self._groups.values() if served and one.job.served == served), None)
        if group is None or group.outcome is not None or not 0 <= sample < len(group.states):
            return
        state = group.states[sample]
        prompt = self._parked.get((group.ticket, sample))
        stepwise = prompt is not None and len(given or ()) <= MOST_STEPWISE_TOKENS
        if not state.answer(turn_number, given, stepwise=stepwise):
            return
        del self._parked[group.ticket, sample]
        if state.ended:
            self._free(prompt)
            group.end_if_over()
        elif prompt is None:
            self._queue.put(Start(group, [sample], [*group.job.prompt, *state.tokens]))
        elif stepwise:
            self._queue.put(Start(group, [sample], [], prompt))
        else:  # all but the last sampled token, and the answer, is computed
            computed = state.position - len(given or ()) - 1
            self._queue.put(Start(group, [sample], state.tokens[computed:], prompt))
        self._fitting = None

    def step(self) -> list[Finished]:
        """See `Engine.step`."""
        try:
            self._advance()
        except OutOfMemory as error:
            self._begin_again(error)
        except Exception:
            self._drop_all()
            self._groups.clear()
            self._parked.clear()
            raise
        ended = [group for group in self._groups.values() if group.outcome is not None]
        for group in ended:
            del self._groups[group.ticket]
        return [Finished(group.ticket, group.outcome) for group in ended if group.outcome is not None]

    def _advance(self) -> None:
        began, before = self._clock(), len(self._places)
        self._drop_parked()
        prompts = self._compute_prompts()
        unread, self._unread = self._unread, self._launch()
        if unread is not None:
            self._take(*unread)
        if not self._backend.overlap and self._unread is not None:
            unread, self._unread = self._unread, None
            self._take(*unread)
        self._vacate()
        if before and not prompts:
            self._limit.on_step_duration(before, self._clock() - began)

    # --- beginning rows

    def _most(self) -> int:
        """Return how many rows may run now (rule 3). Parked rows leave that much less memory."""
        kept = sum(prompt is not None for prompt in self._parked.values())
        return max(1, min(self._limit.rows, self._fit() - kept))

    def _fit(self) -> int:
        """Return how many rows fit into memory where nothing is kept of parked ones."""
        if self._fitting is None:
            longest = max((group.length for group in self._groups.values()), default=1)
            self._fitting = self._backend.memory().fitting(longest)
        return self._fitting

    def _drop_parked(self) -> None:
        """Drop what is kept of parked rows, as far as rows wait for its memory (rule 8)."""
        kept = [key for key, prompt in self._parked.items() if prompt is not None]
        while kept and self._queue.waiting and self._most() <= len(self._places) < min(self._limit.rows, self._fit()):
            key = kept.pop(0)
            self._free(self._parked[key])
            self._parked[key] = None

    def _compute_prompts(self) -> int:
        """Compute what rows go on from that get places in this step, or a part of it; return how many tokens."""
        tokens, fresh = 0, list[Start[P]]()
        for start in self._queue.parts(self._most() - len(self._places)):
            part = start.part
            tokens += len(part)
            if start.prompt is None:
                fresh.append(start)
            else:
                self._backend.extend(start.prompt, part)
                start.note_progress(start.prompt, len(part))
        for together in _alike(fresh):
            prompts = self._backend.prefill([start.part for start in together])
            for start, prompt in zip(together, prompts, strict=True):
                start.note_progress(prompt, len(start.part))
        return tokens

    def _launch(self) -> tuple[list[Row], Callable[[], Chosen]] | None:
        """Begin the next token of all rows, and that of rows that get a place."""
        first, new = list[FirstToken[P]](), list[Row]()
        for start, row in self._queue.take(self._most() - len(self._places)):
            assert start.prompt is not None
            if start.resumes:
                self._backend.resume(start.prompt)
                self._places.append(row)
            else:
                job = row.group.job
                first.append(FirstToken(start.prompt, row.state.seed, job.greedy, row.begun, job.applied_temperature))
                new.append(row)
        rows = [self._next(row) for row in self._places]
        if not rows and not first:
            return None
        read = self._backend.decode(rows, first)
        self._places += new
        for row in self._places:
            row.begun += 1
        for start in self._queue.pop_placed():
            self._free(start.prompt)
        return list(self._places), read

    def _next(self, row: Row) -> NextToken:
        """Return what feeds a row, which has one token more begun than taken where a step was not read yet."""
        state, job = row.state, row.group.job
        last = state.last if row.begun == state.position else state.given
        position = len(job.prompt) + row.begun - 1
        return NextToken(last, position, state.seed, row.begun, job.greedy, job.applied_temperature)

    # --- ending rows

    def _take(self, rows: Sequence[Row], read: Callable[[], Chosen]) -> None:
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
            row.group.end_if_over()

    def _vacate(self) -> None:
        """Free the places of rows that are gone (rule 1), and keep what is computed of those that are parked."""
        for place in reversed(range(len(self._places))):
            row = self._places[place]
            if row.gone:
                if row.group.outcome is None and row.state.parked:
                    length = len(row.group.job.prompt) + row.state.position - 1
                    self._park(row.group, row.number, self._backend.park(place, length))
                row.left, last = True, len(self._places) - 1
                self._backend.vacate(place, last)
                self._places[place] = self._places[last]
                self._places.pop()

    def _park(self, group: Group, number: int, prompt: P | None) -> None:
        self._parked[group.ticket, number] = prompt
        self._turns.append(group.states[number].sampled_turn)

    def _clean(self, group: Group) -> None:
        for place, row in enumerate(self._places):
            if row.group is group:
                self._backend.clean(place)

    def _end(self, group: Group, error: Exception) -> None:
        """End a group without samples; its rows are vacated later."""
        group.outcome = error
        for start in self._queue.remove(group):
            self._free(start.prompt)
        for key in [key for key in self._parked if key[0] == group.ticket]:
            self._free(self._parked.pop(key))
        self._turns = [sampled_turn for sampled_turn in self._turns if sampled_turn.served != group.job.served]

    def _free(self, prompt: P | None) -> None:
        if prompt is not None:
            self._backend.release(prompt)

    # --- out of memory

    def _drop_all(self) -> None:
        self._places, self._unread, self._fitting = [], None, None
        self._parked = dict.fromkeys(self._parked)
        self._queue.clear()
        self._backend.reset()

    def _begin_again(self, error: OutOfMemory) -> None:
        """Begin all rows again (rule 5)."""
        rows = max(len(self._places), min(self._most(), self.rows.running + self.rows.waiting))
        self._drop_all()
        self._limit.out_of_memory(rows)
        open_groups = [group for group in self._groups.values() if group.outcome is None]
        if rows <= 1 and open_groups:
            group = open_groups.pop(0)
            self._end(group, NoMemory(f"{_no_room(group, self._backend.memory().longest())} ({error})"))
        for group in open_groups:
            self._queue.begin_group(group)


def _no_room(group: Group, longest: int) -> str:
    """Say that a row of a group does not fit, and which run does. `longest`: most tokens of a row that fits."""
    why = "out of memory: no rollout of this length fits: free memory, or use a smaller model"
    if longest >= group.length:  # another program had the memory
        return why
    limit = max(0, group.job.limit - (group.length - longest))
    return f"{why}; as it is, this device can take a run with a limit of at most {limit} tokens for such a prompt"


def _alike(starts: Sequence[Start[P]]) -> Iterator[list[Start[P]]]:
    """Yield the starts that are computed together: those of like length (`PADDING`)."""
    together: list[Start[P]] = []
    for start in sorted(starts, key=lambda start: len(start.part)):
        if together and len(start.part) > PADDING * len(together[0].part):
            yield together
            together = []
        together.append(start)
    if together:
        yield together
