"""Bet against streams of groups: how high the evidence rises for honest machines, and how soon it names others."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from benchmarks.harness import bench
from benchmarks.harness.bench import Claim
from echo2.coordinator.verification.calibration import fit
from echo2.coordinator.verification.evidence import (
    DOUBT_EVIDENCE,
    REFUSAL_EVIDENCE,
    EProcess,
    NodeEvidence,
    Tables,
    exceeding,
    products,
)
from echo2.coordinator.verification.token_evidence import DIFFERS, TokenArray

ORDERS: Final = 20
"""Number of random orders in which a node's groups are taken."""
MOST_TOKENS: Final = 20_000
"""A node that is not refused within these counts as not named."""
NEVER: Final = "one stale step"
"""The swap for which no bar is set: docs/protocol/evidence.md says why it is nearly harmless."""
INT8: Final = "int8"
INT8_TOKENS: Final = 2_000
HONEST_GROUPS: Final = 200
"""Honest groups before a node turns."""
Groups = list[TokenArray]


def pieces(groups: Iterable[TokenArray], tokens: int = 64) -> Groups:
    """Cut groups into pieces of `tokens` tokens, the size of a small group."""
    joined = np.concatenate(list(groups))
    return [joined[start : start + tokens] for start in range(0, len(joined) - tokens + 1, tokens)]


def tokens_to_refusal(
    groups: Groups, tables: Tables, order: np.random.Generator, before: NodeEvidence | None = None
) -> int:
    """Return the tokens after which a node is refused, by evidence or by a token beyond the bound, its groups taken
    again and again in random orders; `MOST_TOKENS` if never. `before`: the evidence at the beginning."""
    bets, beyond = [products(group, tables) for group in groups], beyond_bound(groups, tables)
    evidence, tokens = before or NodeEvidence(), 0
    while tokens < MOST_TOKENS:
        number = int(order.integers(len(groups)))
        evidence = evidence.after(bets[number], 0)
        tokens += len(groups[number])
        if evidence.conclusion() == "refusal" or beyond[number]:
            return tokens
    return MOST_TOKENS


def beyond_bound(groups: Groups, tables: Tables) -> list[bool]:
    """Tell of each group whether a token is beyond the bound."""
    return [bool(exceeding(group, tables).any()) for group in groups]


def describe(groups: Groups) -> list[object]:
    """Return (tokens, share that differs, mean margin, mean absolute drift)."""
    tokens = np.concatenate(groups)
    differs = float(((tokens["flags"] & DIFFERS) > 0).mean())
    drift = float(np.abs(tokens["drift"].astype(np.int64)).mean()) / 2**16
    return [len(tokens), differs, float(tokens["margin"].mean()) / 2**14, drift]


def left_out(dtype: str, machines: Mapping[str, Groups], calibrated: Mapping[str, Groups] | None = None) -> list[Claim]:
    """Bet against each machine under a Calibration of the others; return the claims. `calibrated`: groups of the same
    machines for the Calibrations, by another scorer."""
    rows, refused, doubted, tokens = [], 0, 0, 0
    for name, groups in machines.items():
        others = {other: parts for other, parts in (calibrated or machines).items() if other != name}
        tables = fit({other: np.concatenate(parts) for other, parts in others.items()})
        highest = peaks(groups, tables)
        refused += sum(peak >= REFUSAL_EVIDENCE for peak in highest) + sum(beyond_bound(groups, tables))
        doubted += sum(peak >= DOUBT_EVIDENCE for peak in highest)
        tokens += sum(map(len, groups))
        rows.append([name, *describe(groups), max(highest)])
    number = len(machines)
    bench.table([f"{dtype}, machine left out", "tokens", "differ", "margin", "drift", "highest E"], rows)
    print(f"{refused} refused and {doubted} doubted of {ORDERS * number} orders of {number} machines, {tokens} tokens")
    print(f"0 of {number} machines bounds the share of machines that are refused by {3 / number:.2g} only;")
    print(f"0 of {tokens // 64} groups bounds that of groups by {3 * 64 / tokens:.2g}\n", flush=True)
    return [
        Claim(f"honest orders refused in {dtype}", float(refused), "0", 0, at_most=True),
        Claim(f"honest orders doubted in {dtype}", float(doubted), "0", 0, at_most=True),
    ]


def peaks(groups: Groups, tables: Tables) -> list[float]:
    """Return the highest E of each order of the groups, of `ORDERS`."""
    order, bets = np.random.default_rng(0), [products(group, tables) for group in groups]
    highest = []
    for _ in range(ORDERS):
        process, peak = EProcess(), 0.0
        for number in order.permutation(len(groups)):
            process = process.after(bets[number])
            value = process.value()
            peak = max(peak, value.mantissa * 2.0**value.exponent)
        highest.append(peak)
    return highest


def named(dtype: str, tables: Tables, swaps: Mapping[str, Groups], honest: Groups) -> list[Claim]:
    """Bet against each swap, and against int8 by a node that was honest before; return the claims."""
    rows, shares, within = [], [], 0.0
    for name, groups in swaps.items():
        counts = _counts(groups, tables, NodeEvidence())
        share = sum(count < MOST_TOKENS for count in counts) / ORDERS
        rows.append([name, *describe(groups), share, *_quantiles(counts)])
        if name != NEVER:
            shares.append(share)
        if name == INT8:
            within = sum(count <= INT8_TOKENS for count in counts) / ORDERS
            turned = _counts(groups, tables, _after(honest, tables))
            share = sum(count < MOST_TOKENS for count in turned) / ORDERS
            rows.append([f"int8 after {HONEST_GROUPS} honest groups", *describe(groups), share, *_quantiles(turned)])
    bench.table([f"{dtype} node", "tokens", "differ", "margin", "drift", "named", "median", "p95"], rows)
    return [
        Claim(f"nodes named in {dtype}", min(shares), f"all, within {MOST_TOKENS:,} tokens", 0.99),
        Claim(f"int8 named in {dtype}", within, f"all, within {INT8_TOKENS:,} tokens", 0.99),
    ]


def _counts(groups: Groups, tables: Tables, before: NodeEvidence) -> list[int]:
    order = np.random.default_rng(1)
    return [tokens_to_refusal(groups, tables, order, before) for _ in range(ORDERS)]


def _after(groups: Groups, tables: Tables) -> NodeEvidence:
    """Return the evidence against an honest node after `HONEST_GROUPS` groups, these again and again."""
    bets, evidence = [products(group, tables) for group in groups], NodeEvidence()
    for number in range(HONEST_GROUPS):
        evidence = evidence.after(bets[number % len(bets)], 0)
    return evidence


def _quantiles(counts: list[int]) -> list[object]:
    return [int(np.median(counts)), int(np.quantile(counts, 0.95))]
