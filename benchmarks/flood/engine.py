"""Stand-ins for the model processes, on the event loop's clock: they sleep for the time that computing would take.

There is one right completion of a seed under a version: a hash of the seed, of which the version changes a few tokens,
as a learner's step does. So a stand-in scorer distinguishes honest from fabricated groups token by token, as the real
one does, and takes as long for both.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
import numpy as np

from benchmarks.attacks import groups
from benchmarks.attacks.groups import group_of, tokens_from
from benchmarks.load.stub_learner import StubLearner
from echo2.coordinator.learner.messages import Batch, Open, Opened, Stepped
from echo2.engines.engine import Job, Loaded, Sample, SampleScore
from echo2.engines.process.messages import PackedSample
from echo2.engines.process.process import Play
from echo2.protocol.leases import Lease, Submission
from echo2.weights.logged_weights import open_weights
from echo2.weights.snapshot import Snapshot

LOGPROB: Final = groups.LOGPROB
WRONG: Final = 3.0
"""The margin of a wrong token, in nats."""
CHANGED: Final = 4
"""Number of tokens in 256 that a version changes: two versions differ in 3 %."""
CHANGE: Final = 0.05
"""Seconds that a change of version takes."""


def right(root: bytes, seed: bytes, tokens: int) -> list[int]:
    """Return the right completion of `seed` under the version with content root `root`: `tokens` tokens, none of which
    ends it."""
    common, own = tokens_from(seed, tokens), tokens_from(root + seed, tokens)
    changed = hashlib.shake_128(b"changed" + root + seed).digest(tokens)
    return [new if byte < CHANGED else old for old, new, byte in zip(common, own, changed, strict=True)]


def honest(lease: Lease) -> Submission:
    """Return the group that a lease asks for."""
    return group_of(lease, [right(lease.root, seed, lease.limit) for seed in lease.seeds])


def scored(root: bytes, seeds: list[bytes], tokens: list[int]) -> SampleScore:
    """Score one sample against the seed of `seeds` that fits best: a call for some samples of a group may name the
    seeds of all."""
    submitted = np.array(tokens)
    wrong = min((np.array(right(root, seed, len(tokens))) != submitted for seed in seeds), key=lambda one: one.sum())
    values = np.full(len(tokens), LOGPROB, np.float32)
    return SampleScore(logprobs=values, margins=np.where(wrong, WRONG, 0.0).astype(np.float32))


def _root(weights: Path) -> bytes:
    return open_weights(weights).root if weights.is_dir() else Snapshot(weights).root


class StandInScorer:
    """A `coordinator.training.model_processes.Scorer` that sleeps instead of computing. `per_token`: seconds. `tokens`:
    scored so far."""

    def __init__(self, per_token: float) -> None:
        self._per_token, self._device = per_token, anyio.Lock()
        self._loaded: Loaded | None = None
        self.tokens = 0

    @property
    def loaded(self) -> Loaded | None:
        return self._loaded

    async def load(self, model: Path, weights: Path) -> Loaded:
        return await self._at(_root(weights), [], [])

    async def step_by(self, payload: Path, root: bytes, keep: int) -> Loaded:
        loaded = self._holds()
        return await self._at(root, [loaded.root, *loaded.behind][:keep], [])

    async def step_to(self, root: bytes) -> Loaded:
        loaded = self._holds()
        roots = [*reversed(loaded.behind), loaded.root, *loaded.ahead]
        place = roots.index(root)
        return await self._at(root, roots[:place][::-1], roots[place + 1 :])

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]:
        async with self._device:
            tokens = len(job.prompt) + sum(sum(one.turns) for one in samples)
            self.tokens += tokens
            await anyio.sleep(self._per_token * tokens)
            root = self._holds().root
            return [scored(root, job.seeds, one.sample().tokens) for one in samples]

    async def generate_all(self, jobs: Sequence[Job]) -> list[list[Sample]]:
        return [[Sample(tokens=[job.eos], turns=[1], logprobs=[LOGPROB]) for _ in job.seeds] for job in jobs]

    async def generate_served(self, job: Job, play: Play) -> list[Sample]:
        return (await self.generate_all([job]))[0]

    async def renew(self) -> None:
        self._loaded = None

    def _holds(self) -> Loaded:
        assert self._loaded is not None, "step_by, step_to and score come after load"
        return self._loaded

    async def _at(self, root: bytes, behind: list[bytes], ahead: list[bytes]) -> Loaded:
        await anyio.sleep(CHANGE)
        self._loaded = Loaded(root=root, parameters=1, nbytes=1, behind=behind, ahead=ahead)
        return self._loaded


class StandInLearner:
    """A `coordinator.training.model_processes.Learner` that sleeps for a step, and makes real versions. `steps`: when
    each step ended, seconds. `drawn`: lease ids."""

    def __init__(self, seconds: float) -> None:
        self._stub, self._seconds = StubLearner(), seconds
        self.steps: list[float] = []
        self.drawn: list[bytes] = []

    async def open(self, order: Open) -> Opened:
        return self._stub.open(order)

    async def step(self, batch: Batch) -> Stepped:
        await anyio.sleep(self._seconds)
        self.steps.append(anyio.current_time())
        self.drawn += batch.groups
        return self._stub.step(batch)

    async def renew(self) -> None:
        """Do nothing: there is no process to restart."""
