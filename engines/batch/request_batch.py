"""Generate many groups by a program that takes whole requests and batches them itself (`CompletionService`).

Rules
1. Each turn of a rollout is one request: the tokens so far, the rollout's seed, and the number of its next token. What
   the environment replies becomes part of the next request's tokens. A turn of a served group waits for its answer
   without a request.
2. All requests of a group are submitted at once: the program decides which of them it computes together. The rows that
   run are at most `limit`, so that the node knows for how many more groups there is room.
3. Each answer is checked against its request before it is used: computed under the loaded version, as many
   log-probabilities as tokens, tokens of the vocabulary, log-probabilities that are finite and not above 0, an end
   where the request ends. A group with one answer that fails ends with a sentence; the others go on.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from echo2.engines.batch.open_group import Group
from echo2.engines.batch.rollout_state import RolloutState
from echo2.engines.engine import EngineError, EngineRows, Finished, Job, SampledTurn
from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.tasks.turn_ends import Ends, fault_of_turn

LOGPROB_ROUNDING = 1e-4
"""Rounding by which a log-probability may lie above 0; it is then 0."""


class ProgramLost(SystemExit):
    """The program cannot go on: the engine's process ends, and the next one begins anew. The message says why."""


class TokenRequest(NamedTuple):
    """One turn to generate. `tokens`: what stands before it. `seed`, `first`: the noise of its tokens, whose numbers
    within the rollout begin at `first`. `most`: most tokens. `ends`: each ends it. `greedy`: without noise.
    `temperature`: `Job.applied_temperature`."""

    tokens: list[int]
    seed: bytes
    first: int
    most: int
    ends: Ends
    greedy: bool
    temperature: int = PLAIN_TEMPERATURE


