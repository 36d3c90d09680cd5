"""Attacks by selection: each token that is handed in is right, and what is handed in is chosen.

1. A prompt that a node leaves out is leased again, to another key; so the learner sees the prompt all the same. A bias
   that is left is counted: prompts left out that have no accepted group within `SETTLED` seconds more.
2. A key that returns less gets fewer leases, so choosing leases pays no more than doing them.
3. Within the margin of the exact class a token has more than one right answer. The choices that this leaves are counted
   on the run's own model.
4. A node may compute as it likes: a cheap draft that is checked and corrected by the exact weights is the exact group.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Final

import anyio
import msgspec
import numpy as np

from benchmarks.attacks.altered_weights import altered, to_three_bits
from benchmarks.attacks.attack import AttackFinding
from benchmarks.attacks.attack_client import AttackRefused
from benchmarks.attacks.engine_place import EnginePlace
from benchmarks.attacks.flood_keys import Key
from benchmarks.attacks.floods import Crowd, learned
from benchmarks.attacks.groups import nothing, submission_of
from benchmarks.attacks.place import AttackPlace
from benchmarks.plays import direct
from echo2.coordinator.verdicts.stored_receipts import ACCEPTED_CODES
from echo2.coordinator.verification.verification import EXACT_THRESHOLDS
from echo2.engines.engine import Job, Sample
from echo2.protocol.leases import Lease

WORK: Final = 6.0
"""Seconds in which prompts are left out."""
SETTLED: Final = 30.0
"""Seconds within which a prompt that was left out has to be learned all the same: the lease's life, and others."""
LEARNED: Final = 0.8
"""Least share of the prompts left out that is learned all the same."""
GAIN: Final = 1.2
"""Most groups of a key that chooses its leases, by those of an honest node of the same speed."""
NAMED: Final = {"seeded-choice", "not-generated"}
"""The refusals that name a rollout which is not that of its seed."""
VARIANTS: Final = 1.0
"""Most other right answers in 1,000 tokens."""
GROUPS: Final = 3
"""Groups whose near-ties are counted, and as many of a cheap engine."""


@dataclass
class Selective(Crowd):
    """Keys that work as fast as honest nodes, and hand in what they choose to. `seconds`: per group."""

    keys: int = 4
    lines: int = 4
    parties: int = 4
    seconds: float = 1.0
    left_out: set[int] = field(default_factory=set, init=False)
    seen: int = field(default=0, init=False)

    async def run(self, world: AttackPlace) -> None:
        """Choose for `WORK` seconds, then wait until what was left out had to be leased again."""
        with anyio.move_on_after(WORK):
            await super().run(world)
        assert isinstance(world, EnginePlace)
        with anyio.move_on_after(SETTLED):
            while self.share(world) < 1.0:  # noqa: ASYNC110 (another process decides)
                await anyio.sleep(0.5)

    async def use(self, world: AttackPlace, key: Key, lease: Lease) -> None:
        assert isinstance(world, EnginePlace)
        self.seen += 1
        if await self.wanted(world, lease):
            await anyio.sleep(self.seconds * world.random.uniform(0.85, 1.15))
            await key.submit(await world.group(lease))
        else:
            self.left_out.add(lease.index)
            await self.leave(key, lease)

    @abstractmethod
    async def wanted(self, place: EnginePlace, lease: Lease) -> bool:
        """Tell whether a lease is worked on and handed in."""

    async def leave(self, key: Key, lease: Lease) -> None:
        """Let a lease expire."""

    def share(self, place: EnginePlace) -> float:
        """Return the share of the prompts left out that was learned."""
        return learned(place, lambda index: index in self.left_out, 0.0) if self.left_out else 1.0

    def finding(self, place: EnginePlace) -> AttackFinding:
        """Count the prompts that were left out, and those of them that were learned all the same. Where none was left
        out, nothing was tried."""
        share = self.share(place)
        note = f"{len(self.left_out)} prompts left out, {share:.0%} learned all the same"
        return AttackFinding(tried=self.seen, prevented=bool(self.left_out) and share >= LEARNED, note=note)


@dataclass
class DropLow(Selective):
    """Keys that generate, look at the rewards, and drop each group below the mean of those before."""

    rewards: list[float] = field(default_factory=list, init=False)

    async def wanted(self, place: EnginePlace, lease: Lease) -> bool:
        samples = await place.samples(lease)
        self.rewards.append(float(np.mean([place.reward(lease, one) for one in samples])))
        return self.rewards[-1] >= float(np.mean(self.rewards))


@dataclass
class Censor(Selective):
    """Keys that drop every third prompt, so that the learner never sees it."""

    async def wanted(self, place: EnginePlace, lease: Lease) -> bool:
        return lease.index % 3 != 0


@dataclass
class CensorBack(Censor):
    """Keys that give every third prompt back at once, so that the learner never sees it."""

    async def leave(self, key: Key, lease: Lease) -> None:
        await key.submit(nothing(lease))


