"""A group under way in an engine, however its rollouts are computed. Pure."""

from echo2.engines.batch.rollout_state import RolloutState
from echo2.engines.engine import Job, Sample


class Group:
    """`ticket`: its name. `states`: states of its rollouts. `outcome`: None until it has ended."""

    def __init__(self, ticket: int, job: Job, states: list[RolloutState]) -> None:
        self.ticket, self.job, self.states = ticket, job, states
        self.outcome: list[Sample] | Exception | None = None

    @property
    def length(self) -> int:
        """The most tokens that a row of it may have, as far as is known."""
        given = max((one.given_in_all for one in self.states), default=0)
        return len(self.job.prompt) + self.job.limit + given

    def end_if_over(self) -> None:
        """End the group once all its rollouts have ended."""
        if self.outcome is None and all(state.ended for state in self.states):
            self.outcome = [state.sample() for state in self.states]
