"""A model small enough to train in milliseconds, batches for it, and a main that publishes what the learner exports."""

import random
from collections.abc import Sequence
from pathlib import Path

from coordinator.learner.calls import Batch, Export, Hyper, Open, Stepped, TrainGroup, TrainSample, WarmUp
from coordinator.learner.session import Session
from coordinator.learner.warmup import warm_up

SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def make_model(folder: Path) -> Path:
    """A model folder after two supervised steps."""
    warm_up(WarmUp(folder=str(folder), task="reverse", task_version=1, steps=2, noise=0.5, batch=8, shape=SHAPE))
    return folder


def sample(chance: random.Random, *, reward: float | None = None, turns: Sequence[int] = (5,)) -> TrainSample:
    """Random tokens with random behaviour log-probabilities."""
    return TrainSample(
        tokens=[chance.randrange(2, 12) for _ in range(sum(turns))],
        turns=list(turns),
        behaviour=[chance.uniform(-4.0, -2.0) for _ in range(sum(turns[::2]))],
        reward=chance.random() if reward is None else reward,
    )


def group(chance: random.Random, name: str, version: int = 0, *, samples: int = 4, **of: object) -> TrainGroup:
    made = [sample(chance, **of) for _ in range(samples)]  # type: ignore[arg-type]
    prompt = [chance.randrange(2, 12) for _ in range(chance.randrange(3, 6))]
    return TrainGroup(id=name.encode(), version=version, prompt=prompt, samples=made)


def batch(step: int, *, groups: int = 3, age: int = 1, published: int | None = None) -> Batch:
    """The batch of a step: the same one whenever it is asked for."""
    chance = random.Random(step)
    made = [group(chance, f"{step}-{place}", max(0, step - age)) for place in range(groups)]
    return Batch(step=step, groups=made, published=published)


class Main:
    """Opens sessions as the daemon does, and publishes exports. `published`: every version with its export, in order.
    `reports`: what the learner wanted the operator to know."""

    def __init__(self, folder: Path, model: Path, hyper: Hyper | None = None, *, keep: int = 1) -> None:
        self.folder, self.model, self.hyper, self.keep = folder, model, hyper or Hyper(warmup_steps=2), keep
        self.published: list[Export] = []
        self.reports: list[str] = []
        self.era = 0

    def order(self) -> Open:
        last = self.published[-1] if self.published else None
        return Open(
            model=str(self.model),
            folder=str(self.folder),
            device="cpu",
            hyper=self.hyper,
            published=last.snapshot if last else "",
            published_version=last.version if last else 0,
            published_root=last.root if last else b"",
            era=self.era,
            keep=self.keep,
        )

    def open(self, *, publish: bool = True) -> Session:
        session = Session(self.order(), self.reports.append)
        pending = session.opened().export
        if pending is not None and publish:
            self.publish(pending)
        return session

    def publish(self, export: Export) -> None:
        assert not self.published or export.version > self.published[-1].version
        self.published.append(export)

    def step(self, session: Session, number: int, *, publish: bool = True) -> Stepped:
        stepped = session.step(batch(number))
        if stepped.export is not None and publish:
            self.publish(stepped.export)
        return stepped
