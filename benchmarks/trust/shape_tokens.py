"""Judge honest tokens of a model with random weights in SmolLM2-135M's shape, as the coordinator does.

Groups of `ROWS` samples: in float32 by single tokens and claims; in the 16-bit formats by a Calibration, which takes
the first tokens of each of three machines, and by bets on every group after them, all of one node. Tokens of the first
machine come in parts of `PART_TOKENS`, each with a line of what is judged so far. With `--keep FILE` what is judged is
written there after each part, and the next run goes on from it.
"""

import argparse
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch import nn

from benchmarks.harness.bench import Claim
from benchmarks.trust.forced_tokens import SMOLLM2_SHAPE
from benchmarks.trust.machines import LIMIT, Engines, Generated, Prompts, compare, count, scorer_env
from benchmarks.trust.streams import beyond_bound, pieces
from echo2.coordinator.learner.model import evaluating
from echo2.coordinator.verification.calibration import TOKENS_LEAST, fit
from echo2.coordinator.verification.evidence import NodeEvidence, products
from echo2.coordinator.verification.mixed_machines import MixedMachine
from echo2.coordinator.verification.token_evidence import TokenArray
from echo2.coordinator.verification.verification import judge
from echo2.engines.engine import Dtype, Sample, SampleScore
from echo2.engines.process.messages import float_bytes, pack_samples
from echo2.engines.process.process import EngineProcess
from echo2.engines.registry import in_16_bits
from echo2.protocol.leases import Rollout, Segment
from echo2.tasks.tokenizer import char_tokenizer
from echo2.weights.torch_io import save_model

ROWS: Final = 64
ROW_MACHINE: Final = MixedMachine(rows=ROWS)
MACHINES: Final[Mapping[str, MixedMachine]] = {"64 rows": ROW_MACHINE, "16 rows": MixedMachine()}
OTHER_MACHINE: Final[Mapping[str, tuple[str, MixedMachine]]] = {
    "transformers": ("sums in four parts", MixedMachine(rows=ROWS, env={"ECHO2_ROUNDING": "split-sums"})),
    "llamacpp": ("2 threads", MixedMachine(rows=ROWS, threads=2)),
}
"""The third machine of a Calibration, by engine."""
PART_TOKENS: Final = 12 * ROWS * LIMIT
"""Some 5 minutes of a core."""
FORMATS: Final[tuple[Dtype, ...]] = ("float32", "bfloat16", "float16")


