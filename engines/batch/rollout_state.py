"""One unfinished rollout: the state of a sample between two tokens. Pure; any engine may use it.

Rules
1. While the environment has tokens left to add, it gives the next token; else the policy does. A rollout takes exactly
   one token per step.
2. A sampled turn ends with a token that ends a turn (tasks/turn_ends.py). The rollout ends once `limit` tokens were
   sampled in all turns together, or when the environment ends the episode after a turn.
3. The noise of a token is keyed by its index within the rollout, tokens given by the environment counted.
4. The environment of a served rollout is elsewhere: after a sampled turn the rollout is parked until `answer`, which
   brings all tokens of the environment's turn at once. They are computed at once, or one per step.
5. An opened rollout is parked at its beginning: its first turn has no sampled tokens.
6. A served rollout goes on behind the tokens that its job has of it (`Job.past`). A turn that has ended there waits for
   its answer.
"""

from collections import deque
from collections.abc import Sequence

from echo2.engines.engine import EngineError, Job, Sample, SampledTurn
from echo2.tasks.task import Episode
from echo2.tasks.turn_ends import is_end


class RolloutState:
    """`parked`: it waits for an answer (rule 4)."""

    def __init__(self, job: Job, seed: bytes, episode: Episode | None, *, number: int = 0) -> None:
        """`episode`: None for a served rollout. `number`: number of the sample in its group."""
        self._job, self._episode, self._number, self._ends = job, episode, number, job.ends
        self.seed, self.ended, self.parked = seed, False, False
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._turns: list[int] = [0]
        self._given: deque[int] = deque()
        if job.past:
            self._take_up(job.past[number])
        elif job.opened:
            self.parked = True

    @property
    def position(self) -> int:
        """Index of the next token."""
        return len(self._tokens)

    @property
    def tokens(self) -> Sequence[int]:
        return self._tokens

    @property
    def sampled(self) -> int:
        """The number of sampled tokens."""
        return len(self._logprobs)

    @property
    def given_in_all(self) -> int:
        """The number of tokens that the environment gave, those counted that are the next ones."""
        return self.position - self.sampled + len(self._given)

    @property
    def last(self) -> int:
        return self._tokens[-1]

    @property
    def given(self) -> int | None:
        """The next token, if it is the environment's."""
        return self._given[0] if self._given else None

    @property
    def sampled_turn(self) -> SampledTurn:
        """The last turn, which was sampled."""
        length = self._turns[-1]
        return SampledTurn(
            served=self._job.served,
            sample=self._number,
            turn_number=len(self._turns) - 1,
            tokens=self._tokens[len(self._tokens) - length :],
            logprobs=self._logprobs[len(self._logprobs) - length :],
        )

    def step(self, token: int, logprob: float) -> None:
        """Take the next token: `token` if it is the policy's turn, else the environment's next one."""
        if self._given:
            self._tokens.append(self._given.popleft())
            if not self._given:
                self._turns.append(0)
            return
        self._tokens.append(token)
        self._logprobs.append(logprob)
        self._turns[-1] += 1
        if is_end(token, self._ends) or len(self._logprobs) == self._job.limit:
            self._turn_ended()

    def answer(self, turn_number: int, given: Sequence[int] | None, *, stepwise: bool = False) -> bool:
        """Take the environment's answer to a sampled turn; None: the episode is over. `stepwise`: its tokens are the
        next ones, not the last. Return whether the rollout waited for it."""
        if not self.parked or turn_number != len(self._turns) - 1:
            return False
        self.parked = False
        if given is None or len(self._logprobs) == self._job.limit:
            self.ended = True
        elif stepwise:
            self._give(given)
        else:
            self._tokens += given
            self._turns += [len(given), 0]
        return True

    def sample(self) -> Sample:
        return Sample(tokens=self._tokens, turns=self._turns, logprobs=self._logprobs)

    def _take_up(self, past: Sample) -> None:
        """Go on behind what a served rollout has (rule 6)."""
        self._tokens, self._logprobs, self._turns = list(past.tokens), list(past.logprobs), list(past.turns) or [0]
        if len(self._turns) % 2 == 0:
            self._turns.append(0)
        self.parked = self._turns[-1] > 0 or (self._job.opened and len(self._turns) == 1)

    def _turn_ended(self) -> None:
        if self._episode is None:
            self.parked = True
            return
        if len(self._logprobs) == self._job.limit:
            self.ended = True
            return
        given = self._episode.reply(self._tokens[-self._turns[-1] :])
        if given is None:
            self.ended = True
        elif not given:
            raise EngineError(f"task {self._job.task} gave an empty turn: a task must give tokens, or end the episode")
        else:
            self._give(given)

    def _give(self, given: Sequence[int]) -> None:
        self._given.extend(given)
        self._turns.append(len(given))
