"""Paints `coordinator.state.RunState`: everything that people may see, from the books, the history and the meters."""

from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.books import Books
from coordinator.publisher import Publisher
from coordinator.scoring import Scoring
from coordinator.setup import Run
from coordinator.state import RunState
from coordinator.training import Training


@dataclass
class Painter:
    """`connected`, `invite`, `relayed`: kept fresh by the daemon. `faults`: what went wrong in this process's life.
    `clock`: seconds since the Unix epoch; `started`: milliseconds."""

    run: Run
    books: Books
    training: Training
    scoring: Scoring
    publisher: Publisher
    faults: list[str]
    started: int
    clock: Callable[[], float]
    connected: set[str] = field(default_factory=set)
    invite: str = ""
    relayed: int = 0

    def paint(self) -> RunState:
        """The picture of this moment."""
        config, at, latest = self.run.config.run, self.books.progress, self.publisher.latest
        now, history = int(self.clock() * 1000), self.training.history
        counted, publish_every = self.books.counts(now), self.run.config.learner.publish_every
        versions = [history.versions[number] for number in sorted(history.versions)]
        return RunState(
            run=self.run.id.hex(),
            name=config.name,
            model=config.model,
            parameters=self.training.parameters,
            started=self.started,
            now=now,
            phase=self._phase(counted.undecided),
            era=at.era if at else 0,
            version=latest.version if latest else 0,
            step=at.step if at else 0,
            steps_wanted=config.steps,
            staleness_limit=config.staleness,
            group_size=config.group_size,
            batch_groups=config.batch_groups,
            idle=self.training.meter.idle,
            buffered=self.books.buffered(),
            undecided=counted.undecided,
            running=counted.running,
            received=counted.received,
            accepted=counted.accepted,
            too_old=counted.too_old,
            refused=counted.refused,
            unscored=counted.unscored,
            trouble=self.training.watch.view(),
            expired=counted.expired,
            staleness=list(self.books.buffer.histogram),
            steps=[history.steps[number] for number in sorted(history.steps)],
            evaluations=[history.evaluations[number] for number in sorted(history.evaluations)],
            versions=versions,
            capacity=self.books.capacity(self.training.meter.step_seconds, publish_every, now),
            broadcast=self.books.broadcasts.view(self.run.peer_id),
            diff_bytes=sum(row.diff_bytes or 0 for row in versions),
            full_bytes=sum(row.full_bytes for row in versions if row.diff_bytes is not None),
            nodes=self.books.roster.rows(self.connected),
            invite=self.invite,
            faults=list(self.faults),
            relayed_bytes=self.relayed,
        )

    def _phase(self, undecided: int) -> str:
        at = self.books.progress
        if at is None:
            return "starting"
        if not at.finished:
            return "learning" if self.training.watch.pause is None else "paused"
        return "finished" if undecided == 0 and self.scoring.settled() else "finishing"
