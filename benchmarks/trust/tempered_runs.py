"""Measure a run at another temperature than 1: how seldom an honest node is refused, and how soon one is named that
samples at another temperature than the run's, beside int8.

The model has random weights in SmolLM2-135M's shape, or the benchmark's own. Honest groups of `ROWS` samples are judged
as the coordinator does: in float32 by single tokens and claims, in the 16-bit formats by a Calibration at the run's
temperature, which takes the first tokens of each of `MACHINES`, and by bets on every group after them.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import torch
from torch import nn

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.trust import frauds, policies
from benchmarks.trust.forced_tokens import SMOLLM2_SHAPE
from benchmarks.trust.machines import Engines, Generated, Prompts, compare, count
from benchmarks.trust.streams import MOST_TOKENS, ORDERS, beyond_bound, describe, pieces, tokens_to_refusal
from echo2.coordinator.learner.model import evaluating
from echo2.coordinator.verification.calibration import TOKENS_LEAST, fit
from echo2.coordinator.verification.evidence import NodeEvidence, Tables, products
from echo2.coordinator.verification.mixed_machines import MixedMachine
from echo2.coordinator.verification.verification import EXACT_THRESHOLDS, judge
from echo2.engines.engine import Dtype, Sample
from echo2.engines.process.messages import float_bytes, pack_samples
from echo2.engines.process.process import EngineProcess
from echo2.engines.temperature import PLAIN_TEMPERATURE
from echo2.protocol.leases import Rollout, Segment

ROWS: Final = 64
MACHINES: Final[Mapping[str, MixedMachine]] = {
    "64 rows": MixedMachine(rows=ROWS),
    "16 rows": MixedMachine(),
    "sums in four parts": MixedMachine(rows=ROWS, env={"ECHO2_ROUNDING": "split-sums"}),
}
SWAPS: Final = ("int8", "T = 0.95")
FORMATS: Final[tuple[Dtype, ...]] = ("float32", "bfloat16", "float16")


class Place(NamedTuple):
    """The engines and the scorer of a measurement, and the weights that nodes load, by name."""

    engines: Engines
    weights: Mapping[str, Path]
    scorer: EngineProcess


def make_shape(folder: Path) -> tuple[nn.Module, Prompts]:
    """Make a model folder with random weights in SmolLM2-135M's shape; return the model and its prompts."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model: Any = evaluating(LlamaForCausalLM(LlamaConfig(**SMOLLM2_SHAPE)))
    folder.mkdir()
    model.config.save_pretrained(folder)
    policies.char_tokenizer().save(str(folder / "tokenizer.json"))
    words = SMOLLM2_SHAPE["vocab_size"]
    prompts = [[5 + (index * 7919 + place * place * 13) % (words - 5) for place in range(24)] for index in range(200)]
    return model, Prompts(prompts, 0)


async def measure(folder: Path, order: argparse.Namespace) -> list[Claim]:
    """Measure the formats of the order; return the claims."""
    temperature = round(order.temperature * PLAIN_TEMPERATURE)
    model, prompts = (policies.make_model if order.quick else make_shape)(folder / "model")
    weights = policies.write_weights(model, folder, SWAPS)
    del model
    engines = Engines(folder / "model", prompts._replace(temperature=temperature), order.tokens or 2 * TOKENS_LEAST)
    claims = []
    async with EngineProcess(name="scorer") as scorer:
        await scorer.probe("cpu", "float32", engine="transformers")
        await scorer.load(folder / "model", weights["honest"])
        place = Place(engines, weights, scorer)
        for dtype in order.dtype or FORMATS:
            claims += await (_exact(place) if dtype == "float32" else _inexact(place, dtype))
    return claims


async def _exact(place: Place) -> list[Claim]:
    refused, tokens, parts, drift, margin = 0, 0, 0, 0.0, 0.0
    for group in await place.engines.generate(MACHINES["64 rows"], "float32", place.weights["honest"], 0):
        scores = await place.scorer.score(group.job, pack_samples(group.samples))
        refused += not judge([_claimed(one) for one in group.samples], scores).accepted
        tokens, parts = tokens + count([group]), parts + 1
        for sample, score in zip(group.samples, scores, strict=True):
            off = np.abs(np.array(sample.logprobs, np.float32) - np.asarray(score.logprobs, np.float32))
            drift, margin = max(drift, float(off.max())), max(margin, float(np.max(score.margins)))
    bench.table(
        ["honest in float32", "groups", "tokens", "refused", "greatest drift", "greatest margin"],
        [["64 rows", parts, tokens, refused, drift, margin]],
    )
    rows = []
    for name, groups in (await _false(place, "float32")).items():
        rows.append([name, count(groups), await _first_wrong(place, groups)])
    bench.table(["float32 node", "tokens", "tokens to the first wrong one"], rows)
    worst = max(float(row[2]) for row in rows)
    return [
        Claim("honest groups refused in float32", float(refused), f"0 of {tokens:,} tokens", 0, at_most=True),
        Claim("tokens until a node is named in float32", worst, "one group", 64.0 * ROWS, at_most=True),
    ]


