"""A model that trains in milliseconds, batches for it, and a main process that publishes the learner's exports."""

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from transformers import PreTrainedModel

from echo2.coordinator.database.database import Database
from echo2.coordinator.learner.batches.batch_groups import TrainBatch, TrainGroup, TrainSample
from echo2.coordinator.learner.eras import next_era
from echo2.coordinator.learner.messages import Batch, Export, Hyper, Open, Republish, Stepped, WarmUp
from echo2.coordinator.learner.session import Session
from echo2.coordinator.learner.warmup import warm_up
from echo2.engines.process.messages import float_bytes
from echo2.p2p.wire_types import encode
from echo2.protocol.leases import Lease, Rollout, Segment, Submission
from echo2.tasks.task import Score

SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def make_model(folder: Path, **shape: int) -> Path:
    """Write a model folder after two supervised steps. `shape`: what differs from `SHAPE`."""
    warm_up(
        WarmUp(folder=str(folder), task="reverse", task_version=1, steps=2, noise=0.5, batch=8, shape=SHAPE | shape)
    )
    return folder


def lack_memory(policy: PreTrainedModel, most: int, where: str) -> None:
    """Let passes with gradient of more than `most` tokens run out of memory in the last layer. `where`: "forward" or
    "backward"."""

    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("injected")

    def watch(module: object, inputs: tuple[torch.Tensor]) -> None:
        (hidden,) = inputs
        if not hidden.requires_grad or hidden.shape[:-1].numel() <= most:
            return
        if where == "forward":
            refuse()
        hidden.register_hook(refuse)

    policy.get_submodule("model.layers")[-1].mlp.register_forward_pre_hook(watch)  # type: ignore[union-attr, index]


def sample(chance: random.Random, *, reward: float | None = None, turns: Sequence[int] = (5,)) -> TrainSample:
    """Return random tokens with random behaviour log-probabilities."""
    return TrainSample(
        tokens=np.array([chance.randrange(2, 12) for _ in range(sum(turns))], np.int32),
        turns=list(turns),
        behaviour=np.array([chance.uniform(-4.0, -2.0) for _ in range(sum(turns[::2]))], np.float32),
        reward=chance.random() if reward is None else reward,
    )


def group(chance: random.Random, name: str, version: int = 0, *, samples: int = 4, **of: object) -> TrainGroup:
    samples_drawn = [sample(chance, **of) for _ in range(samples)]  # type: ignore[arg-type]
    prompt = [chance.randrange(2, 12) for _ in range(chance.randrange(3, 6))]
    prompt_ids = np.array(prompt, np.int32)
    return TrainGroup(id=name.encode().ljust(16, b"."), version=version, prompt=prompt_ids, samples=samples_drawn)


def batch(step: int, *, groups: int = 3, age: int = 1) -> TrainBatch:
    """Return the batch of a step, the same one at every call."""
    chance = random.Random(step)
    groups_drawn = [group(chance, f"{step}-{place}", max(0, step - age)) for place in range(groups)]
    return TrainBatch(step=step, groups=groups_drawn)


def on_policy(policy: PreTrainedModel, train_batch: TrainBatch, temperature: int = 1000) -> TrainBatch:
    """Return the batch with `policy` as its behaviour: its log-probabilities are those of `policy` at a temperature, in
    thousandths."""
    groups = []
    for part in train_batch.groups:
        samples = []
        for one in part.samples:
            logits = policy(torch.tensor([[*part.prompt, *one.tokens]])).logits[0, len(part.prompt) - 1 : -1]
            logs = torch.log_softmax(logits * 1000 / temperature, -1).gather(
                1, torch.tensor(one.tokens).long()[:, None]
            )[:, 0]
            samples.append(msgspec.structs.replace(one, behaviour=logs.detach().numpy()))
        groups.append(msgspec.structs.replace(part, samples=samples))
    return msgspec.structs.replace(train_batch, groups=groups)


GROUPS: dict[bytes, TrainGroup] = {}
"""The groups that `read` returns, in place of run.sqlite."""


def ask(train_batch: TrainBatch, *, published: int | None = None) -> Batch:
    """Return the main process's request for a batch, whose groups `read` returns from then on."""
    GROUPS.update((group.id, group) for group in train_batch.groups)
    return Batch(step=train_batch.step, groups=[group.id for group in train_batch.groups], published=published)


def read(leases: Sequence[bytes]) -> list[TrainGroup]:
    return [GROUPS[lease] for lease in leases]


