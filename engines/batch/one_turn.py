"""The episode of a task whose code is at the operator: one sampled turn after the given prompt, and no reply. Pure."""

from collections.abc import Sequence

from echo2.tasks.task import Score


class OneTurn:
    """`tasks.task.Episode` without a task. It is never scored: scores come from the operator."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.prompt = prompt

    def reply(self, sampled: Sequence[int]) -> None:
        """End the episode after its first turn."""
        return

    def score(self) -> Score:
        raise NotImplementedError("the operator scores the episodes of this task")
