"""From a job to the states of its rollouts, for any engine: check, tokenizer, episode."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from echo2.engines.batch.input_check import check_given, check_job
from echo2.engines.batch.rollout_state import RolloutState
from echo2.engines.engine import EngineError, Job
from echo2.tasks import registry
from echo2.tasks.task import Score, Tokenizer
from echo2.tasks.tokenizer import load
from echo2.tasks.turn_ends import Ends


class OneTurn:
    """The episode of a task whose code is at the operator: one sampled turn after the given prompt, and no reply. It is
    never scored: scores come from the operator."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.prompt = prompt

    def reply(self, sampled: Sequence[int]) -> None:
        """End the episode after its first turn."""
        return

    def score(self) -> Score:
        raise NotImplementedError("the operator scores the episodes of this task")


class JobRollouts:
    """`folder`: folder of the model, whose tokenizer.json writes the task's tokens."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        self._folder, self._vocabulary = folder, vocabulary
        self._texts: dict[Ends, Tokenizer] = {}

    def check(self, job: Job) -> None:
        """Check that a job can be generated. Raises EngineError."""
        check_job(job, self._vocabulary)

    def check_given(self, given: Sequence[int] | None) -> None:
        """Check the environment's tokens of a turn. Raises EngineError."""
        if given is not None:
            check_given(given, self._vocabulary)

    def begin_rollouts(self, job: Job) -> list[RolloutState]:
        """Return the states of a job's rollouts at their beginning. Raises EngineError, tasks.registry.UnknownTask."""
        if job.served:
            return [RolloutState(job, seed, None, number=number) for number, seed in enumerate(job.seeds)]
        if job.single_turn:
            return [
                RolloutState(job, seed, OneTurn(job.prompt), number=number) for number, seed in enumerate(job.seeds)
            ]
        task, split = registry.get(job.task, job.task_version), _split(job)
        return [
            RolloutState(job, seed, task.episode(split, job.index, self._text(job.ends)), number=number)
            for number, seed in enumerate(job.seeds)
        ]

    def _text(self, ends: Ends) -> Tokenizer:
        if ends not in self._texts:
            self._texts[ends] = load(self._folder / "tokenizer.json", *ends)
        return self._texts[ends]


def _split(job: Job) -> Literal["train", "heldout"]:
    if job.split == "train":
        return "train"
    if job.split == "heldout":
        return "heldout"
    raise EngineError(f"no such split: {job.split!r}; use train or heldout")