class Completion(NamedTuple):
    """The tokens of a request, the log-probability of each, and content root of the weights that they were computed
    with."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    root: bytes


class CompletionService(Protocol):
    """A program that works off requests together."""

    def submit(self, id: int, request: TokenRequest) -> None:
        """Queue a request. Raises EngineError for one that it cannot compute."""

    def withdraw(self, ids: Sequence[int]) -> None:
        """Drop requests that have no answer yet."""

    def advance(self) -> list[tuple[int, Completion | EngineError]]:
        """Compute some more, or wait a moment; return the requests that ended. Raises where none can go on."""

    def limit(self, longest: int) -> int:
        """Return how many rows of at most `longest` tokens it computes at once."""


class _Asked(NamedTuple):
    """A request under way: whose rollout it goes on with."""

    ticket: int
    state: RolloutState
    request: TokenRequest


class RequestBatch:
    """`begin`, `cancel`, `step` and `rows` of engines.engine.Engine over a service. `rollouts`: returns the states of a
    job's rollouts at their beginning. `vocabulary`: number of tokens. `root`: root of the weights
    that are loaded; it may be changed while no group is under way."""

    def __init__(
        self, service: CompletionService, rollouts: Callable[[Job], list[RolloutState]], vocabulary: int, root: bytes
    ) -> None:
        self._service, self._rollouts, self._vocabulary, self.root = service, rollouts, vocabulary, root
        self._groups: dict[int, Group] = {}
        self._asked: dict[int, _Asked] = {}
        self._next_id = 0
        self._turns: list[SampledTurn] = []
        """Those that were not told yet."""

    @property
    def rows(self) -> EngineRows:
        """See `Engine.rows`."""
        longest = max((group.length for group in self._groups.values()), default=1)
        limit = self._service.limit(longest)
        running = min(len(self._asked), limit)
        parked = sum(state.parked for group in self._groups.values() for state in group.states)
        return EngineRows(running=running, waiting=len(self._asked) - running, limit=limit, parked=parked)

    @property
    def idle(self) -> bool:
        """See `Engine.idle`."""
        return not self._asked and all(group.outcome is None for group in self._groups.values())

    def begin(self, ticket: int, job: Job) -> None:
        """See `Engine.begin`."""
        if ticket in self._groups:
            raise EngineError(f"a group named {ticket} is under way")
        group = Group(ticket, job, self._rollouts(job))
        self._groups[ticket] = group
        try:
            for state in group.states:
                self._next(ticket, group, state)
        except BaseException:
            self.cancel(ticket)
            raise
        group.end_if_over()

    def turns(self) -> list[SampledTurn]:
        """See `Engine.turns`."""
        turns, self._turns = self._turns, []
        return turns

    def answer(self, served: bytes, sample: int, turn_number: int, given: Sequence[int] | None) -> None:
        """See `Engine.answer`."""
        for ticket, group in self._groups.items():
            if group.outcome is None and group.job.served == served and 0 <= sample < len(group.states):
                state = group.states[sample]
                if state.answer(turn_number, given):
                    self._next(ticket, group, state)

    def cancel(self, ticket: int) -> None:
        """See `Engine.cancel`."""
        self._groups.pop(ticket, None)
        self._withdraw(ticket)

    def step(self) -> list[Finished]:
        """See `Engine.step`."""
        try:
            for id, outcome in self._service.advance() if self._asked else ():
                self._take(id, outcome)
        except BaseException:
            self.clear()
            raise
        ended = [(ticket, group.outcome) for ticket, group in self._groups.items() if group.outcome is not None]
        for ticket, _ in ended:
            self.cancel(ticket)
        return [Finished(ticket, outcome) for ticket, outcome in ended]

    def clear(self) -> None:
        """Drop all groups."""
        self._groups.clear()
        self._withdraw()

    def _submit(self, ticket: int, group: Group, state: RolloutState) -> None:
        job, so_far = group.job, state.sample()
        request = TokenRequest(
            tokens=[*job.prompt, *so_far.tokens],
            seed=state.seed,
            first=state.position,
            most=job.limit - len(so_far.logprobs),
            ends=job.ends,
            greedy=job.greedy,
            temperature=job.applied_temperature,
        )
        self._next_id += 1
        self._service.submit(self._next_id, request)
        self._asked[self._next_id] = _Asked(ticket, state, request)

    def _take(self, id: int, outcome: Completion | EngineError) -> None:
        asked = self._asked.pop(id, None)
        group = self._groups.get(asked.ticket) if asked is not None else None
        if asked is None or group is None or group.outcome is not None:
            return
        try:
            if isinstance(outcome, EngineError):
                raise outcome
            check(outcome, asked.request, self._vocabulary, self.root)
            self._go_on(asked, group, outcome)
        except Exception as error:  # the answer's, or the task's code
            group.outcome = error
            self._withdraw(asked.ticket)

    def _go_on(self, asked: _Asked, group: Group, completion: Completion) -> None:
        state = asked.state
        for token, logprob in zip(completion.tokens, completion.logprobs, strict=True):
            state.step(int(token), min(0.0, float(logprob)))
        while state.given is not None:
            state.step(0, 0.0)
        self._next(asked.ticket, group, state)

    def _next(self, ticket: int, group: Group, state: RolloutState) -> None:
        """Go on with a rollout between two turns."""
        if state.parked:
            self._turns.append(state.sampled_turn)
        elif state.ended:
            group.end_if_over()
        else:
            self._submit(ticket, group, state)

    def _withdraw(self, ticket: int | None = None) -> None:
        """Drop the requests of a group; None: all."""
        ids = [id for id, asked in self._asked.items() if ticket in (None, asked.ticket)]
        for id in ids:
            del self._asked[id]
        if ids:
            self._service.withdraw(ids)


def check(completion: Completion, request: TokenRequest, vocabulary: int, root: bytes) -> None:
    """Check an answer against its request (rule 3). Raises EngineError."""
    tokens, logprobs = completion.tokens, completion.logprobs
    if completion.root != root:
        raise EngineError(
            f"the answer was computed with the weights {completion.root.hex()[:16] or 'of no name'}, not with "
            f"{root.hex()[:16]}: the change to the new version did not take effect"
        )
    if len(logprobs) != len(tokens):
        raise EngineError(f"the answer has {len(logprobs)} log-probabilities for {len(tokens)} tokens")
    if not all(0 <= token < vocabulary for token in tokens):
        raise EngineError(f"the answer has a token outside the model's vocabulary of {vocabulary}")
    if not all(math.isfinite(value) for value in logprobs):
        raise EngineError("the weights give log-probabilities that are not finite")
    if any(value > LOGPROB_ROUNDING for value in logprobs):
        raise EngineError("the answer has a log-probability above 0")
    if not 0 < len(tokens) <= request.most:
        raise EngineError(f"the answer has {len(tokens)} tokens, where 1 to {request.most} were requested")
    if fault_of_turn(np.asarray(tokens), request.ends, at_limit=len(tokens) == request.most):
        named = " or ".join(map(str, request.ends))
        raise EngineError(f"the answer does not end at the token {named} that ends a turn, nor at its limit")