@dataclass
class Farm(Selective):
    """Keys that work on the shorter prompts alone and give the other leases back at once."""

    lengths: list[int] = field(default_factory=list, init=False)

    def share(self, place: EnginePlace) -> float:
        """Wait for nothing: leases are given back, and the key's own gain counts."""
        return 1.0

    async def wanted(self, place: EnginePlace, lease: Lease) -> bool:
        self.lengths.append(len(lease.prompt))
        return len(lease.prompt) <= float(np.median(self.lengths))

    async def leave(self, key: Key, lease: Lease) -> None:
        await key.submit(nothing(lease))

    def finding(self, place: EnginePlace) -> AttackFinding:
        """Compare the accepted groups of a key with those of an honest node in the same time."""
        own = {key.public for key in place.attackers}
        since = min((sent for key in place.attackers for sent, _ in key.prompts), default=0)
        rows = place.rows(
            "SELECT v.node, count(*) FROM verdicts v JOIN submissions s ON s.lease = v.lease "
            "WHERE v.verdict = 'accepted' AND s.at >= ? GROUP BY v.node",
            since,
        )
        counts = {bytes(node): count for node, count in rows}
        honest = [count for node, count in counts.items() if node not in own]
        farmed = sum(counts.get(key, 0) for key in own) / max(1, len(own))
        gain = farmed / max(1.0, float(np.mean(honest or [0])))
        return AttackFinding(tried=self.seen, prevented=gain <= GAIN, note=f"{gain:.2f} of an honest node's groups")


@dataclass
class NearTies:
    """A key that hands in the best of several rollouts, and counts the choices that the margin leaves to it."""

    tokens: int = 0
    variants: int = 0
    codes: list[str] = field(default_factory=list)

    async def run(self, place: EnginePlace) -> None:
        """Hand in the best of four draws under some keys, and count the near-ties of their leases."""
        for number in range(GROUPS):
            client = await place.client(f"near ties {number}")
            lease = await client.lease()
            samples = await place.samples(lease)
            best = await anyio.to_thread.run_sync(_best_of, place, lease, samples)
            try:
                self.codes.append(await client.verdict(submission_of(lease, best)))
            except AttackRefused as refused:
                self.codes.append(refused.code)
            for row, sample in enumerate(samples):
                self.tokens += len(sample.tokens)
                self.variants += await anyio.to_thread.run_sync(_variants, place, lease, row, sample)

    def finding(self, place: EnginePlace) -> AttackFinding:
        """State the variants per 1,000 tokens, and the verdict on the best of four."""
        rate = 1000 * self.variants / max(1, self.tokens)
        note = f"best of 4: {', '.join(self.codes)}; {self.variants} other right answers in {self.tokens} tokens"
        refused = bool(self.codes) and set(self.codes) <= NAMED
        prevented = refused and rate <= VARIANTS * max(1.0, 3000 / max(1, self.tokens))
        return AttackFinding(tried=GROUPS, prevented=prevented, named=1 if prevented else None, note=note)


@dataclass
class CheckedDraft:
    """A node with a cheap engine that checks each of its tokens by the exact weights, and corrects the wrong ones."""

    drafted: int = 0
    corrected: int = 0
    codes: list[str] = field(default_factory=list)

    async def run(self, place: EnginePlace) -> None:
        """Hand in some groups that were drafted, checked and corrected."""
        client = await place.client("drafts")
        for _ in range(GROUPS):
            lease = await client.lease()
            samples = await anyio.to_thread.run_sync(self._checked, place, lease)
            self.codes.append(await client.verdict(submission_of(lease, samples)))

    def finding(self, place: EnginePlace) -> AttackFinding:
        """State how many rollouts the check replaced; each group has to be accepted."""
        accepted = [code for code in self.codes if code in ACCEPTED_CODES]
        note = f"allowed: {len(accepted)} groups accepted, {self.corrected} of {self.drafted} drafts corrected"
        return AttackFinding(tried=GROUPS, prevented=bool(accepted) and accepted == self.codes, note=note)

    def _checked(self, place: EnginePlace, lease: Lease) -> list[Sample]:
        job = place.job(lease)
        place.load(lease)
        altered(place.engine, to_three_bits)
        drafts = direct.generate(place.engine, job)
        place.spoil()
        place.load(lease)
        exact = direct.generate(place.engine, job)
        kept: list[Sample] = []
        for draft, right, score in zip(drafts, exact, place.engine.score(job, drafts), strict=True):
            good = max(score.margins, default=0.0) == 0.0
            self.drafted, self.corrected = self.drafted + 1, self.corrected + (not good)
            logprobs = [min(0.0, float(value)) for value in score.logprobs]
            kept.append(msgspec.structs.replace(draft, logprobs=logprobs) if good else right)
        return kept


def _variants(place: EnginePlace, lease: Lease, number: int, sample: Sample) -> int:
    """Count the other tokens, over all places of a sample, that the exact check would take."""
    job, count = place.job(lease), 0
    most = 1 + max(*sample.tokens, *lease.prompt)
    place.load(lease)
    for at, chosen in enumerate(sample.tokens):
        others = [token for token in range(most) if token != chosen]
        guesses = [_guess(sample, at, token) for token in others]
        scores = place.engine.score(_of(job, number, len(guesses)), guesses)
        count += sum(one.margins[at] <= EXACT_THRESHOLDS.margin for one in scores)
    return count


def _guess(sample: Sample, at: int, token: int) -> Sample:
    return Sample(tokens=[*sample.tokens[:at], token], turns=[at + 1], logprobs=[0.0] * (at + 1))


def _of(job: Job, number: int, times: int) -> Job:
    return msgspec.structs.replace(job, seeds=[job.seeds[number]] * times)


def _best_of(place: EnginePlace, lease: Lease, samples: list[Sample]) -> list[Sample]:
    """Return for each seed the rollout of highest reward among its own and three by other seeds; where all are alike,
    one of the others, so that the attack is seen."""
    job = place.job(lease)
    place.load(lease)
    draws = [direct.generate(place.engine, _by_other_seeds(job, row)) for row in (1, 2, 3)]
    return [
        max([*others, own], key=lambda one: place.reward(lease, one))
        for own, *others in zip(samples, *draws, strict=True)
    ]


def _by_other_seeds(job: Job, row: int) -> Job:
    return msgspec.structs.replace(job, seeds=[bytes([row]) * 8 + seed[8:] for seed in job.seeds])
