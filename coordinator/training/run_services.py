"""Make the services of a coordinator by its run: keys of documents, prompts, groups and the terms of leases."""

from collections.abc import Mapping, Sequence

from echo2.coordinator.environments.task_host import TaskHost
from echo2.coordinator.leases.lease_lifetime import first_lifetime, longest_lifetime
from echo2.coordinator.leases.lease_terms import LeaseTerms
from echo2.coordinator.leases.paid_work import PaidWork
from echo2.coordinator.leases.rollout_context import Entropy, RolloutContext, Sealing
from echo2.coordinator.prompts.mixed_prompts import MixedPrompts, seed_of
from echo2.coordinator.prompts.prompt_feed import PromptFeed
from echo2.coordinator.prompts.prompts import PromptSource, TaskPrompts
from echo2.coordinator.publishing.signing_keys import Signing
from echo2.coordinator.run import model_folder
from echo2.coordinator.run.setup import Run
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.submissions.run_records import RunRecords
from echo2.coordinator.verdicts.doubted_days import ToCome
from echo2.p2p.identity import public_bytes
from echo2.protocol.task_kinds import PURE_KIND
from echo2.tasks.task import Task, Tokenizer


def signing_of(run: Run) -> Signing:
    """Return the publisher's keys under the newest Root."""
    roles = ("policy", "channel")
    former = frozenset(key for root in run.chain[:-1] for role in roles for key in root.roles[role].keys)
    own = {public_bytes(run.keys.policy), public_bytes(run.keys.channel)}
    roots = {root.serial: sealed for root, sealed in zip(run.chain, run.roots, strict=True)}
    return Signing(run.id, run.keys.policy, run.keys.channel, run.root.serial, former - own, roots)


def pure_tasks_of(run: Run) -> list[Task]:
    """Return the code of the run's pure tasks. Raises `LocalFault`."""
    return [model_folder.task_named(task.name, task.version) for task in run.runspec.tasks if task.kind == PURE_KIND]


def feeds_of(run: Run, hosts: Sequence[TaskHost]) -> dict[str, PromptFeed]:
    """Return the prompts of the tasks that run in environments, by the task's name."""
    room, workers = model_folder.room_of(run.folder.model, run.runspec.limit), run.config.environment.workers
    return {
        task.name: PromptFeed(host, seed=seed_of_task(run, task.name), room=room, workers=workers)
        for task, host in zip(run.runspec.tasks, hosts, strict=True)
        if task.kind != PURE_KIND
    }


def prompts_of(run: Run, feeds: Mapping[str, PromptFeed], text: Tokenizer) -> PromptSource:
    """Return the sequence of a run's prompts. `feeds`: feeds of the tasks that are not pure."""
    room = model_folder.room_of(run.folder.model, run.runspec.limit)
    pure = {task.name: TaskPrompts(task, text, seed_of_task(run, task.name), room) for task in pure_tasks_of(run)}
    by_name: dict[str, PromptSource] = {**feeds, **pure}
    sources = [by_name[task.name] for task in run.runspec.tasks]
    if len(sources) == 1:
        return sources[0]
    return MixedPrompts(sources, [task.weight for task in run.runspec.tasks], _seed(run))


def seed_of_task(run: Run, name: str) -> int:
    """Return the seed of the order of a task's prompts."""
    return _seed(run) if len(run.runspec.tasks) == 1 else seed_of(_seed(run), name)


def _seed(run: Run) -> int:
    return int.from_bytes(run.id[:8], "big")


def group_service_of(
    run: Run,
    records: RunRecords,
    prompts: PromptSource,
    text: Tokenizer,
    sealing: Sealing,
    entropy: Entropy,
    *,
    paid_work: PaidWork | None,
    to_come: ToCome,
) -> GroupService:
    """Return the group service of a run, over its records. `paid_work`, `to_come`: see `GroupService`."""
    tasks = {(task.name, task.version): task for task in pure_tasks_of(run)}
    room = model_folder.room_of(run.folder.model, run.runspec.limit)
    context = RolloutContext(run.runspec, terms_of(run), prompts, tasks, text, room=room)
    return GroupService(
        records, context, sealing, entropy, run.config.environment, paid_work=paid_work, to_come=to_come
    )


def terms_of(run: Run) -> LeaseTerms:
    """Return the terms that all leases share, from the signed RunSpec and the settings."""
    spec, config = run.runspec, run.config
    least, most = config.leases.minimum_seconds, config.leases.maximum_seconds
    return LeaseTerms(
        staleness=spec.staleness,
        batch_groups=config.run.batch_groups,
        group_size=spec.group_size,
        limit=spec.limit,
        engines=list(spec.engines),
        per_node=config.leases.per_node,
        first_ms=first_lifetime(spec.limit),
        least_ms=int(least * 1000),
        most_ms=longest_lifetime(spec.limit, spec.group_size) if most is None else int(most * 1000),
        refill=config.run.refill,
        canaries=config.leases.canaries,
        audits=config.leases.audits,
        draw=config.run.draw,
        prompts=config.run.prompts,
        newcomers=config.leases.newcomers,
        temperature=spec.temperature,
    )
