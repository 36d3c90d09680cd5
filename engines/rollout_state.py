"""One unfinished rollout: the state of a sample between two tokens. Pure; any engine may use it.

Rules
1. While the environment has tokens left to add, it gives the next token; else the policy does. A rollout takes exactly
   one token per step.
2. A sampled turn ends with eos. The rollout ends once `limit` tokens were sampled in all turns together, or when the
   environment ends the episode after a turn.
3. The noise of a token is keyed by its index within the rollout, tokens given by the environment counted.
"""

from collections import deque

from engines.engine import EngineError, Job, Sample
from tasks.task import Episode


class RolloutState:
    def __init__(self, job: Job, seed: bytes, episode: Episode) -> None:
        self._job, self._episode = job, episode
        self.seed, self.ended = seed, False
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._turns: list[int] = [0]
        self._given: deque[int] = deque()

    @property
    def position(self) -> int:
        """Index of the next token."""
        return len(self._tokens)

    @property
    def last(self) -> int:
        return self._tokens[-1]

    @property
    def given(self) -> int | None:
        """The next token, if it is the environment's."""
        return self._given[0] if self._given else None

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
        if len(self._logprobs) == self._job.limit:
            self.ended = True
        elif token == self._job.eos:
            self._turn_ended()

    def sample(self) -> Sample:
        """Return the finished rollout."""
        return Sample(tokens=self._tokens, turns=self._turns, logprobs=self._logprobs)

    def _turn_ended(self) -> None:
        given = self._episode.reply(self._tokens[-self._turns[-1] :])
        if given is None:
            self.ended = True
        elif not given:
            raise EngineError(f"task {self._job.task} gave an empty turn: a task must give tokens, or end the episode")
        else:
            self._given.extend(given)
            self._turns.append(len(given))