def make_shape(folder: Path) -> tuple[nn.Module, Prompts]:
    """Make a model folder with random weights in the shape; return the model and its prompts."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model: Any = evaluating(LlamaForCausalLM(LlamaConfig(**SMOLLM2_SHAPE)))
    folder.mkdir()
    model.config.save_pretrained(folder)
    char_tokenizer().save(str(folder / "tokenizer.json"))
    words = SMOLLM2_SHAPE["vocab_size"]
    prompts = [[5 + (index * 7919 + place * place * 13) % (words - 5) for place in range(24)] for index in range(200)]
    return model, Prompts(prompts, 0)


class Judged(msgspec.Struct):
    """The tokens of a format that are judged so far, all of one node. `first`: number of the next prompt. `evidence`:
    by `NodeEvidence.encode`; empty in exact formats, which have no `tables`. `drift`, `margin`: the greatest in exact
    formats, in nats and units of the logits."""

    first: int = 0
    groups: int = 0
    tokens: int = 0
    refused: int = 0
    doubted: int = 0
    tables: dict[str, list[int]] = {}
    evidence: bytes = b""
    drift: float = 0.0
    margin: float = 0.0

    def bet(self, groups: Sequence[TokenArray]) -> None:
        """Bet on further groups, and compare their tokens with the bound."""
        evidence = NodeEvidence.decode(self.evidence) if self.evidence else NodeEvidence()
        self.refused += sum(beyond_bound(list(groups), self.tables))
        for group in groups:
            evidence = evidence.after(products(group, self.tables), 0)
            said = evidence.conclusion()
            self.refused, self.doubted = self.refused + (said == "refusal"), self.doubted + (said == "doubt")
            self.groups, self.tokens = self.groups + 1, self.tokens + len(group)
        self.evidence = evidence.encode()

    def check(self, group: Generated, scores: Sequence[SampleScore]) -> None:
        """Judge a group of an exact format by single tokens and claims."""
        self.refused += not judge([_claimed(one) for one in group.samples], scores).accepted
        self.groups, self.tokens = self.groups + 1, self.tokens + count([group])
        for sample, score in zip(group.samples, scores, strict=True):
            off = np.abs(np.array(sample.logprobs, np.float32) - np.asarray(score.logprobs, np.float32))
            self.drift, self.margin = max(self.drift, float(off.max())), max(self.margin, float(np.max(score.margins)))


class Kept:
    """The judged tokens of each format so far, in a file. `place`: None: nothing is written."""

    def __init__(self, place: Path | None) -> None:
        self._place = place
        known = place.read_bytes() if place is not None and place.exists() else b"{}"
        self._formats = msgspec.json.decode(known, type=dict[str, Judged])

    def of(self, name: str) -> Judged:
        """Return what is judged of a format."""
        return self._formats.setdefault(name, Judged())

    def write(self) -> None:
        """Write the file."""
        if self._place is not None:
            self._place.write_bytes(msgspec.json.format(msgspec.json.encode(self._formats), indent=1) + b"\n")


async def measure(folder: Path, order: argparse.Namespace, temperature: int) -> list[Claim]:
    """Measure the formats of the order at a temperature, in thousandths; return the claims."""
    model, prompts = make_shape(folder / "model")
    honest, kept, claims = folder / "honest.snapshot", Kept(order.keep), []
    save_model(model, honest)
    del model
    prompts = prompts._replace(temperature=temperature)
    async with EngineProcess(name="scorer", env=scorer_env(order.tf32)) as scorer:
        await scorer.probe("cpu", "float32", engine="transformers")
        await scorer.load(folder / "model", honest)
        for dtype in order.dtype or FORMATS:
            asked = prompts._replace(tf32=bool(order.tf32) and in_16_bits(dtype))
            engines = Engines(folder / "model", asked, order.tokens or 2 * TOKENS_LEAST, order.engine)
            name = f"{order.engine}/{dtype}"
            judged = kept.of(f"{name} at {order.temperature:g}")
            async for _ in (_exact if dtype == "float32" else _inexact)(engines, honest, scorer, dtype, judged):
                kept.write()
                print(
                    f"{name}: {judged.tokens:,} tokens of {judged.groups:,} groups judged, {judged.refused} groups "
                    f"refused, {judged.doubted} in doubt",
                    flush=True,
                )
            if dtype == "float32":
                print(f"{name}: greatest drift {judged.drift:.3g}, greatest margin {judged.margin:.3g}")
            said = f"honest groups of SmolLM2's shape refused in {name}"
            claims.append(Claim(said, float(judged.refused), f"0 of {judged.tokens:,} tokens", 0, at_most=True))
            print(flush=True)
    return claims


async def _parts(engines: Engines, dtype: Dtype, honest: Path, judged: Judged) -> AsyncIterator[list[Generated]]:
    """Let the first machine generate what is not judged yet, part by part."""
    while (left := engines.tokens - judged.tokens) > 0:
        part = engines._replace(tokens=min(left, PART_TOKENS))
        groups = await part.generate(ROW_MACHINE, dtype, honest, judged.first)
        judged.first += len(groups)
        yield groups


async def _exact(
    engines: Engines, honest: Path, scorer: EngineProcess, dtype: Dtype, judged: Judged
) -> AsyncIterator[None]:
    async for groups in _parts(engines, dtype, honest, judged):
        for group in groups:
            judged.check(group, await scorer.score(group.job, pack_samples(group.samples)))
        yield


async def _inexact(
    engines: Engines, honest: Path, scorer: EngineProcess, dtype: Dtype, judged: Judged
) -> AsyncIterator[None]:
    if not judged.tables:
        calibrated, rest = {}, list[TokenArray]()
        for number, (name, machine) in enumerate([*MACHINES.items(), OTHER_MACHINE[engines.engine]], 1):
            groups = await engines._replace(tokens=TOKENS_LEAST).generate(machine, dtype, honest, number * 10_000)
            tokens = np.concatenate(await compare(scorer, groups))
            calibrated[name] = tokens[:TOKENS_LEAST]
            rest += pieces([tokens[TOKENS_LEAST:]])
        judged.tables = {name: list(map(int, table)) for name, table in fit(calibrated).items()}
        judged.bet(rest)
        yield
    async for groups in _parts(engines, dtype, honest, judged):
        judged.bet(pieces(await compare(scorer, groups)))
        yield


def _claimed(sample: Sample) -> Rollout:
    """Return a sample as a node submits it."""
    segments = [Segment(version=0, root=bytes(32), first=0)]
    return Rollout(tokens=sample.tokens, turns=sample.turns, logprobs=float_bytes(sample.logprobs), segments=segments)
