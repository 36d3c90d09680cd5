"""A node of a bfloat16 class that rounds nothing, and writes one right answer into each group.

1. The class's Calibration is made on the run's own model and newest version, by the product's fit, of the tokens that
   an engine in bfloat16 generates in this process. Honest groups of that engine are compared with the bound too.
2. The forged groups are scored and compared as those of nodes are. A token beyond the bound refuses its group.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import anyio.to_thread
import msgspec
import numpy as np

from benchmarks.attacks.attack import AttackFinding
from benchmarks.attacks.engine_place import EnginePlace
from benchmarks.plays import direct
from echo2.coordinator.verification.calibration import TOKENS_LEAST, fit
from echo2.coordinator.verification.evidence import exceeding
from echo2.coordinator.verification.token_evidence import TokenArray, compare_group
from echo2.engines.engine import Job, Sample
from echo2.protocol.leases import Lease
from echo2.tasks import registry
from echo2.weights.store import snapshot_name

FORGED = 8
"""Groups with an answer of the node's own."""


@dataclass
class ForcedAnswers:
    """The attack. `refused`: forged groups beyond the bound; `harmed`: honest ones, of `honest`."""

    refused: int = 0
    forged: int = 0
    harmed: int = 0
    honest: int = 0

    async def run(self, place: EnginePlace) -> None:
        """Calibrate and forge, by one lease's prompt and version."""
        lease = await (await place.client("forced answers")).lease()
        await anyio.to_thread.run_sync(self._forge, place, lease)

    def finding(self, place: EnginePlace) -> AttackFinding:
        """Every forged group has to be refused, and no honest one."""
        note = f"{self.refused} of {self.forged} groups beyond the bound, {self.harmed} of {self.honest} honest ones"
        prevented = self.refused == self.forged and not self.harmed
        return AttackFinding(tried=self.forged, prevented=prevented, named=1 if prevented else None, note=note)

    def _forge(self, place: EnginePlace, lease: Lease) -> None:
        from echo2.engines.transformers.engine import TransformersEngine

        rough = TransformersEngine("cpu", "bfloat16")
        rough.load(place.target.model, place.target.snapshots / snapshot_name(lease.version, lease.root))
        place.load(lease)
        honest, measured = list[TokenArray](), 0
        while measured < 2 * TOKENS_LEAST:
            job = _drawn(place.job(lease), len(honest))
            honest.append(_compared(place, lease, job, direct.generate(rough, job)))
            measured += len(honest[-1])
        half = np.searchsorted(np.cumsum([len(one) for one in honest]), TOKENS_LEAST) + 1
        tables = fit({"this machine": np.concatenate(honest[:half])})
        self.honest = len(honest) - int(half)
        self.harmed = sum(bool(exceeding(one, tables).any()) for one in honest[half:])
        task = registry.get(lease.task, lease.task_version)
        answer = list(task.demonstration("train", lease.index, place.text, 0, 0.0))
        written = Sample(tokens=answer, turns=[len(answer)], logprobs=[0.0] * len(answer))
        while self.forged < FORGED:
            job = _drawn(place.job(lease), -1 - self.forged)
            samples = [written, *direct.generate(place.engine, job)[1:]]
            self.refused += bool(exceeding(_compared(place, lease, job, samples), tables).any())
            self.forged += 1


def _drawn(job: Job, number: int) -> Job:
    """Return a job with other seeds."""
    drawn = number.to_bytes(8, "little", signed=True)
    return msgspec.structs.replace(job, seeds=[drawn + one[8:] for one in job.seeds])


def _compared(place: EnginePlace, lease: Lease, job: Job, samples: Sequence[Sample]) -> TokenArray:
    scores = place.engine.score(job, list(samples))
    return compare_group(samples, scores, [place.reward(lease, one) for one in samples], job.ends)