async def _inexact(place: Place, dtype: Dtype) -> list[Claim]:
    calibrated, judged = {}, []
    for number, (name, machine) in enumerate(MACHINES.items()):
        engines = place.engines if name == "64 rows" else place.engines._replace(tokens=TOKENS_LEAST)
        groups = await engines.generate(machine, dtype, place.weights["honest"], number * 10_000)
        tokens = np.concatenate(await compare(place.scorer, groups))
        calibrated[name] = tokens[:TOKENS_LEAST]
        judged += pieces([tokens[TOKENS_LEAST:]]) if len(tokens) >= TOKENS_LEAST + 64 else []
    tables = fit(calibrated)
    refused, doubted = _bets(judged, tables)
    total = sum(map(len, judged))
    bench.table(
        [f"honest in {dtype}", "groups", "tokens", "refused", "doubted"],
        [["all machines", len(judged), total, refused, doubted]],
    )
    rows, shares = [], []
    for name, false in (await _false(place, dtype)).items():
        parts = pieces(await compare(place.scorer, false))
        random = np.random.default_rng(1)
        counts = [tokens_to_refusal(parts, tables, random) for _ in range(ORDERS)]
        shares.append(sum(one < MOST_TOKENS for one in counts) / ORDERS)
        rows.append([name, *describe(parts), shares[-1], int(np.median(counts)), int(np.quantile(counts, 0.95))])
    bench.table([f"{dtype} node", "tokens", "differ", "margin", "drift", "named", "median", "p95"], rows)
    return [
        Claim(f"honest groups refused in {dtype}", float(refused), f"0 of {total:,} tokens", 0, at_most=True),
        Claim(f"nodes named in {dtype}", min(shares), f"all, within {MOST_TOKENS:,} tokens", 0.99),
    ]


def _bets(groups: Sequence[Any], tables: Tables) -> tuple[int, int]:
    """Return how many groups of one node are refused, and how many leave it in doubt."""
    evidence, refused, doubted = NodeEvidence(), sum(beyond_bound(list(groups), tables)), 0
    for group in groups:
        evidence = evidence.after(products(group, tables), 0)
        said = evidence.conclusion()
        refused, doubted = refused + (said == "refusal"), doubted + (said == "doubt")
    return refused, doubted


async def _false(place: Place, dtype: Dtype) -> dict[str, list[Generated]]:
    """Return the groups of a node per swap, and of one that samples at temperature 1."""
    prompts = place.engines.prompts
    engines = place.engines._replace(tokens=TOKENS_LEAST)
    groups = {
        f"{name} of the run's" if name != "int8" else name: await engines.generate(
            frauds.MACHINE, dtype, place.weights[name], 8_000
        )
        for name in SWAPS
    }
    plain = engines._replace(prompts=prompts._replace(temperature=PLAIN_TEMPERATURE))
    at_one = await plain.generate(frauds.MACHINE, dtype, place.weights["honest"], 8_000)
    under = [one._replace(job=msgspec.structs.replace(one.job, temperature=prompts.temperature)) for one in at_one]
    return groups | {"T = 1": under}


async def _first_wrong(place: Place, groups: Sequence[Generated]) -> int:
    """Return the number of a node's first token that is wrong by more than the margin; all of them if none is."""
    tokens = 0
    for job, samples in groups:
        for score in await place.scorer.score(job, pack_samples(samples)):
            wrong = np.flatnonzero(np.asarray(score.margins) > EXACT_THRESHOLDS.margin)
            if len(wrong):
                return tokens + int(wrong[0]) + 1
            tokens += len(score.margins)
    return tokens


def _claimed(sample: Sample) -> Rollout:
    """Return a sample as a node submits it."""
    segments = [Segment(version=0, root=bytes(32), first=0)]
    return Rollout(tokens=sample.tokens, turns=sample.turns, logprobs=float_bytes(sample.logprobs), segments=segments)
