"""Bet against a node that computes with the version before: two passes over its groups, and what they say of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from benchmarks.trust.machines import Generated, compare
from echo2.coordinator.verification.evidence import EProcess
from echo2.coordinator.verification.version_pairs import (
    FIRST_PAIR_EVIDENCE,
    ONE_IN,
    VersionCount,
    count_versions,
    version_products,
)
from echo2.engines.process.messages import pack_samples
from echo2.engines.process.process import EngineProcess

ORDERS: Final = 20
MOST_TOKENS: Final = 400_000
"""A node that is not refused within these passed tokens counts as not named."""
REFUSAL: Final = 1e6


class PassedGroup(NamedTuple):
    """A group that was passed twice. `tokens`: all its sampled tokens."""

    tokens: int
    versions: VersionCount


async def pass_twice(
    scorer: EngineProcess, model: Path, weights: Mapping[str, Path], groups: Sequence[Generated], before: str
) -> list[PassedGroup]:
    """Score groups under the honest weights and under those of `before`, and count the tokens that decide. The honest
    weights are loaded at the end."""
    under_version = [await compare(scorer, [group]) for group in groups]
    await scorer.load(model, weights[before])
    passed = []
    for (job, samples), compared in zip(groups, under_version, strict=True):
        scores = await scorer.score(job, pack_samples(samples))
        (tokens,) = compared
        ends = np.cumsum([len(score.margins) for score in scores])[:-1]
        versions = count_versions(zip(np.split(tokens, ends), scores, strict=True))
        passed.append(PassedGroup(len(tokens), versions))
    await scorer.load(model, weights["honest"])
    return passed


def decided(dtype: str, nodes: Mapping[str, Sequence[PassedGroup]], stale: str) -> list[Claim]:
    """Bet against each node; return the claims. `stale`: the node of the version before."""
    rows: list[list[object]] = []
    peak = named = 0.0
    for name, groups in nodes.items():
        runs = [_run(groups, np.random.default_rng(seed)) for seed in range(ORDERS)]
        reached = [tokens for tokens, _ in runs]
        tokens = sum(group.tokens for group in groups)
        newer, older = (sum(group.versions[side] for group in groups) for side in (0, 1))
        share = sum(one < MOST_TOKENS for one in reached) / ORDERS
        shares: list[object] = [(newer + older) / tokens, older / max(1, newer + older), share]
        counts: list[object] = [int(np.median(reached)), int(np.quantile(reached, 0.95))]
        rows.append([name, tokens, *shares, *counts, max(highest for _, highest in runs)])
        if name == stale:
            named = share
        else:
            peak = max(peak, *(highest for _, highest in runs))
    heads = [f"{dtype}, passed twice", "tokens", "decide", "for the version before", "named", "median", "p95"]
    bench.table([*heads, "highest E"], rows)
    print(f"One group in {ONE_IN} is passed twice until E is 1,000: counts are of tokens passed twice\n", flush=True)
    return [
        Claim(f"nodes of the version before named in {dtype}", named, f"all, within {MOST_TOKENS:,} tokens", 0.95),
        Claim(f"highest E of honest nodes, two passes in {dtype}", peak, "below 10^6", REFUSAL, at_most=True),
    ]


def _run(groups: Sequence[PassedGroup], order: np.random.Generator) -> tuple[int, float]:
    """Return (tokens until refusal, at most `MOST_TOKENS`; highest E) of groups taken again and again."""
    process, tokens, highest = FIRST_PAIR_EVIDENCE.lifelong, 0, 0.0
    bets = [version_products(group.versions) for group in groups]
    while tokens < MOST_TOKENS and highest < REFUSAL:
        number = int(order.integers(len(groups)))
        process = process.after(bets[number])
        tokens += groups[number].tokens
        highest = max(highest, _value(process))
    return tokens, highest


def _value(process: EProcess) -> float:
    value = process.value()
    return value.mantissa * 2.0**value.exponent
