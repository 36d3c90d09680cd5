"""Run the scoring loop and the training loop, each with its model processes: one verifies groups, one trains on them. A
third loop rewards the verified groups of single tasks (reward_loop.py), and one more per served task answers its turns
(coordinator/submissions/step_loop.py).

    submission ─ arrived ─> scoring ─ verdict, work ─> training ─ version, arrived ─> scoring

Each loop waits on an event that the other sets; a submission sets `arrived` too
(coordinator/submissions/request_handler.py).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio.to_thread

from echo2.coordinator.database.database import Database
from echo2.coordinator.environments.environment import Environment
from echo2.coordinator.environments.task_host import TaskHost
from echo2.coordinator.learner.messages import Hyper
from echo2.coordinator.metrics import setting_changes
from echo2.coordinator.metrics.history import History
from echo2.coordinator.publishing.publisher import Publisher
from echo2.coordinator.run import model_folder
from echo2.coordinator.run.setup import Run
from echo2.coordinator.scorer_weights.scorer_weights import ScorerWeights, VersionMoves, folder_of, remove_folders_above
from echo2.coordinator.settings.computing import computing_of
from echo2.coordinator.settings.config import CoordinatorConfig
from echo2.coordinator.settings.training_config import LearnerSection
from echo2.coordinator.submissions.group_service import GroupService
from echo2.coordinator.submissions.step_loop import StepLoop
from echo2.coordinator.training.evaluation import EvaluationSet
from echo2.coordinator.training.group_visits import GroupVisits
from echo2.coordinator.training.guarding import Guarding
from echo2.coordinator.training.model_processes import Models, name_of
from echo2.coordinator.training.publish_period import PublishPeriod
from echo2.coordinator.training.review_loop import Reviewing
from echo2.coordinator.training.reward_loop import Rewarding
from echo2.coordinator.training.run_watch import Watch
from echo2.coordinator.training.scoring_loop import Scoring
from echo2.coordinator.training.slice_pace import SlicePace
from echo2.coordinator.training.training_loop import PUBLISH_PERIOD_FACT, Training, TrainingConfig
from echo2.coordinator.verdicts.group_dispatch import GroupDispatch
from echo2.coordinator.verdicts.group_verifier import EvidenceSource, GroupVerifier
from echo2.coordinator.verification.scorer import Scorer
from echo2.engines.process.supervisor import SupervisedEngine
from echo2.protocol.task_kinds import ANSWERED_KINDS, SINGLE_KIND


class Learning:
    """The loops. `arrived`: event to be set when a submission was received. `sound`: event to be set once run.sqlite
    has passed its check; until then there is no verdict, so nothing is credited."""

    def __init__(
        self,
        run: Run,
        hosts: Sequence[TaskHost],
        group_service: GroupService,
        publisher: Publisher,
        history: History,
        models: Models,
        clock: Callable[[], float],
        end_run: Callable[[], int],
    ) -> None:
        """Compose the loops. `hosts`: hosts of the run's tasks. `clock`: seconds since the Unix epoch. `end_run`: ends
        the run; returns its last step."""
        self.arrived = group_service.arrived
        self.sound = asyncio.Event()
        self._work = work = asyncio.Event()
        watch = Watch(group_service, clock, work.set, lambda ended: self.guarding.begin_anew(ended))
        self.guarding = Guarding(
            group_service, watch, publisher, run.config.guard, {host.facts.name: host.facts.measure for host in hosts},
            clock, work.set,
        )  # fmt: skip
        self.training = Training(
            course=course_of(run), learner=models.learner, group_service=group_service, publisher=publisher,
            history=history, clock=clock, work=work, moved=self.arrived, watch=watch, guarding=self.guarding,
            period=period_of(run.config, group_service.database),
            opened=lambda step: setting_changes.settle_steps(group_service.database, step),
        )  # fmt: skip
        self.rewarding: Rewarding | None = None
        workers, steps, episodes = run.config.environment.workers, group_service.steps, group_service.episodes
        if single := [host for host in hosts if host.facts.kind == SINGLE_KIND]:
            self.rewarding = Rewarding(single, group_service, workers=workers, clock=clock, decided=work)
        self.playing = [
            StepLoop(host, steps, episodes.of(host.facts.name), workers=workers, clock=clock)
            for host in hosts
            if host.facts.kind in ANSWERED_KINDS
        ]
        dispatch = GroupDispatch(group_service, clock, self.arrived.set)
        self._scorer_folder = run.folder.scorer
        visits, *further = (
            self._visits_of(number, scorer, run, group_service, publisher, dispatch)
            for number, scorer in enumerate(models.scorers, 1)
        )
        self.scoring = Scoring(
            scorer=visits.scorer, group_service=group_service, publisher=publisher, history=history,
            evaluation_sets=evaluation_sets_of(run, hosts), visits=visits, further=further, guarding=self.guarding,
            reviewing=visits.reviewing, evaluate_every=run.config.run.evaluate_every,
            stop_after=run.config.run.stop_after, clock=clock, arrived=self.arrived, end_run=end_run,
        )  # fmt: skip

    def _visits_of(
        self,
        number: int,
        scorer: Scorer,
        run: Run,
        service: GroupService,
        publisher: Publisher,
        dispatch: GroupDispatch,
    ) -> GroupVisits:
        """Return the visits of a scorer. `number`: its number, from 1; the first one also checks verdicts again."""
        weights = _weights_of(number, scorer, run, service, publisher)
        verifier = verifier_of(run, scorer, service, publisher, weights)
        return GroupVisits(
            scorer=scorer, group_service=service, weights=weights, verifier=verifier, clock=dispatch.clock,
            dispatch=dispatch, decided=self._work, name=name_of(number), rewarding=self.rewarding,
            reviewing=Reviewing(service, verifier, scorer, dispatch.clock) if number == 1 else None,
        )  # fmt: skip

    def take(self, before: CoordinatorConfig, config: CoordinatorConfig) -> None:
        """Take live settings. `before`: those until now."""
        if config.run.publish_every != before.run.publish_every:
            self.training.period = period_of(config, self.training.group_service.database)
        if config.run.steps != before.run.steps:
            self.training.end_after(config.run.steps)
        if hyper_of(config) != hyper_of(before):
            self.training.tune(hyper_of(config))
        self.guarding.take(config.guard)
        self.scoring.evaluate_every, self.scoring.stop_after = config.run.evaluate_every, config.run.stop_after
        self.scoring.evaluation_sets = [
            replace(one, prompts=config.run.heldout) for one in self.scoring.evaluation_sets
        ]

    async def run(self) -> None:
        """Run the loops, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.training.run(), name="training")
            group.create_task(self._score(), name="scoring")
            if self.rewarding is not None:
                group.create_task(self.rewarding.run(), name="rewarding")
            for playing in self.playing:
                group.create_task(playing.run(), name="playing")

    async def _score(self) -> None:
        await anyio.to_thread.run_sync(remove_folders_above, self._scorer_folder, 1 + len(self.scoring.further))
        await self.sound.wait()
        await self.scoring.run()


