"""A run whose nodes compute in bfloat16: a Calibration, a scorer told what to say, and groups decided by both."""

import asyncio
from pathlib import Path

import msgspec
import numpy as np

from echo2.coordinator.verdicts.group_verifier import EvidenceSource, GroupVerifier
from echo2.coordinator.verification.calibration import Calibration
from echo2.coordinator.verification.evidence import BOUND, Tables
from echo2.coordinator.verification.token_evidence import BINS, MOST_MARGIN, ONE, STATISTICS
from echo2.engines.engine import Job, SampleScore
from echo2.engines.process.messages import PackedSample
from echo2.engines.registry import rounding_of
from echo2.p2p.identity import peer_id, public_bytes
from echo2.p2p.wire_types import encode
from echo2.protocol.authority import RoleKeys
from echo2.protocol.leases import Lease, Receipt
from echo2.runtime.units import DAY
from tests.support.group_world import ALICE, KEYS, RUN, SPEC, World, group, name, opened, sealed_by_role

CLASS = "transformers/bfloat16/cpu"
LEDGER = RoleKeys(keys=[public_bytes(KEYS["ledger"])], threshold=1)
TABLES = {name: [ONE * 51 // 100 if name in ("above", "below") else ONE // 50] * BINS for name in STATISTICS} | {
    BOUND: [1 << 13]  # half a nat
}


def calibration(tables: Tables, at: int) -> bytes:
    """Return a sealed Calibration of the rounding of `CLASS`."""
    by_bins = {name: list(table) for name, table in tables.items() if name != BOUND}
    stated = Calibration(
        run=RUN, rounding=rounding_of(CLASS), classes=[CLASS], devices=[], builds=[], era=1, version=0, root=bytes(32),
        machines={}, tables=by_bins, bound=tables[BOUND][0], at=at,
    )  # fmt: skip
    return sealed_by_role("calibration", encode(stated))


SEALED = calibration(TABLES, 1)
TOLERANT, TOLERANT_LATER = (
    calibration({name: [ONE] * BINS for name in STATISTICS} | {BOUND: [MOST_MARGIN]}, at) for at in (2, 9)
)
"""By which nothing is evidence."""
TOLERANT_BUT_BOUNDED = calibration({name: [ONE] * BINS for name in STATISTICS} | {BOUND: TABLES[BOUND]}, 3)
PEER = peer_id(ALICE)


def name_of_ranges(lease: bytes) -> bytes:
    """Return a made-up answer to a lease that asks for bytes of its version."""
    return name("ranges", int.from_bytes(lease, "big"), 32)


class FixedScorer:
    """A scorer by which the first `wrong` tokens of each sample miss the seeded choice by `margin` nats. `scored`:
    samples so far."""

    loaded = object()

    def __init__(self) -> None:
        self.wrong = 0
        self.margin = 0.3
        self.gaps = 1.0
        self.scored = 0
        self.tf32 = set[bool]()
        """Whether the jobs that it was given may be scored in TF32."""

    async def score(self, job: Job, samples: list[PackedSample]) -> list[SampleScore]:
        self.scored += len(samples)
        self.tf32.add(job.tf32)
        return [self._one(len(sample.logprobs) // 4) for sample in samples]

    def _one(self, tokens: int) -> SampleScore:
        margins = np.where(np.arange(tokens) < self.wrong, self.margin, 0.0).tolist()
        return SampleScore(logprobs=[-0.5] * tokens, margins=margins, gaps=[self.gaps] * tokens)


class Bfloat16World:
    """A world whose nodes compute in bfloat16, with a verifier."""

    def __init__(self, folder: Path, *, tf32: bool = True) -> None:
        """`tf32`: see `GroupVerifier`."""
        self._tf32 = tf32
        self.world = World(folder, spec=msgspec.structs.replace(SPEC, engines=["transformers"]), batch_groups=100)
        self.scorer = FixedScorer()
        self.damaged = False
        """Whether the coordinator cannot read its own copy of the version."""
        self._begin()

    def _begin(self) -> None:
        self.service = self.world.group_service
        source = EvidenceSource(self.service.classes, self.service.verdicts.evidence.of, self._shown)
        self.verifier = GroupVerifier(
            self.scorer,  # type: ignore[arg-type]
            ends=SPEC.ends, staleness=2, published=lambda era: [0], evidence=source, tf32=self._tf32,
        )  # fmt: skip

    async def _shown(self, lease: bytes) -> bytes:
        if self.damaged:
            raise OSError("the disk fails")
        return name_of_ranges(lease)

    def open(self, sealed: bytes = SEALED) -> None:
        """Open the class by a Calibration."""
        self.service.classes.add(sealed, RUN, LEDGER)

    def reopen(self, *, calibrated: bool = True) -> None:
        """Crash and restart. `calibrated`: whether the Calibration is still there."""
        self.world.reopen()
        self._begin()
        if calibrated:
            self.open()

    def lease(self) -> Lease:
        return self.world.lease(engine=CLASS)

    def decide(
        self, wrong: int, first: int | None = None, shown: bytes | None = None, before: int | None = None
    ) -> Receipt:
        """Hand in a group in which `wrong` tokens per sample differ; return its receipt. `shown`: the hash of the bytes
        that the lease asks for; None: the right one. `before`: the tokens per sample that differ under the version
        before; None: the group is not passed under it."""
        self.scorer.wrong = wrong
        lease = self.lease()
        self.world.submit(group(lease, ranges=shown or name_of_ranges(lease.id)))
        (undecided,) = self.service.list_undecided()
        verdict = asyncio.run(self.verifier.verify(undecided, first))
        if before is not None:
            self.scorer.wrong = before
            verdict = asyncio.run(self.verifier.pass_before(undecided, verdict))
        receipt: Receipt = opened("receipt", self.service.decide(undecided, verdict, self.world.now), Receipt)
        return receipt

    def check_again(self, wrong: int = 1) -> list[str]:
        """Make the checks of verdicts that are asked for, by a pass in which `wrong` tokens per sample differ; return
        their codes."""
        codes: list[str] = []
        self.scorer.wrong = wrong
        while (review := self.service.reviews.next(appeals=True)) is not None:
            undecided = self.service.reviews.group(review)
            assert undecided is not None
            verdict = asyncio.run(self.verifier.verify(undecided, None))
            codes.append(self.service.answer_review(review, verdict, undecided.lease, self.world.now))
        return codes

    def end_day(self, wrong: int = 1) -> list[str]:
        """Let the day end, and settle it with the checks that it asks for; return their codes."""
        self.world.now += DAY
        self.service.tick(self.world.now)
        codes = self.check_again(wrong)
        self.service.tick(self.world.now)
        return codes

    def into_doubt(self) -> list[str]:
        """Hand in honest groups and then others, until E is above 10^3 and below 10^4; return the codes."""
        return [self.decide(0).code for _ in range(5)] + self.until("quarantine")

    def until(self, code: str) -> list[str]:
        """Hand in groups with one wrong token per sample until one has this code; return the codes."""
        codes: list[str] = []
        while len(codes) < 60 and (not codes or codes[-1] != code):
            codes.append(self.decide(1).code)
        return codes
