"""Judge honest tokens of a model with random weights in SmolLM2-135M's shape, as the coordinator does.

Groups of `ROWS` samples: in float32 by single tokens and claims; in the 16-bit formats by a Calibration, which takes
the first tokens of each of three machines, and by bets on every group after them, all of one node. Tokens of the first
machine come in parts of `PART_TOKENS`, each with a line of what is judged so far: a run that is ended early has those.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.trust.forced_tokens import SMOLLM2_SHAPE
from benchmarks.trust.machines import LIMIT, Engines, Prompts, compare, count, scorer_env
from benchmarks.trust.streams import beyond_bound, pieces
from echo2.coordinator.learner.model import evaluating
from echo2.coordinator.verification.calibration import TOKENS_LEAST, fit
from echo2.coordinator.verification.evidence import NodeEvidence, Tables, products
from echo2.coordinator.verification.mixed_machines import MixedMachine
from echo2.coordinator.verification.token_evidence import TokenArray
from echo2.coordinator.verification.verification import judge
from echo2.engines.engine import Dtype, Sample
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


async def measure(folder: Path, order: argparse.Namespace, temperature: int) -> list[Claim]:
    """Measure the formats of the order at a temperature, in thousandths; return the claims."""
    model, prompts = make_shape(folder / "model")
    honest = folder / "honest.snapshot"
    save_model(model, honest)
    del model
    prompts = prompts._replace(temperature=temperature)
    claims = []
    async with EngineProcess(name="scorer", env=scorer_env(order.tf32)) as scorer:
        await scorer.probe("cpu", "float32", engine="transformers")
        await scorer.load(folder / "model", honest)
        for dtype in order.dtype or FORMATS:
            asked = prompts._replace(tf32=bool(order.tf32) and in_16_bits(dtype))
            engines = Engines(folder / "model", asked, order.tokens or 2 * TOKENS_LEAST, order.engine)
            claims.append(await (_exact if dtype == "float32" else _inexact)(engines, honest, scorer, dtype))
            print(flush=True)
    return claims


async def _exact(engines: Engines, honest: Path, scorer: EngineProcess, dtype: Dtype) -> Claim:
    refused, tokens, parts, drift, margin = 0, 0, 0, 0.0, 0.0
    for group in await engines.generate(ROW_MACHINE, dtype, honest, 0):
        scores = await scorer.score(group.job, pack_samples(group.samples))
        refused += not judge([_claimed(one) for one in group.samples], scores).accepted
        tokens, parts = tokens + count([group]), parts + 1
        for sample, score in zip(group.samples, scores, strict=True):
            off = np.abs(np.array(sample.logprobs, np.float32) - np.asarray(score.logprobs, np.float32))
            drift, margin = max(drift, float(off.max())), max(margin, float(np.max(score.margins)))
    heads = [f"honest in {engines.engine}/{dtype}", "groups", "tokens", "refused", "greatest drift", "greatest margin"]
    bench.table(heads, [["64 rows", parts, tokens, refused, drift, margin]])
    return _claim(engines, dtype, refused, tokens)


async def _inexact(engines: Engines, honest: Path, scorer: EngineProcess, dtype: Dtype) -> Claim:
    calibrated, judged = {}, list[TokenArray]()
    for number, (name, machine) in enumerate([*MACHINES.items(), OTHER_MACHINE[engines.engine]], 1):
        groups = await engines._replace(tokens=TOKENS_LEAST).generate(machine, dtype, honest, number * 10_000)
        tokens = np.concatenate(await compare(scorer, groups))
        calibrated[name] = tokens[:TOKENS_LEAST]
        judged += pieces([tokens[TOKENS_LEAST:]])
    tables, first = fit(calibrated), 0
    while (left := engines.tokens - first * LIMIT * ROWS) > 0:
        part = engines._replace(tokens=min(left, PART_TOKENS))
        groups = await part.generate(ROW_MACHINE, dtype, honest, first)
        first += len(groups)
        judged += pieces(await compare(scorer, groups))
        refused, doubted = _bets(judged, tables)
        total = sum(map(len, judged))
        print(f"{dtype}: {total:,} tokens judged, {refused} groups refused, {doubted} in doubt", flush=True)
    heads = [f"honest in {engines.engine}/{dtype}", "groups", "tokens", "refused", "doubted"]
    bench.table(heads, [["all machines", len(judged), total, refused, doubted]])
    return _claim(engines, dtype, refused, total)


def _claim(engines: Engines, dtype: Dtype, refused: int, tokens: int) -> Claim:
    name = f"honest groups of SmolLM2's shape refused in {engines.engine}/{dtype}"
    return Claim(name, float(refused), f"0 of {tokens:,} tokens", 0, at_most=True)


def _bets(groups: Sequence[TokenArray], tables: Tables) -> tuple[int, int]:
    """Return how many groups of one node are refused, and how many leave it in doubt."""
    evidence, refused, doubted = NodeEvidence(), sum(beyond_bound(list(groups), tables)), 0
    for group in groups:
        evidence = evidence.after(products(group, tables), 0)
        said = evidence.conclusion()
        refused, doubted = refused + (said == "refusal"), doubted + (said == "doubt")
    return refused, doubted


def _claimed(sample: Sample) -> Rollout:
    """Return a sample as a node submits it."""
    segments = [Segment(version=0, root=bytes(32), first=0)]
    return Rollout(tokens=sample.tokens, turns=sample.turns, logprobs=float_bytes(sample.logprobs), segments=segments)
