"""The command `task try --model`: what a model answers to the first prompts of a task, and the scores.

The task runs in a process of its own with the limits of a run that has the usual settings, as one whose turns are
answered one by one: so any task can be tried, of one turn or of several. The seeds follow from the task, the prompt and
the number of the answer, so that the same call shows the same answers.
"""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple

from echo2.coordinator.calibration.own_engine import loaded_engine
from echo2.coordinator.environments.played_group import PlayedGroup, play
from echo2.coordinator.environments.task_host import TaskHost
from echo2.coordinator.run import chat_settings, model_folder
from echo2.coordinator.run.task_processes import TaskPlace, check_family, format_tokens, host_task
from echo2.coordinator.settings.config import EnvironmentSection
from echo2.coordinator.settings.training_config import RunSection
from echo2.engines.engine import Job, Sample
from echo2.engines.process.process import EngineProcess
from echo2.protocol.task_kinds import SERVED_KIND
from echo2.runtime.errors import LocalFault
from echo2.tasks.task import Score, Split, TaskFault, Tokenizer
from echo2.tasks.turn_ends import Ends

SHOWN_CHARACTERS: Final = 2000
"""Characters of a prompt or a turn that are shown."""
AT_ONCE: Final = 8
"""Prompts that are answered together."""
USUAL_LIMIT: Final = 128
"""Sampled tokens of an answer, where the model's context leaves as many."""


class ModelTrial(NamedTuple):
    """Terms of a task's trial. `answers`: answers to each prompt. `limit`: most sampled tokens of one; None:
    `USUAL_LIMIT`, or half of a smaller context. `greedy`: the one most likely answer instead. `thinking`: thinking as
    `run.thinking`."""

    split: Split = "train"
    prompts: int = 3
    answers: int = 4
    limit: int | None = None
    greedy: bool = False
    template: Literal["plain", "chat"] = "plain"
    thinking: bool | None = None


class Tried(NamedTuple):
    """The answers to one prompt. `number`: its index. `tokens`: tokens of the prompt. `cut`: by sample, whether the
    limit cut it."""

    number: int
    prompt: str
    tokens: list[int]
    samples: list[list[str]]
    scores: list[Score | None]
    cut: list[bool]
    faults: list[str]


def try_model(name: str, model: str, weights: Path | None, trial: ModelTrial, tell: Callable[[str], None]) -> None:
    """Tell prompts of a task as the model gets them, its answers with their scores, and a summary. `model`: `smollm2`,
    or the path of a folder. `weights`: a snapshot of another version. Raises `LocalFault`."""

    async def told(folder: Path, file: Path) -> None:
        async for part in _try_engine(name, folder, file, trial):
            tell(part)

    check_family(name)
    with _folder_of(model, weights, trial, tell) as (folder, file):
        asyncio.run(told(folder, file))


@contextmanager
def _folder_of(
    model: str, weights: Path | None, trial: ModelTrial, tell: Callable[[str], None]
) -> Iterator[tuple[Path, Path]]:
    """Yield the folder of a model, and its weights in one file. `tell`: gets what the check of a model remarks."""
    with tempfile.TemporaryDirectory(prefix="echo2-try-") as name:
        folder, copied = Path(model), Path(name) / "model"
        if model == model_folder.SMOLLM2 and not folder.is_dir():
            model_folder.make_smollm2(folder := copied)
        elif model == model_folder.TINY_MODEL and not folder.is_dir():
            raise LocalFault("the model tiny is made by init, for its run: name the folder `model` of that run")
        elif weights is not None and (folder / model_folder.MODEL_CONFIG).is_file():
            pass  # a folder whose own weights are not looked at
        else:
            model_folder.check_importable(folder, (model_folder.SMOLLM2,))
            _limit(folder, trial)
            for remark in model_folder.check_model(folder):
                tell(remark)
            if not (folder / model_folder.WEIGHTS).is_file():  # in several files
                model_folder.import_folder(folder, copied)
                folder = copied
        weights = weights or folder / model_folder.WEIGHTS
        model_folder.check_weights(weights)
        yield folder, weights


async def _try_engine(name: str, folder: Path, weights: Path, trial: ModelTrial) -> AsyncIterator[str]:
    known, limit = model_folder.facts(folder), _limit(folder, trial)
    chat = chat_settings.settings_of(folder, RunSection(template=trial.template, thinking=trial.thinking), SERVED_KIND)
    place = TaskPlace(name, None, SERVED_KIND, folder, known.eos, known.vocabulary, known.other_ends, chat)
    async with host_task(place, EnvironmentSection()) as host, loaded_engine(folder, weights, name="trial") as engine:
        facts = host.facts
        yield f"{name} version {facts.version}: {facts.train} prompts in train, {facts.heldout} in heldout"
        for remark in facts.remarks:
            yield remark
        trying = _Trying(host, engine, folder, place.ends, limit, trial)
        indices, tried = range(min(trial.prompts, facts.size(trial.split))), list[Tried]()
        for first in indices[::AT_ONCE]:
            some = await asyncio.gather(*(trying.try_prompt(index) for index in indices[first : first + AT_ONCE]))
            for one in some:
                yield "\n".join(_format_trial(trial.split, one, limit))
            tried += some
        if not any(score for one in tried for score in one.scores):
            raise LocalFault(f"no answer of the model to {len(tried)} prompts has a score: the reasons stand above")
        yield f"\n{_summary(tried, limit)}"