def evaluation_sets_of(run: Run, hosts: Sequence[TaskHost]) -> list[EvaluationSet]:
    """Return the held-out prompts of each task."""
    spec, room = run.runspec, model_folder.room_of(run.folder.model, run.runspec.limit)
    return [
        EvaluationSet(
            host.aside() if isinstance(host, Environment) else host,
            spec.eos,
            spec.limit,
            run.config.run.heldout,
            room=room,
            other_ends=spec.other_ends,
            temperature=spec.temperature,
            pace=SlicePace(workers=run.config.environment.workers, played=host.facts.kind in ANSWERED_KINDS),
        )
        for host in hosts
    ]


def _weights_of(number: int, scorer: Scorer, run: Run, service: GroupService, publisher: Publisher) -> VersionMoves:
    """Return the weights of a scorer of this machine, or of one of Ray's, which fetches them over HTTPS."""
    if isinstance(scorer, SupervisedEngine) and run.config.scorer.ray:
        from echo2.coordinator.scorer_weights.fetched_weights import (
            FetchedWeights,  # a run without Ray loads none of it
        )

        assert run.https_pin is not None
        return FetchedWeights(
            scorer, publisher, model=run.runspec.assets, pin=run.https_pin, addresses=publisher.addresses,
            oldest=service.oldest_needed,
        )  # fmt: skip
    folder = folder_of(run.folder.scorer, number)
    return ScorerWeights(scorer, publisher, model=run.folder.model, folder=folder, oldest=service.oldest_needed)


def verifier_of(
    run: Run, scorer: Scorer, group_service: GroupService, publisher: Publisher, weights: VersionMoves
) -> GroupVerifier:
    def published(era: int) -> list[int]:
        return [one.version for one in publisher.versions if one.era == era]

    return GroupVerifier(
        scorer,
        ends=run.runspec.ends,
        staleness=group_service.terms.staleness,
        published=published,
        evidence=EvidenceSource(group_service.classes, group_service.verdicts.evidence.of, weights.shown_hash),
        temperature=group_service.terms.temperature,
        tf32=run.config.scorer.tf32,
    )


def period_of(config: CoordinatorConfig, database: Database) -> PublishPeriod:
    """Return the period between versions, for `auto` as an earlier start of the run left it."""
    setting, earlier = config.run.publish_every, database.fact(PUBLISH_PERIOD_FACT)
    fixed = None if setting == "auto" else setting
    return PublishPeriod(fixed, config.run.staleness, int(earlier) if earlier else 1)


def hyper_of(config: CoordinatorConfig) -> Hyper:
    """Return the settings of the learner's steps."""
    names = [name for name in Hyper.__struct_fields__ if hasattr(config.learner, name)]
    values = {name: getattr(config.learner, name) for name in names}
    return Hyper(**values, temperature=config.run.temperature_thousandths)


def course_of(run: Run) -> TrainingConfig:
    """Return the learner's settings, from those of the run."""
    config = run.config
    section: LearnerSection = config.learner
    computing = computing_of(section, config.scorer)
    # Whole paths: ranks on other hosts, which have working directories of their own, open them too.
    model, folder, database = (path.absolute() for path in (run.folder.model, run.folder.learner, run.folder.database))
    return TrainingConfig(
        model,
        folder,
        database,
        computing.device,
        computing.threads,
        hyper_of(config),
        config.run.steps,
        run.runspec.ends,
        section.checkpoint_share,
        run.id.hex(),
        section.hosts,
    )
