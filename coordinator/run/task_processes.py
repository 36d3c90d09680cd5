"""The tasks of a run: their kinds, their sizes, and the hosts that pose their prompts and score their episodes.

A task of this build is pure, unless `run.kind` says otherwise. Any other is single, or served, as those of verifiers
are unless it says otherwise; a served one that opens its episodes is opened, as its environment then tells. Its code is
imported by the processes of its environment alone (coordinator/environments/), never by this one.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Final, NamedTuple

from echo2.coordinator.environments.environment import Demonstration, Environment
from echo2.coordinator.environments.limits import Limits
from echo2.coordinator.environments.messages import OpenTask
from echo2.coordinator.environments.process_pool import EnvironmentFault
from echo2.coordinator.environments.task_host import LocalTask, TaskFacts, TaskHost, facts_of
from echo2.coordinator.environments.work_folders import sweep
from echo2.coordinator.learner.messages import WarmUp
from echo2.coordinator.run import model_folder
from echo2.coordinator.settings.config import CoordinatorConfig, EnvironmentSection
from echo2.coordinator.settings.training_config import MOST_PROMPTS, RunSection
from echo2.protocol.task_kinds import PURE_KIND, SERVED_KIND, SINGLE_KIND
from echo2.runtime.errors import LocalFault
from echo2.runtime.settings import SettingsFault
from echo2.tasks import plugins, registry
from echo2.tasks.chat import ChatSettings
from echo2.tasks.task import TaskFault, prompt_of
from echo2.tasks.turn_ends import Ends

TOKENIZER: Final = "tokenizer.json"
MOST_DEMONSTRATIONS: Final = 4_096
SHOWN_TOKENS: Final = 16
"""Tokens at each end of a prompt that `format_tokens` shows."""
"""Of a task that is not in this build: a longer warm-up repeats them."""


class TaskPlace(NamedTuple):
    """A task to host. `version` None: the newest. `model`: the folder with the tokenizer. `eos`, `vocabulary`,
    `other_ends`: the model's. `chat`: how prompts are written; None: as text alone."""

    name: str
    version: int | None
    kind: str
    model: Path
    eos: int
    vocabulary: int
    other_ends: tuple[int, ...] = ()
    chat: ChatSettings | None = None

    @property
    def ends(self) -> Ends:
        """All tokens that end a turn."""
        return (self.eos, *self.other_ends)


def kind_of(settings: RunSection, task: str) -> str:
    """Return the kind of one of the tasks that the settings name. Raises `LocalFault` for a pure task that is not in
    this build."""
    known = any(name == task for name, _ in registry.list_tasks())
    if settings.kind == PURE_KIND and not known:
        model_folder.task_named(task)
    if settings.kind == SERVED_KIND or (settings.kind == "auto" and task.partition(":")[0] in plugins.LOOPBACK):
        return SERVED_KIND
    return PURE_KIND if known and settings.kind != SINGLE_KIND else SINGLE_KIND


def check_family(task: str) -> None:
    """Check that a task's family is known, without importing it. Raises `LocalFault`."""
    try:
        plugins.check_name(task)
    except plugins.PluginFault as fault:
        raise LocalFault(str(fault)) from fault


def environment_at(place: TaskPlace, section: EnvironmentSection, tell: Callable[[str], None]) -> Environment:
    """Return the environment of a single or served task, not opened. `tell`: see `Environment`."""
    limits = Limits(
        seconds=section.seconds,
        opening=section.opening,
        memory_mb=section.memory_mb,
        network=section.network,
        subprocesses=section.subprocesses,
        loopback=place.name.partition(":")[0] in plugins.LOOPBACK,
        files=section.files,
    )
    tokenizer = str((place.model / TOKENIZER).absolute())
    order = OpenTask(
        task=place.name,
        version=place.version,
        tokenizer=tokenizer,
        eos=place.eos,
        other_ends=place.other_ends,
        chat=place.chat,
    )
    return Environment(order, limits, vocabulary=place.vocabulary, kind=place.kind, workers=section.workers, tell=tell)


@asynccontextmanager
async def host_task(
    place: TaskPlace, section: EnvironmentSection, tell: Callable[[str], None] = lambda fault: None
) -> AsyncIterator[TaskHost]:
    """Yield the host of a task, open. `tell`: gets the faults of its processes. Raises `LocalFault`."""
    if place.kind == PURE_KIND:
        task = model_folder.task_named(place.name, place.version)
        yield LocalTask(task, model_folder.tokenizer(place.model, place.ends))
        return
    sweep()
    environment = environment_at(place, section, tell)
    try:
        try:
            await environment.open()
        except EnvironmentFault as fault:
            _, named, why = str(fault).rpartition(f"{plugins.PluginFault.__name__}: ")  # a whole sentence of its own
            raise LocalFault(
                why if named else f"the environment of task {place.name} cannot be opened: {why}"
            ) from fault
        yield environment
    finally:
        await environment.close()