def store(path: Path, groups: Sequence[TrainGroup]) -> Path:
    """Write a run.sqlite with these groups, accepted and in the buffer, as far as a learner reads it."""
    with Database.open(path) as database, database.transaction():
        for place, one in enumerate(groups):
            submission, scores, behaviour = _submitted(one)
            database.do(
                "INSERT INTO leases (id, node, nonce, position, era, version, sent, expires, state, document, sealed)"
                " VALUES (?, x'01', ?, ?, 1, ?, 0, 0, 'decided', ?, x'')",
                (one.id, one.id, place, one.version, encode(_lease(one))),
            )
            database.do(
                "INSERT INTO submissions (lease, hash, at, payload, scores) VALUES (?, x'', 0, ?, ?)",
                (one.id, submission, scores),
            )
            database.do(
                "INSERT INTO buffer (lease, era, version, at, varied, behaviour) VALUES (?, 1, ?, 0, 1, ?)",
                (one.id, one.version, behaviour),
            )
    return path


def _lease(one: TrainGroup) -> Lease:
    return Lease(
        id=one.id, node=bytes(32), nonce=one.id, task="reverse", task_version=1, index=0, prompt=one.prompt.tolist(),
        seeds=[bytes(16)] * len(one.samples), limit=1 << 14, era=1, version=one.version, root=bytes(32), sent=0,
        expires=0,
    )  # fmt: skip


def _submitted(one: TrainGroup) -> tuple[bytes, bytes, bytes]:
    segments = [Segment(version=one.version, root=bytes(32), first=0)]
    rollouts = [
        Rollout(tokens=s.tokens.tolist(), turns=s.turns, logprobs=s.behaviour.tobytes(), segments=segments)
        for s in one.samples
    ]
    submission = Submission(lease=one.id, era=1, version=one.version, root=bytes(32), rollouts=rollouts)
    scores = [Score(reward=s.reward, success=s.success) for s in one.samples]
    behaviour = [float_bytes(s.behaviour.tolist()) for s in one.samples]
    return encode(submission), msgspec.msgpack.encode(scores), msgspec.msgpack.encode(behaviour)


class Main:
    """A stand-in for the main process: it opens sessions and publishes exports. `published`: all exports, in order.
    `reports`: sentences for the operator. `era`: of the last published version. `now`: seconds. `republish`: the order
    to go back to a version. `tells`: whether each batch has the settings. `checkpoint_share`, `threads`: of `Open`.
    `store`: folder in which each snapshot stays; None: it is the learner's file, which goes with the next version."""

    def __init__(
        self, folder: Path, model: Path, hyper: Hyper | None = None, *, keep: int = 1, staleness: int = 1000
    ) -> None:
        self.folder, self.model, self.hyper, self.keep = folder, model, hyper or Hyper(warmup_steps=2), keep
        self.published: list[Export] = []
        self.reports: list[str] = []
        self.era, self.now, self.staleness = 0, 0.0, staleness
        self.session_era = self.least_era = 0
        self.republish: Republish | None = None
        self.checkpoint_share, self.threads, self.run = 1.0, 1, ""
        self.store: Path | None = None
        self.tells = False

    def order(self) -> Open:
        last = self.published[-1] if self.published else None
        return Open(
            model=str(self.model),
            folder=str(self.folder),
            database="",
            device="cpu",
            hyper=self.hyper,
            published=last.snapshot if last else "",
            published_version=last.version if last else 0,
            published_root=last.root if last else b"",
            era=self.era,
            next_era=next_era(self.era, self.now),
            staleness=self.staleness,
            least_era=self.least_era,
            keep=self.keep,
            republish=self.republish,
            checkpoint_share=self.checkpoint_share,
            threads=self.threads,
            run=self.run,
        )

    def open(self, *, publish: bool = True) -> Session:
        session = Session(self.order(), self.reports.append, read)
        self.session_era, pending = session.answer_open().era, session.answer_open().export
        if pending is not None and publish:
            self.publish(pending)
        return session

    def publish(self, export: Export) -> None:
        assert not self.published or export.version > self.published[-1].version
        if self.store is not None:
            stored = self.store / Path(export.snapshot).name
            stored.hardlink_to(export.snapshot)
            export = msgspec.structs.replace(export, snapshot=str(stored))
        self.published.append(export)
        self.era = self.session_era

    def step(self, session: Session, number: int, *, publish: bool = True, export: bool = True) -> Stepped:
        asked = ask(batch(number))
        stepped = session.step(msgspec.structs.replace(asked, export=export, hyper=self.hyper if self.tells else None))
        if stepped.export is not None and publish:
            self.publish(stepped.export)
        return stepped