class _Trying:
    """A task, a model, and how the one is tried with the other."""

    def __init__(
        self, host: TaskHost, engine: EngineProcess, folder: Path, ends: Ends, limit: int, trial: ModelTrial
    ) -> None:
        self._host, self._engine, self._ends = host, engine, ends
        self._limit, self._trial = limit, trial
        self._room = model_folder.room_of(folder, limit)
        self._text: Tokenizer = model_folder.tokenizer(folder, ends)

    async def try_prompt(self, index: int) -> Tried:
        """Return the answers to a prompt."""
        facts, trial = self._host.facts, self._trial
        try:
            prompt = await self._host.prompt(trial.split, index)
        except TaskFault as fault:
            return Tried(index, "", [], [], [], [], [f"cannot be posed: {fault}"])
        said = self._text.decode(prompt)
        if self._room is not None and len(prompt) > self._room:
            context = self._room + self._limit
            why = (
                f"has {len(prompt)} tokens: with an answer of {self._limit} more than the model's context of {context}"
            )
            return Tried(index, said, prompt, [], [], [], [why])
        number = 1 if trial.greedy else trial.answers
        seeds = [_seed(facts.name, trial.split, index, sample) for sample in range(number)]
        job = Job(
            prompt=prompt, seeds=seeds, limit=self._limit, eos=self._ends[0], other_ends=self._ends[1:],
            task=facts.name, task_version=facts.version, split=trial.split, index=index, greedy=trial.greedy,
        )  # fmt: skip
        return self._answers_of(index, said, prompt, await play(self._engine, self._host, job, trial.split, self._room))

    def _answers_of(self, index: int, said: str, prompt: list[int], played: PlayedGroup) -> Tried:
        samples = [list(self._parts(sample)) for sample in played.samples]
        cut = [_is_cut(sample, self._ends, self._limit) for sample in played.samples]
        return Tried(index, said, prompt, samples, played.scores, cut, played.faults)

    def _parts(self, sample: Sample) -> Iterator[str]:
        for start, end in pairwise(accumulate(sample.turns, initial=0)):
            yield self._text.decode(sample.tokens[start:end])


def _limit(folder: Path, trial: ModelTrial) -> int:
    context = model_folder.room_of(folder, 0)
    limit = trial.limit or (USUAL_LIMIT if context is None else min(USUAL_LIMIT, max(1, context // 2)))
    if context is not None and limit >= context:
        raise LocalFault(f"the model's context has {context} tokens, and an answer may have {limit}: lower --limit")
    return limit


def _seed(name: str, split: Split, index: int, sample: int) -> bytes:
    return hashlib.blake2b(f"try/{name}/{split}/{index}/{sample}".encode(), digest_size=16).digest()


def _is_cut(sample: Sample, ends: Ends, limit: int) -> bool:
    """Tell whether the limit ended a rollout: its last turn is a sampled one without an end."""
    return sum(sample.turns[0::2]) >= limit and len(sample.turns) % 2 == 1 and sample.tokens[-1] not in ends


def _format_trial(split: Split, tried: Tried, limit: int) -> Iterator[str]:
    yield f"\n{split} {tried.number}"
    if tried.prompt:
        yield "\n".join(f"  | {row}" for row in tried.prompt[:SHOWN_CHARACTERS].split("\n"))
        yield f"  = {format_tokens(tried.tokens)}"
    for parts, score, cut in zip(tried.samples, tried.scores, tried.cut, strict=True):
        said = ", then ".join(f"{part[:SHOWN_CHARACTERS]!r}" for part in parts) + (
            f" (cut after {limit} tokens)" if cut else ""
        )
        if score is None:
            yield f"  the model {said} fails"
        else:
            yield f"  the model {said}: reward {score.reward:g}{', success' if score.success else ''}"
    for fault in tried.faults:
        yield f"  {fault}"


def _summary(tried: list[Tried], limit: int) -> str:
    scores = [score for one in tried for score in one.scores]
    scored = [score for score in scores if score is not None]
    groups = [{score.reward for score in one.scores if score is not None} for one in tried]
    cut, failed = sum(sum(one.cut) for one in tried), len(scores) - len(scored)
    text = f"{len(scores)} answers: mean reward {sum(score.reward for score in scored) / len(scored):.3g}, "
    text += f"{sum(score.success for score in scored)} solved, {cut} cut after {limit} tokens"
    text += f", {failed} failed" if failed else ""
    if len(scores) > len(tried):
        text += f"; unequal rewards at {sum(len(group) > 1 for group in groups)} of {len(tried)} prompts"
    return text