@asynccontextmanager
async def hosted_all(
    places: Iterable[TaskPlace], section: EnvironmentSection, tell: Callable[[str], None] = lambda fault: None
) -> AsyncIterator[Sequence[TaskHost]]:
    """Yield the hosts of a run's tasks, open. `tell`: the same as in `hosted`. Raises `LocalFault`."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(host_task(place, section, tell)) for place in places]


def inspect_task(place: TaskPlace, section: EnvironmentSection, limit: int) -> tuple[TaskFacts, list[int]]:
    """Return the facts of a task and its first prompt; check that this has tokens of the model, and that the context
    has room for `limit` tokens after it. Call it outside of an event loop. Raises `LocalFault`."""
    try:
        if place.kind == PURE_KIND:
            task = model_folder.task_named(place.name, place.version)
            facts, prompt = facts_of(task), prompt_of(task, "train", 0, model_folder.tokenizer(place.model, place.ends))
        else:
            check_family(place.name)
            facts, prompt = asyncio.run(_ask_facts(place, section))
    except TaskFault as fault:
        raise LocalFault(f"task {place.name} does not pose its first prompt: {fault}") from fault
    model_folder.check_prompt(place.model, place.name, prompt, place.vocabulary, limit)
    return facts, prompt


def format_tokens(tokens: Sequence[int]) -> str:
    """Return the number of a prompt's tokens, and the first and last of them, for people."""
    ids = list(map(str, tokens))
    shown = ids if len(ids) <= 2 * SHOWN_TOKENS else [*ids[:SHOWN_TOKENS], "...", *ids[-SHOWN_TOKENS:]]
    return f"{len(ids)} tokens: {' '.join(shown)}"


def demonstrations_of(
    places: Sequence[TaskPlace], weights: Sequence[int], section: EnvironmentSection, warm_up: WarmUp
) -> list[Demonstration]:
    """Return demonstrations of tasks, in the proportion of their weights, for a warm-up. No task is hosted as a pure
    one. Call it outside of an event loop. Raises `LocalFault`."""
    number, rows = min(MOST_DEMONSTRATIONS, warm_up.steps * warm_up.batch), list[Demonstration]()
    for place, weight in zip(places, weights, strict=True):
        try:
            rows += asyncio.run(_collect_demonstrations(place, section, warm_up, ceil(number * weight / sum(weights))))
        except TaskFault as fault:
            raise LocalFault(
                f"--model tiny is made from demonstrations, and task {place.name} gives none ({fault}): name the "
                "folder of a model"
            ) from fault
    return rows


async def _collect_demonstrations(
    place: TaskPlace, section: EnvironmentSection, warm_up: WarmUp, number: int
) -> list[Demonstration]:
    async with host_task(place, section) as host:
        assert isinstance(host, Environment)
        for some in (1, number):  # the first is soon there, and tells whether the task's prompts are too long
            rows = await host.demonstrations(some, warm_up.seed, warm_up.noise, warm_up.slip)
            longest = max(len(prompt) + len(answer) for prompt, answer in rows)
            if longest > warm_up.context:
                raise LocalFault(
                    f"--model tiny has a context of {warm_up.context} tokens, and a prompt of task {place.name} has "
                    f"{longest} with its answer: name the folder of a model"
                )
        return rows


async def _ask_facts(place: TaskPlace, section: EnvironmentSection) -> tuple[TaskFacts, list[int]]:
    async with host_task(place, section) as host:
        return host.facts, await host.prompt("train", 0)


def check_sizes(config: CoordinatorConfig, task: TaskFacts, share: Fraction = Fraction(1)) -> None:
    """Check that the task has enough distinct prompts for its `share` of a batch, and for an evaluation. Raises
    `SettingsFault`."""
    parts = (("batch_groups", "train", task.train, share), ("heldout", "heldout", task.heldout, Fraction(1)))
    for key, split, size, part in parts:
        number = getattr(config.run, key)
        if ceil(number * part) > size:
            most = int(size / part)
            raise SettingsFault(
                f"run.{key} is {number}, but task {task.name} has {size} {split} prompts: set at most {most}"
            )


def without_records(config: CoordinatorConfig, tasks: Sequence[TaskFacts]) -> list[str]:
    """Return the tasks whose prompts are not chosen by their last groups although the settings ask for it: they have
    too many to come again. Raises `SettingsFault` if all have."""
    if config.run.prompts == "order":
        return []
    large = [task for task in tasks if task.train > MOST_PROMPTS]
    if len(large) < len(tasks):
        return [task.name for task in large]
    raise SettingsFault(
        f"run.prompts goes by a prompt's last groups, but task {large[0].name} has {large[0].train:,} training "
        f'prompts, too many to come again in a run (the most is {MOST_PROMPTS:,}): set run.prompts = "order"'
    )


def fit_heldout(config: CoordinatorConfig, task: TaskFacts, report: Callable[[str], None]) -> CoordinatorConfig:
    """Lower a `run.heldout` that nobody set to the task's held-out prompts."""
    if "heldout" in config.run.model_fields_set or not 0 < task.heldout < config.run.heldout:
        return config
    report(f"run.heldout is {task.heldout}: task {task.name} has no more held-out prompts")
    run = config.run.model_copy(update={"heldout": task.heldout})
    run.model_fields_set.discard("heldout")
    return config.model_copy(update={"run": run})
